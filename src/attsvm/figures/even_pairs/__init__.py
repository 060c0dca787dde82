"""Figures of: How Transformers Learn Regular Language Recognition."""

from attsvm.figures.even_pairs import (  # noqa: F401 (loading registers, in the order of the page)
    two_phases,
)
