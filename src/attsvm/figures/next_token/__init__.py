"""Figures of: Training Transformers for Next-token Prediction."""

from attsvm.figures.next_token import (  # noqa: F401, I001 (loading registers, in the order of the page)
    two_stages,
    extended_order,
    soft_composition,
    collapse,
)
