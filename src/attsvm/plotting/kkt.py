"""The picture of a KKT point: singular values of W against the steps, with the predicted slope at a stop."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas

from attsvm.plotting.layout import describe, grid, label_end
from attsvm.plotting.style import BLUE, GREY, ORANGE, TITLE_SIZE, plain_powers


def draw_kkt_point(point: Any) -> Canvas:
    """Singular values relative to the largest; those that are spare at the end in another colour."""
    figure, ((ax,),) = grid(1, 1, 3.6, width=5.4)
    positive = point.index > 0
    steps, sizes = point.index[positive], point.singular_values[positive]
    shares = sizes / sizes[:, :1]
    for k in range(shares.shape[1]):
        ax.loglog(steps, np.maximum(shares[:, k], 1e-300), color=BLUE if k < point.rank else ORANGE, lw=1.2)
    if point.status == "stop" and np.isfinite(point.exponent) and point.rank < shares.shape[1]:
        last = shares[-1, point.rank]
        span = steps[steps >= steps[-1] / 10]
        ax.loglog(span, last * (span / span[-1]) ** point.exponent, "--", color=GREY, lw=1.5)
        begin = (span[0], last * (span[0] / span[-1]) ** point.exponent)
        label_end(ax, *begin, f"predicted: t^{point.exponent:.2f}", GREY, shift=-14)
    visible = shares[shares > 1e-40]
    ax.set_ylim(max(visible.min() / 3, 1e-40), 3)
    figure.suptitle(str(point).splitlines()[0], fontsize=TITLE_SIZE)
    describe(ax, "singular values of W", "steps", "relative to the largest")
    plain_powers(ax)
    return figure
