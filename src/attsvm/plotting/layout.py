"""Parts of several figures: rows of named panels, the curve of many runs, a word at the end of a curve."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.numbers import Float
from attsvm.plotting.style import label


def grid(
    rows: int, columns: int, height: float, heights: Sequence[float] | None = None, width: float = 7.2
) -> tuple[Canvas, list[list[Axes]]]:
    """A page-wide figure with rows of axes of these relative heights, no frames at the top and right."""
    figure = Canvas(figsize=(width, height), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, height_ratios=heights)
    for ax in axes.flat:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(which="both", labelsize=8)
    return figure, [list(row) for row in axes]


def describe(ax: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Title and axis names at sizes that fit three panels to a page."""
    ax.set_title(title, fontsize=9)
    ax.set_xlabel(x, fontsize=9)
    ax.set_ylabel(y, fontsize=9)


def band(ax: Axes, x: Any, runs: Float, color: str, **options: Any) -> Float:
    """Median of the runs (runs, k) as a line, their middle half as a band; returns the median (k,)."""
    low, middle, high = np.quantile(runs, [0.25, 0.5, 0.75], axis=0)
    ax.fill_between(x, low, high, color=color, alpha=0.2, lw=0)
    ax.plot(x, middle, color=color, **options)
    return np.asarray(middle)


def spread_band(ax: Axes, x: Any, runs: Float, color: str, **options: Any) -> None:
    """Mean over the runs, first axis, ± one standard deviation; NaN runs are left out."""
    mean, spread = np.nanmean(runs, 0), np.nanstd(runs, 0)
    ax.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.2, lw=0)
    ax.plot(x, mean, color=color, **options)


def label_end(ax: Axes, x: float, y: float, text: str, color: str, shift: float = 0.0) -> None:
    """Write a word to the right of a curve's end, `shift` points higher where words would overlap."""
    offset = {"xytext": (4, shift), "textcoords": "offset points", "annotation_clip": False}
    label(ax, x, y, text, color, va="center", **offset)
