"""What the figures of this paper share: a mean with its spread over runs."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from attsvm.numbers import Float


def band(ax: Axes, x: Any, each: Float, color: str, **options: Any) -> None:
    """Mean over the runs, first axis, ± one standard deviation; NaN runs are left out."""
    mean, spread = np.nanmean(each, 0), np.nanstd(each, 0)
    ax.fill_between(x, mean - spread, mean + spread, color=color, alpha=0.2, lw=0)
    ax.plot(x, mean, color=color, **options)
