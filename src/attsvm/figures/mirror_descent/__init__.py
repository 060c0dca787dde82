"""Figures of: Optimizing Attention with Mirror Descent."""

from attsvm.figures.mirror_descent import (  # noqa: F401, I001 (loading registers, in the order of the page)
    own_program,
    rates,
    joint,
    sentiment,
    vision,
)
