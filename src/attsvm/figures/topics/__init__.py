"""Figures of: Dynamics of Spontaneous Topic Changes in Next Token Prediction."""

from attsvm.figures.topics import (  # noqa: F401 (loading registers, in the order of the page)
    changes,
)
