"""What the figures of this paper share: rows of panels, named axes, a mean with its spread over runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.tokens import Float


def panels(heights: Sequence[float], columns: int, height: float) -> tuple[Canvas, Any]:
    """A figure of page width with rows of these relative heights; axes (rows, columns)."""
    figure = Canvas(figsize=(7.2, height), layout="constrained")
    axes = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    for ax in axes.ravel():
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(labelsize=8)
    return figure, axes


def describe(ax: Axes, title: str = "", x: str = "", y: str = "") -> None:
    """Title and axis names, at sizes that three panels side by side can carry."""
    ax.set_title(title, fontsize=9.5)
    ax.set_xlabel(x, fontsize=9)
    ax.set_ylabel(y, fontsize=9)


def band(ax: Axes, x: Any, each: Float, color: str, **options: Any) -> None:
    """Mean over the runs, first axis, ± one standard deviation; NaN runs are left out."""
    mean, spread = np.nanmean(each, 0), np.nanstd(each, 0)
    ax.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.2, lw=0)
    ax.plot(x, mean, color=color, **options)
