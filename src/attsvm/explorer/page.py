"""The page as one file: template, styles, data and every module inside it, nothing to build or to fetch."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

from attsvm import __version__
from attsvm.explorer.presets import presets
from attsvm.pages import embedded

FIRST = "one-input-local"
"""The preset with which the page opens: two basins in one picture."""


def page(start: Mapping[str, Any] | None = None) -> str:
    """The whole page; `start` is the state it opens with, by default a preset."""
    data = {"presets": presets(), "start": {"preset": FIRST} if start is None else start}
    return Template(_asset("page.html")).substitute(
        style=_asset("page.css"),
        drawing=_asset("drawing.css"),
        data=embedded(data),
        modules="\n".join(_modules()),
        version=__version__,
    )


@cache
def _modules() -> tuple[str, ...]:
    """Each module of the page as an inert script, which the page's last lines turn into a module."""
    names = sorted(file.name for file in files("attsvm.explorer").joinpath("web").iterdir())
    scripts = [name for name in names if name.endswith(".js")]
    return tuple(f'<script type="explorer/module" id="{name}">\n{_asset(name)}</script>' for name in scripts)


def _asset(name: str) -> str:
    return files("attsvm.explorer").joinpath("web", name).read_text(encoding="utf8")
