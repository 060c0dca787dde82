"""Figures of: Attention Sinks Are Provably Necessary in Softmax Transformers."""

from attsvm.figures.sinks import (  # noqa: F401 (loading registers, in the order of the page)
    trigger,
)
