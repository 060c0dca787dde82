"""The records of a monitor as a figure: a line per head, in colours that the legend names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any

from attsvm.figures.panels import grid
from attsvm.figures.style import colours
from attsvm.torch.records import HeadRecord

PANELS = {
    "norm": "norm ‖W_QK‖",
    "entropy": "entropy (nats)",
    "top_mass": "top mass",
    "median_margin": "median margin",
}
APART = 8
"""So many lines have a colour each; more, of several modules, share that of their module."""

ROWS = 16
"""Lines of the legend in one column."""


def draw(records: Sequence[HeadRecord]) -> Any:
    """The figure of a monitor's records, which are not empty."""
    curves: dict[tuple[str, int], list[HeadRecord]] = {}
    for record in records:
        curves.setdefault((record.module, record.head), []).append(record)
    names = line_names(curves)
    legend = dict(zip(dict.fromkeys(names.values()), colours(len({*names.values()})), strict=True))
    columns, width = -(-len(legend) // ROWS), 1.3 if len(curves) <= APART else 0.7
    figure, (axes,) = grid(1, len(PANELS), 3.4, width=12.0 + columns)
    for ax, (what, title) in zip(axes, PANELS.items(), strict=True):
        for place, curve in curves.items():
            heights = [getattr(record, what) for record in curve]
            steps, marker = [record.step for record in curve], "o" if len(curve) == 1 else None
            ax.plot(steps, heights, color=legend[names[place]], lw=width, alpha=0.8, marker=marker)
        ax.set(title=title, xlabel="step")
    handles = [axes[0].plot([], [], color=color, label=name)[0] for name, color in legend.items()]
    figure.legend(handles=handles, loc="outside right upper", ncols=columns, fontsize=8, frameon=False)
    return figure


def line_names(places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """The name of each line in the legend; lines of one name share their colour."""
    places = list(places)
    modules = short_names(list(dict.fromkeys(module for module, _ in places)))
    if len(modules) == 1:
        return {place: f"head {place[1]}" for place in places}
    if len(places) <= APART:
        return {(module, head): f"{modules[module]}, head {head}" for module, head in places}
    return {(module, head): modules[module] for module, head in places}


def short_names(modules: Sequence[str]) -> dict[str, str]:
    """Names without what all begin and end with; a number keeps the word before it: layer.0."""
    parts = [module.split(".") for module in modules]
    start, end = _same(parts), _same([part[::-1] for part in parts])
    short = {}
    for module, part in zip(modules, parts, strict=True):
        first = start - ("".join(part[start : start + 1]).isdigit() and start > 0)
        short[module] = ".".join(part[first : max(len(part) - end, first + 1)]) or module
    return short


def _same(parts: Sequence[Sequence[str]]) -> int:
    """How many words all begin with."""
    return sum(1 for _ in takewhile(lambda words: len({*words}) == 1, zip(*parts, strict=False)))
