"""The page as one file: template, styles, data and every module inside it, nothing to build or to fetch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from attsvm import __version__
from attsvm._support.pages import asset, page as in_one_file
from attsvm.explorer.presets import presets

ROOM = "attsvm.explorer"
FIRST = "one-input-local"
"""The preset with which the page opens: two basins in one picture."""


def page(start: Mapping[str, Any] | None = None) -> str:
    """The whole page; `start` is the state it opens with, by default a preset."""
    data = {"presets": presets(), "start": {"preset": FIRST} if start is None else start}
    return in_one_file(
        ROOM,
        "web/page.html",
        style=asset(ROOM, "web/page.css"),
        drawing=asset(ROOM, "web/drawing.css"),
        data=data,
        modules="\n".join(_modules()),
        version=__version__,
    )


@cache
def _modules() -> tuple[str, ...]:
    """Each module of the page as an inert script, which the page's last lines turn into a module."""
    names = sorted(file.name for file in files(ROOM).joinpath("web").iterdir())
    scripts = {name: asset(ROOM, f"web/{name}") for name in names if name.endswith(".js")}
    return tuple(f'<script type="explorer/module" id="{name}">\n{x}</script>' for name, x in scripts.items())
