"""Figures of: Optimizing Attention with Mirror Descent."""

from attsvm.figures.figure import Paper
from attsvm.figures.mirror_descent import joint, own_program, rates, sentiment, vision

PAPER = Paper(
    "mirror_descent",
    "Optimizing Attention with Mirror Descent",
    "Julistiono, Tarzanagh, Azizan; 2024, arXiv 2410.14581",
    (own_program.FIGURE, rates.FIGURE, joint.FIGURE, sentiment.FIGURE, vision.FIGURE),
)
