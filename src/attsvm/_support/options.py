"""Options given as text, in a command line or a study, and the objects that they name."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from attsvm._support.lazy import suggestion

SEEDS = 10**8
"""Seeds are smaller than this number, so that a range of them can be listed."""


class BadOption(ValueError):
    """The text of an option has no meaning: wrong usage, not bad data."""


def look_up(kind: str, name: str, choices: Mapping[str, Any]) -> Any:
    """The object of this name; the error for an unknown name lists all choices."""
    if name not in choices:
        raise BadOption(f"no {kind} {name!r}. {suggestion(name, choices)}Pass {', '.join(choices)}.")
    return choices[name]


def check_names(kind: str, names: Collection[str], choices: Collection[str], listing: str) -> None:
    """Raise for an unknown name. The choices are too many to list: `listing` says how to print them."""
    for name in names:
        if name not in choices:
            raise BadOption(f"no {kind} {name!r}. {suggestion(name, choices)}All of them: {listing}.")


def seed_range(text: str) -> range:
    """The seeds of "20" (0 … 19) or of "20-39"."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)", text.strip())
    if match is None:
        raise BadOption(f"seeds is {text!r}. Pass a number such as 20, or a range such as 20-39.")
    first, last = match.groups()
    seeds = range(int(last)) if first is None else range(int(first), int(last) + 1)
    if not seeds:
        raise BadOption(f"seeds is {text!r}, which holds no seed. Pass 1 or more, or a range such as 20-39.")
    if seeds.stop > SEEDS:
        raise BadOption(f"seeds is {text!r}. Pass at most {SEEDS:,}, or a range below.")
    return seeds
