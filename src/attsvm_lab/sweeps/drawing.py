"""Drawings of a study: heat maps, and curves with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.plotting.style import ON_DARK, ON_LIGHT, colours, label
from attsvm_lab.sweeps import labels

PANELS, COLUMNS, WIDTH = 12, 3, 7.2
"""The largest number of panels of a picture, and of panels side by side; inches of a picture."""


@dataclass(frozen=True)
class CellEstimate:
    """A cell's parameters, and the estimate of one quantity with its interval."""

    words: Mapping[str, Any]
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Layout:
    """The parameter along x, the one with a line (in a map, a row) per value, and those with panels."""

    x: str
    lines: str | None
    panels: tuple[str, ...] = ()

    def panel(self, point: CellEstimate) -> tuple[Any, ...]:
        return tuple(point.words.get(name) for name in self.panels)


def draw_curves(points: Sequence[CellEstimate], quantity: str, layout: Layout) -> Canvas:
    """The quantity against x, one line per value of a second parameter, intervals as bars."""
    figure, panels = _panels(points, layout, 2.5)
    numeric = all(isinstance(p.words.get(layout.x), (int, float, np.number)) for p in points)
    ticks = _values(points, layout.x)
    for ax, (title, panel) in panels:
        lines = _values(points, layout.lines) if layout.lines else [None]
        for value, color in zip(lines, colours(len(lines)), strict=True):
            line = [p for p in panel if layout.lines is None or p.words.get(layout.lines) == value]
            name = "" if value is None else f"{_text(layout.lines)} = {_text(value)}"
            _line(ax, line, layout.x, ticks, numeric, color, name)
        _finish(ax, title, _text(labels.parameter(layout.x)), _text(labels.axis(quantity)))
        if numeric and len(ticks) > 1 and min(ticks) > 0 and max(ticks) / min(ticks) >= 8:
            ax.set_xscale("log")
        ax.set_xticks(ticks if numeric else range(len(ticks)), [_text(t) for t in ticks])
        ax.minorticks_off()
        _bound(ax, points)
    if layout.lines and len(_values(points, layout.lines)) <= 12:
        first_ax = panels[0][0]
        first_ax.legend(fontsize=7, frameon=False, loc="best")
    return figure


def draw_map(points: Sequence[CellEstimate], quantity: str, layout: Layout) -> Canvas:
    """The quantity as a colour over two parameters, with its value in every cell."""
    assert layout.lines is not None  # page.py draws no map without lines
    across, down = _values(points, layout.x), _values(points, layout.lines)[::-1]
    left_margin = 0.4 + 0.065 * max(len(_text(y)) for y in down)
    row = 0.32 if len(down) > 4 else 0.5  # few rows would be a strip
    figure, panels = _panels(points, layout, 0.8 + row * len(down), left_margin, right_margin=0.9)
    finite = [p.value for p in points if np.isfinite(p.value)] or [0.0]
    low, high = (0.0, 1.0) if min(finite) >= 0 and max(finite) <= 1 else (min(finite), max(finite))
    image: Any = None
    for ax, (title, panel) in panels:
        table = np.full((len(down), len(across)), np.nan)
        for p in panel:
            table[down.index(p.words.get(layout.lines)), across.index(p.words.get(layout.x))] = p.value
        image = ax.imshow(
            table, cmap="cividis", vmin=low, vmax=high if high > low else low + 1, aspect="auto"
        )
        if len(across) <= 12:
            _write_values(ax, table, low, high, len(across))
        names = [_text(x) for x in across]
        ax.set_xticks(range(len(across)), names, rotation=25 if sum(map(len, names)) > 20 else 0)
        ax.set_yticks(range(len(down)), [_text(y) for y in down])
        ax.spines[:].set_visible(False)
        ax.tick_params(length=0)
        _finish(ax, title, *(_text(labels.parameter(name)) for name in (layout.x, layout.lines)))
    box = panels[0][0].get_position()
    place = figure.add_axes((1 - 0.75 / WIDTH, box.y0, 0.12 / WIDTH, box.height))
    bar = figure.colorbar(image, cax=place)
    bar.set_label(_text(labels.axis(quantity)), fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.outline.set_visible(False)
    return figure


# ---------------------------------------------------------------------- details

Panel = tuple[Axes, tuple[str, list[CellEstimate]]]
"""Axes with their title and the estimates to draw there."""


def _panels(
    points: Sequence[CellEstimate],
    layout: Layout,
    height: float,
    left_margin: float = 0.6,
    right_margin: float = 0.1,
) -> tuple[Canvas, list[Panel]]:
    groups: dict[tuple[Any, ...], list[CellEstimate]] = {}
    for point in points:
        groups.setdefault(layout.panel(point), []).append(point)
    ranks = [_values(points, name) for name in layout.panels]
    order = sorted(groups, key=lambda values: [rank.index(v) for rank, v in zip(ranks, values, strict=True)])
    shown = [(values, groups[values]) for values in order[:PANELS]]
    last = len(_values(points, layout.panels[-1])) if layout.panels else 1
    columns = last if 1 < last <= 4 else min(COLUMNS, len(shown))
    rows = -(-len(shown) // columns)
    total = rows * height
    # Margins are set in inches, because matplotlib's constrained layout draws everything twice.
    figure = Canvas(figsize=(WIDTH, total))
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).ravel()
    figure.subplots_adjust(
        left=left_margin / WIDTH,
        right=1 - right_margin / WIDTH,
        bottom=0.5 / total,
        top=1 - (0.3 if layout.panels else 0.1) / total,
        wspace=0.12,
        hspace=0.35 / (height - 0.35),
    )
    panels = []
    for ax, (values, panel) in zip(axes, shown, strict=False):
        title = ", ".join(_assignment(n, v) for n, v in zip(layout.panels, values, strict=True))
        panels.append((ax, (title, panel)))
    for ax in axes[len(shown) :]:
        ax.set_axis_off()
    if len(groups) > PANELS:
        figure.suptitle(f"the first {PANELS} of {len(groups)} panels", fontsize=8, y=1, va="top")
    return figure, panels


def _line(
    ax: Axes, line: list[CellEstimate], x: str, ticks: list[Any], numeric: bool, color: Any, name: str
) -> None:
    line = sorted((p for p in line if np.isfinite(p.value)), key=lambda p: ticks.index(p.words.get(x)))
    if not line:
        return
    at = [p.words[x] if numeric else ticks.index(p.words.get(x)) for p in line]
    value = np.array([p.value for p in line])
    spread = np.nan_to_num(
        np.array([[p.value - p.low for p in line], [p.high - p.value for p in line]]), posinf=0
    )
    ax.errorbar(
        at, value, yerr=np.maximum(spread, 0), color=color, lw=1.3, marker="o", ms=3, capsize=2, label=name
    )


def _bound(ax: Axes, points: Sequence[CellEstimate]) -> None:
    finite = [p for p in points if np.isfinite(p.value)]
    if finite and all(p.low >= 0 and p.high <= 1 for p in finite):
        ax.set_ylim(-0.03, 1.03)


def _write_values(ax: Axes, table: Any, low: float, high: float, columns: int) -> None:
    for (row, column), value in np.ndenumerate(table):
        if np.isfinite(value):
            dark = value < low + 0.55 * (high - low)
            digits = f"{value:.2f}" if abs(value) < 10 and high > 0.02 else f"{value:.1e}"
            label(ax, column, row, digits, ON_DARK if dark else ON_LIGHT, ha="center", va="center")
            ax.texts[-1].set_fontsize(7.5 if columns <= 6 else 6)


def _finish(ax: Axes, title: str, x: str, y: str) -> None:
    ax.set_title(title, fontsize=8.5, pad=3)
    place: Any = ax.get_subplotspec()
    if place.is_last_row():
        ax.set_xlabel(x, fontsize=8)
    if place.is_first_col():
        ax.set_ylabel(y, fontsize=8)
    ax.tick_params(labelsize=7.5)
    ax.spines[["top", "right"]].set_visible(False)


def _values(points: Sequence[CellEstimate], name: str) -> list[Any]:
    """The values of a parameter, numbers in increasing order, words in the order of the study."""
    values = list(dict.fromkeys(p.words.get(name) for p in points))
    numbers = all(isinstance(x, (int, float, np.number)) for x in values)
    return sorted(values) if numbers else values


def _text(value: Any) -> str:
    """A number or word as a label of matplotlib; dollars are escaped, because they would begin a formula."""
    return f"{value:g}" if isinstance(value, (int, float, np.number)) else str(value).replace("$", r"\$")


def _assignment(name: str, value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    return f"{_text(name)} = {_text(value) if value is not None else '–'}"
