"""Figures of: Implicit Bias and Fast Convergence Rates for Self-attention."""

from attsvm.figures.fast_rates import three_methods
from attsvm.figures.figure import Paper

PAPER = Paper(
    "fast_rates",
    "Implicit Bias and Fast Convergence Rates for Self-attention",
    "Vasudeva, Deora, Thrampoulidis; 2024, arXiv 2402.05738",
    (three_methods.FIGURE,),
)
