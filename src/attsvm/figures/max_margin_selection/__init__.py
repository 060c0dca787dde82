"""Figures of: Max-Margin Token Selection in Attention Mechanism."""

from attsvm.figures.figure import Paper
from attsvm.figures.max_margin_selection import (
    joint,
    losses,
    random_data,
    several_inputs,
    single_input,
    vision_sparsity,
)

PAPER = Paper(
    "max_margin_selection",
    "Max-Margin Token Selection in Attention Mechanism",
    "Tarzanagh, Li, Zhang, Oymak; NeurIPS 2023",
    (
        single_input.FIGURE,
        several_inputs.FIGURE,
        losses.FIGURE,
        joint.FIGURE,
        random_data.FIGURE,
        vision_sparsity.FIGURE,
    ),
)
