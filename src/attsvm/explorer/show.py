"""explore(): the page in a notebook, or as a file."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from os import PathLike
from pathlib import Path as File
from typing import Any

from numpy.typing import ArrayLike

from attsvm.data.path import Path
from attsvm.data.tokens import Tokens
from attsvm.explorer.page import page
from attsvm.explorer.state import state_of, state_of_path
from attsvm.numbers.atomic_write import write_text

SETTINGS = (
    "trained",
    "rule",
    "ruleP",
    "lr",
    "loss",
    "p",
    "follow",
    "joint",
    "usual",
    "starts",
    "time",
    "choose",
)
"""What may be said of the page's state besides the problem; `web/state.js` has their defaults."""


@dataclass(frozen=True)
class Explorer:
    """The interactive page of a problem: a notebook shows it, `save` writes it to one file."""

    html: str

    def save(self, file: str | PathLike[str] = "explorer.html") -> File:
        """Write the page and return its name."""
        path = File(file)
        write_text(path, self.html)
        return path

    def _repr_html_(self) -> str:
        return (
            f'<iframe srcdoc="{escape(self.html)}" title="attsvm explorer" loading="lazy" '
            'style="width: 100%; height: 860px; border: 0"></iframe>'
        )

    def __repr__(self) -> str:
        return f"Explorer({len(self.html) // 1000} kB; show it in a notebook, or write it with .save(file))"


def explore(
    tokens: Tokens | Path | None = None,
    v: ArrayLike | None = None,
    selected: ArrayLike | None = None,
    **settings: Any,
) -> Explorer:
    """The explorer of two-dimensional tokens: drag them, and watch the program and training follow.

    tokens: keys (n, T, 2), a Path of such tokens, or None for a preset. v: the head (c,).
    selected: the tokens whose program is shown, by default the best under v; of a path without v those that
        it attends to.
    settings: of the page, such as rule="sign", lr=0.1, p=3, joint=True, usual=True, time=10_000,
        starts={"ring": 64, "radius": 1.5} or {"points": [[0, 1]]}; trained="kq" steps on the factors of the
        prompt, p = k ⊙ q, and rule="steepest", ruleP=4 takes steps in l4.
    """
    unknown = settings.keys() - SETTINGS
    if unknown:
        raise TypeError(f"explore has no setting {sorted(unknown)[0]!r}. Pass any of {', '.join(SETTINGS)}.")
    if tokens is None:
        return Explorer(page())
    if isinstance(tokens, Path):
        return Explorer(page(state_of_path(tokens, None, v, selected) | settings))
    return Explorer(page(state_of(tokens, v, selected) | settings))
