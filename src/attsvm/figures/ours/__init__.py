"""Figures of: What only attsvm shows."""

from attsvm.figures.figure import Paper
from attsvm.figures.ours import optimizer_norms, past_saturation

PAPER = Paper(
    "ours",
    "What only attsvm shows",
    "this package",
    (optimizer_norms.FIGURE, past_saturation.FIGURE),
)
