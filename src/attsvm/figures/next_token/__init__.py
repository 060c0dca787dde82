"""Figures of: Training Transformers for Next-token Prediction."""

from attsvm.figures.figure import Paper
from attsvm.figures.next_token import attention

PAPER = Paper(
    "next_token",
    "Training Transformers for Next-token Prediction",
    "Huang, Liang, Yang 2024, arXiv 2409.17335; Ildiz et al. 2024, arXiv 2402.13512",
    (attention.FIGURE,),
)
