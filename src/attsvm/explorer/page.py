"""The page in one file, which holds template, styles, data and modules; explore() shows it in a notebook."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from os import PathLike
from pathlib import Path as File
from typing import Any

from numpy.typing import ArrayLike

from attsvm import __version__
from attsvm._support.pages import asset, page as in_one_file, shared_style
from attsvm.data.path import Path
from attsvm.data.tokens import Tokens
from attsvm.explorer.presets import presets
from attsvm.explorer.state import state_of, state_of_path
from attsvm.numbers.atomic_write import write_text

PACKAGE = "attsvm.explorer"
FIRST = "one-input-local"
"""The preset with which the page opens: a picture with two basins."""

SETTINGS = [
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
]
"""The settings of the page's state; `web/state.js` has their defaults."""


def page(start: Mapping[str, Any] | None = None) -> str:
    """The page as text; `start` is the state with which it opens, by default a preset."""
    data = {"presets": presets(), "start": {"preset": FIRST} if start is None else start}
    return in_one_file(
        PACKAGE,
        "web/page.html",
        style=f"{shared_style()}\n{asset(PACKAGE, 'web/page.css')}",
        drawing=asset(PACKAGE, "web/drawing.css"),
        data=data,
        modules="\n".join(_modules()),
        version=__version__,
    )


@cache
def _modules() -> tuple[str, ...]:
    """Each module of the page as an inert script; the page's last lines load them as modules."""
    names = sorted(file.name for file in files(PACKAGE).joinpath("web").iterdir())
    scripts = {name: asset(PACKAGE, f"web/{name}") for name in names if name.endswith(".js")}
    return tuple(f'<script type="explorer/module" id="{name}">\n{x}</script>' for name, x in scripts.items())


@dataclass(frozen=True)
class Explorer:
    """The interactive page of a problem: a notebook shows it, `save` writes it to one file."""

    html: str

    def save(self, file: str | PathLike[str] = "explorer.html") -> File:
        """Write the page and return its path."""
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
    selected: the tokens whose program is shown, by default the best tokens under v; for a path without v, the
        tokens that it attends to.
    settings: of the page, such as rule="sign", lr=0.1, p=3, joint=True, usual=True, time=10_000,
        starts={"ring": 64, "radius": 1.5} or {"points": [[0, 1]]}; trained="kq" steps on the factors of
        a prompt, p = k ⊙ q, or of a weight, W = K Qᵀ; rule="steepest", ruleP=4 takes steps in l4,
        rule="schatten" in Schatten(4), rule="spectral" those of Muon.
    """
    unknown = settings.keys() - SETTINGS
    if unknown:
        raise TypeError(f"explore has no setting {sorted(unknown)[0]!r}. Pass any of {', '.join(SETTINGS)}.")
    if tokens is None:
        return Explorer(page())
    if isinstance(tokens, Path):
        return Explorer(page(state_of_path(tokens, None, v, selected) | settings))
    return Explorer(page(state_of(tokens, v, selected) | settings))
