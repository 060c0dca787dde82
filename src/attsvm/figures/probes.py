"""Pictures of a probe: how well its scores rank, and whether its probabilities mean what they say."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas

from attsvm.figures.panels import describe, grid
from attsvm.figures.style import BLUE, GREY, ORANGE, label

RATE = 0.01


def draw_curves(curves: Any) -> Canvas:
    """The ROC curve with its rate at 1 % false positives, and observed against predicted probability."""
    figure, ((left, right),) = grid(1, 2, 3.9, width=8.4)
    left.plot([0, 1], [0, 1], color=GREY, lw=0.8, ls=":")
    left.step(curves.fpr, curves.tpr, where="post", color=BLUE, lw=1.5)
    found = curves.tpr_at(RATE)
    left.plot(RATE, found, "o", color=ORANGE, ms=5)
    place = {"xytext": (8, -10), "textcoords": "offset points"}
    label(left, RATE, found, f"{found:.0%} at {RATE:.0%} FPR", ORANGE, **place)
    low, high = curves.auc_interval
    describe(
        left, f"AUC {curves.auc:.3f} [{low:.3f}, {high:.3f}]", "false positive rate", "true positive rate"
    )
    right.plot([0, 1], [0, 1], color=GREY, lw=0.8, ls=":")
    errors = np.stack([curves.observed - curves.low, curves.high - curves.observed])
    right.errorbar(curves.predicted, curves.observed, np.maximum(errors, 0), fmt="o", ms=4, lw=1, color=BLUE)
    title = f"calibration error {curves.calibration_error:.3f}, log loss {curves.log_loss:.3f}"
    describe(right, title, "predicted probability", "observed share")
    for ax in (left, right):
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
    return figure
