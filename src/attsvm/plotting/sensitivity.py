"""The picture of a sensitivity: tokens by the slope of the margin, the nearest changes of the support."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, TITLE_SIZE, label

SHOWN = 10
"""Bars of a panel."""

COLOURS = {"selected": BLUE, "support": ORANGE, "leaves": ORANGE, "enters": GREEN}


def draw_sensitivity(sensitivity: Any) -> Canvas:
    """Tokens that move the margin most, and the nearest changes of the support."""
    figure, (axes,) = grid(1, 2, 3.6, width=7.2)
    figure.suptitle(str(sensitivity).splitlines()[0], fontsize=TITLE_SIZE)
    strongest = sensitivity.strongest(SHOWN)
    slopes = [sensitivity.margin_by_token[place] for place in strongest]
    _bars(axes[0], strongest, slopes, [sensitivity.role(*place) for place in strongest])
    describe(axes[0], "moving this token changes the margin", "change per unit of length", "example, token")
    changes = sensitivity.first_changes(SHOWN)
    places = [(change.example, change.token) for change in changes]
    _bars(axes[1], places, [c.distance for c in changes], [c.change for c in changes])
    describe(axes[1], "moving this token changes the support", "after a move of this length")
    return figure


def _bars(ax: Axes, places: list[tuple[int, int]], values: list[float], kinds: list[str]) -> None:
    """Horizontal bars, the first one on top; each kind has a colour and its name at its first bar."""
    heights = np.arange(len(values))
    ax.barh(heights, values, color=[COLOURS.get(kind, GREY) for kind in kinds], height=0.7)
    ax.set_yticks(heights, [f"{i}, {t}" for i, t in places])
    ax.invert_yaxis()
    ax.xaxis.set_major_locator(MaxNLocator(4))
    named = {kind: kinds.index(kind) for kind in kinds}
    ax.set_xlim(0, 1.35 * max(values, default=1.0))
    for kind, k in named.items():
        offset = {"xytext": (3, 0), "textcoords": "offset points", "va": "center"}
        label(ax, values[k], k, kind, COLOURS.get(kind, GREY), **offset)
