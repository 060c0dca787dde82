"""Words of the command line and of studies → objects of the package."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from typing import Any

from attsvm import norms
from attsvm.max_norm import MaxNorm
from attsvm.norms import Entrywise, Norm, Schatten

NORMS: dict[str, Norm] = {
    "frobenius": norms.frobenius,
    "nuclear": norms.nuclear,
    "spectral": norms.spectral,
    "l1": norms.l1,
    "linf": norms.linf,
    "max-norm": MaxNorm(),
    "longest-row": norms.LongestRow(),
}
FAMILIES: dict[str, Callable[[float], Norm]] = {"lp": Entrywise, "schatten": Schatten}
"""Norms that have an exponent, which follows a colon."""


SEEDS = 10**8
"""Seeds are smaller than this: more runs than anyone waits for, and still few enough to be listed."""


class WrongWord(ValueError):
    """A word of a command line or of a study that means nothing: wrong usage, not bad input."""


def norm_of(word: str) -> Norm:
    """A name of NORMS, lp:1.5 or schatten:1.5, in capitals or not."""
    if word.lower() in NORMS:
        return NORMS[word.lower()]
    family, _, exponent = word.lower().partition(":")
    try:
        p = float(exponent)
    except ValueError:
        p = math.nan
    if family not in FAMILIES or not p >= 1:
        raise WrongWord(
            f"no norm {word!r}. Pass {', '.join(NORMS)}, or lp:P or schatten:P with a number P ≥ 1."
        )
    return FAMILIES[family](p)


def one_of(what: str, word: str, known: Mapping[str, Any]) -> Any:
    """The object of a word; an unknown word is answered with the known ones."""
    if word not in known:
        raise WrongWord(f"no {what} {word!r}. Pass {', '.join(known)}.")
    return known[word]


def check_names(what: str, names: Collection[str], known: Collection[str], listed: str) -> None:
    """Names of a long list, which `listed` prints: an unknown one is answered with the nearest."""
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            meant = f"Did you mean {near[0]}? " if near else ""
            raise WrongWord(f"no {what} {name!r}. {meant}All of them: {listed}.")


def seed_range(text: str) -> range:
    """The seeds of "20" (0 … 19) or of "20-39"."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)", text.strip())
    if found is None:
        raise WrongWord(f"seeds is {text!r}. Pass a number such as 20, or a range such as 20-39.")
    first, last = found.groups()
    seeds = range(int(last)) if first is None else range(int(first), int(last) + 1)
    if not seeds:
        raise WrongWord(f"seeds is {text!r}, which holds no seed. Pass 1 or more, or a range such as 20-39.")
    if seeds.stop > SEEDS:
        raise WrongWord(f"seeds is {text!r}. Pass at most {SEEDS:,}, or a range below.")
    return seeds
