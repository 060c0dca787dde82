"""Figures of: Training Transformers for Next-token Prediction."""

from attsvm.figures.figure import Paper
from attsvm.figures.next_token import collapse, extended_order, soft_composition, two_stages

PAPER = Paper(
    "next_token",
    "Training Transformers for Next-token Prediction",
    "Huang, Liang, Yang 2024, arXiv 2409.17335; Li et al. 2024, arXiv 2403.08081; "
    "Ildiz et al. 2024, arXiv 2402.13512",
    (two_stages.FIGURE, extended_order.FIGURE, soft_composition.FIGURE, collapse.FIGURE),
)
