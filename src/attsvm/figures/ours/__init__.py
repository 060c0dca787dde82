"""Figures of: What only attsvm shows."""

from attsvm.figures.figure import Paper
from attsvm.figures.ours import past_saturation

PAPER = Paper(
    "ours",
    "What only attsvm shows",
    "this package",
    (past_saturation.FIGURE,),
)
