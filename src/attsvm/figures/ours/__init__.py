"""Figures that nobody has shown before."""

from attsvm.figures.figure import Paper
from attsvm.figures.ours import (
    fractions,
    head_geometry,
    joint_family,
    optimizer_norms,
    past_saturation,
    real_tokens,
)

PAPER = Paper(
    "ours",
    "What only attsvm shows",
    "this package",
    (
        past_saturation.FIGURE,
        optimizer_norms.FIGURE,
        joint_family.FIGURE,
        fractions.FIGURE,
        real_tokens.FIGURE,
        head_geometry.FIGURE,
    ),
)
