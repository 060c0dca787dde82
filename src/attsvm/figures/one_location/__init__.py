"""Figures of: Attention Layers Provably Solve Single-location Regression."""

from attsvm.figures.one_location import (  # noqa: F401 (loading registers, in the order of the page)
    where_descent_ends,
)
