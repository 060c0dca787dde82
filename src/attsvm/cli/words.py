"""Words of the command line → objects of the package."""

from __future__ import annotations

import math
import re
from typing import Any

from attsvm import norms
from attsvm.norms import Entrywise, Norm

NORMS: dict[str, Norm] = {
    "frobenius": norms.frobenius,
    "nuclear": norms.nuclear,
    "spectral": norms.spectral,
    "l1": norms.l1,
    "linf": norms.linf,
}


def norm_of(word: str) -> Norm:
    """frobenius, nuclear, spectral, l1, linf, or lp:1.5, in capitals or not."""
    if word.lower() in NORMS:
        return NORMS[word.lower()]
    family, _, exponent = word.lower().partition(":")
    try:
        p = float(exponent)
    except ValueError:
        p = math.nan
    if family != "lp" or not p >= 1:
        raise ValueError(f"no norm {word!r}. Pass {', '.join(NORMS)}, or lp:P with a number P ≥ 1.")
    return Entrywise(p)


def one_of(what: str, word: str, known: dict[str, Any]) -> Any:
    """The object of a word; an unknown word is answered with the known ones."""
    if word not in known:
        raise ValueError(f"no {what} {word!r}. Pass {', '.join(known)}.")
    return known[word]


def seed_range(text: str) -> range:
    """The seeds of "20" (0 … 19) or of "20-39"."""
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)", text.strip())
    if found is None:
        raise ValueError(f"seeds is {text!r}. Pass a number such as 20, or a range such as 20-39.")
    first, last = found.groups()
    seeds = range(int(last)) if first is None else range(int(first), int(last) + 1)
    if not seeds:
        raise ValueError(f"seeds is {text!r}, which holds no seed. Pass 1 or more, or a range such as 20-39.")
    return seeds
