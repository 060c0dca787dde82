"""Figures of: benign overfitting in attention, two papers."""

from attsvm.figures.benign_overfitting import (  # noqa: F401 (loading registers, in the order of the page)
    hand_built,
    level,
    phases,
    regimes,
    two_steps,
)
