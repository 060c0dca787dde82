"""Figures of: Implicit Bias and Fast Convergence Rates for Self-attention."""

from attsvm.figures.fast_rates import (  # noqa: F401 (loading registers, in the order of the page)
    three_methods,
)
