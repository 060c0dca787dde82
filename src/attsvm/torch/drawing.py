"""The records of a monitor as a figure: a line per head, in colours that the legend names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from attsvm.plotting.layout import grid
from attsvm.plotting.style import colours

if TYPE_CHECKING:  # the monitor imports this file to draw
    from attsvm.torch.monitor import HeadRecord

PANELS = {
    "norm": "norm ‖W_QK‖",
    "entropy": "entropy (nats)",
    "top_mass": "top mass",
    "median_margin": "median margin",
}
MAX_COLOURED_HEADS = 8
"""Up to so many lines have a colour each; more, of several modules, share that of their module."""

LEGEND_ROWS = 16
"""Lines of the legend in one column."""


def draw(records: Sequence[HeadRecord]) -> Any:
    """The figure of a monitor's records, of which there is at least one."""
    curves: dict[tuple[str, int], list[HeadRecord]] = {}
    for record in records:
        curves.setdefault((record.module, record.head), []).append(record)
    names = line_names(curves)
    legend = dict(zip(dict.fromkeys(names.values()), colours(len({*names.values()})), strict=True))
    columns = -(-len(legend) // LEGEND_ROWS)
    width = 1.3 if len(curves) <= MAX_COLOURED_HEADS else 0.7
    figure, (axes,) = grid(1, len(PANELS), 3.4, width=12.0 + columns)
    for ax, (field, title) in zip(axes, PANELS.items(), strict=True):
        for place, curve in curves.items():
            heights = [getattr(record, field) for record in curve]
            steps, marker = [record.step for record in curve], "o" if len(curve) == 1 else None
            ax.plot(steps, heights, color=legend[names[place]], lw=width, alpha=0.8, marker=marker)
        ax.set(title=title, xlabel="step")
    handles = [axes[0].plot([], [], color=color, label=name)[0] for name, color in legend.items()]
    figure.legend(handles=handles, loc="outside right upper", ncols=columns, fontsize=8, frameon=False)
    return figure


def line_names(places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """The name of each line (module, head) in the legend; lines of one name share their colour."""
    places = list(places)
    modules = short_names(list(dict.fromkeys(module for module, _ in places)))
    if len(modules) == 1:
        return {place: f"head {place[1]}" for place in places}
    if len(places) <= MAX_COLOURED_HEADS:
        return {(module, head): f"{modules[module]}, head {head}" for module, head in places}
    return {(module, head): modules[module] for module, head in places}


def short_names(modules: Sequence[str]) -> dict[str, str]:
    """Names without their common prefix and suffix; a number keeps the word before it: layer.0."""
    paths = [module.split(".") for module in modules]
    prefix, suffix = _common_prefix(paths), _common_prefix([path[::-1] for path in paths])
    short = {}
    for module, path in zip(modules, paths, strict=True):
        start = prefix - ("".join(path[prefix : prefix + 1]).isdigit() and prefix > 0)
        short[module] = ".".join(path[start : max(len(path) - suffix, start + 1)]) or module
    return short


def _common_prefix(paths: Sequence[Sequence[str]]) -> int:
    """The length of the longest common prefix."""
    return sum(1 for _ in takewhile(lambda steps: len({*steps}) == 1, zip(*paths, strict=False)))
