"""Figures of: a signal in few of many tokens."""

from attsvm.figures.sparse_signals import (  # noqa: F401 (loading registers, in the order of the page)
    capacity,
    two_steps,
)
