"""Figures of: Optimizing Attention with Mirror Descent."""

from attsvm.figures.figure import Paper

PAPER = Paper(
    "mirror_descent",
    "Optimizing Attention with Mirror Descent",
    "Julistiono, Tarzanagh, Azizan; 2024, arXiv 2410.14581",
    (),
)
