"""Figures of: Max-Margin Token Selection in Attention Mechanism."""

from attsvm.figures.figure import Paper
from attsvm.figures.max_margin_selection import published_numbers, single_input

PAPER = Paper(
    "max_margin_selection",
    "Max-Margin Token Selection in Attention Mechanism",
    "Tarzanagh, Li, Zhang, Oymak; NeurIPS 2023",
    (single_input.FIGURE, published_numbers.FIGURE),
)
