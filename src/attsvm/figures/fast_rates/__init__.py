"""Figures of: Implicit Bias and Fast Convergence Rates for Self-attention."""

from attsvm.figures.figure import Paper

PAPER = Paper(
    "fast_rates",
    "Implicit Bias and Fast Convergence Rates for Self-attention",
    "Vasudeva, Deora, Thrampoulidis; 2024, arXiv 2402.05738",
    (),
)
