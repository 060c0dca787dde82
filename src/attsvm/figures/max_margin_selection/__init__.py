"""Figures of: Max-Margin Token Selection in Attention Mechanism."""

from attsvm.figures.max_margin_selection import (  # noqa: F401, I001 (loading registers, in the order of the page)
    single_input,
    several_inputs,
    losses,
    joint,
    random_data,
    vision_sparsity,
)
