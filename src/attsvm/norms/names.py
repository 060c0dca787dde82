"""Norms by name: the words of command lines, studies and arguments, and those that files keep."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from attsvm._support.lazy import suggestion
from attsvm._support.options import BadOption
from attsvm.norms.capabilities import Norm, capabilities_of
from attsvm.norms.norms import FAMILIES, NORMS, SAVED


def norm_of(name: str) -> Norm:
    """A name of NORMS, lp:1.5 or schatten:1.5, in capitals or not."""
    if _has(NORMS, name.lower()):
        return NORMS[name.lower()]
    family, _, exponent = name.lower().partition(":")
    try:
        p = float(exponent)
    except ValueError:
        p = math.nan
    if family not in FAMILIES or not p >= 1:
        raise BadOption(f"no norm {name!r}. {suggestion(name, NORMS)}Pass {_words()}.")
    return FAMILIES[family](p)


def _words() -> str:
    """The words of norms, for messages; those of rows are norms of steps, without a program."""
    rows = [name for name, norm in NORMS.items() if capabilities_of(norm).acts_on == "rows"]
    others = ", ".join(name for name in NORMS if name not in rows)
    return f"{others}, lp:P or schatten:P with a number P ≥ 1; for steps also {', '.join(rows)}"


def saved_words(norm: Norm) -> tuple[str, ...]:
    """The words that a file keeps of a norm."""
    words = capabilities_of(norm).saved
    if not words:
        raise ValueError(f"the norm {norm} has no words for files. State them: Capabilities(saved=…).")
    return words


def from_saved(words: Sequence[str]) -> Norm:
    """The norm of the words in a file."""
    try:
        if _has(SAVED, words[0]):
            return SAVED[words[0]](*words[1:])
    except (LookupError, TypeError):
        pass
    raise ValueError(f"unknown norm {words}. Known: {', '.join(SAVED)}, each with its p.")


def _has(table: Mapping[str, Any], name: str) -> bool:
    """Whether a table has the name, once the module is imported that an entry point `attsvm.norms` names."""
    if name not in table:
        for point in entry_points(group="attsvm.norms", name=name):
            point.load()
    return name in table


def as_norm(norm: Any) -> Norm:
    """A norm as it is, or the norm that a word names."""
    # A check of the whole protocol takes a tenth of a small program's time.
    if not isinstance(norm, type) and (hasattr(norm, "capabilities") or isinstance(norm, Norm)):
        return norm
    if isinstance(norm, str):
        return norm_of(norm)
    example = f"attsvm.Entrywise({norm})" if isinstance(norm, (int, float)) and norm >= 1 else ""
    accepted = (
        "attsvm.Entrywise(p), attsvm.Schatten(p), an object with p, dual, value and steepest, or a name"
    )
    raise TypeError(f"norm is {norm!r}. Pass {example or f'{accepted}: {_words()}'}.")
