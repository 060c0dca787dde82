"""Figures of: What only attsvm shows."""

from attsvm.figures.figure import Paper
from attsvm.figures.ours import fractions, joint_family, past_saturation

PAPER = Paper(
    "ours",
    "What only attsvm shows",
    "this package",
    (past_saturation.FIGURE, joint_family.FIGURE, fractions.FIGURE),
)
