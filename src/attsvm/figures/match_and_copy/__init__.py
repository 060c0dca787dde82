"""Figures of: match and copy under squared loss."""

from attsvm.figures.match_and_copy import (  # noqa: F401 (loading registers, in the order of the page)
    past_the_last_digit,
)
