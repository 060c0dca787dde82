"""Figures of: Transformers as Support Vector Machines."""

from attsvm.figures.figure import Paper
from attsvm.figures.transformers_as_svms import (
    local_convergence,
    quadratic_head,
    rank,
    relu_head,
    two_clouds,
    two_fans,
    where_it_ends,
)

PAPER = Paper(
    "transformers_as_svms",
    "Transformers as Support Vector Machines",
    "Tarzanagh, Li, Thrampoulidis, Oymak; 2023, arXiv 2308.16898",
    (
        two_clouds.FIGURE,
        two_fans.FIGURE,
        local_convergence.FIGURE,
        rank.FIGURE,
        where_it_ends.FIGURE,
        relu_head.FIGURE,
        quadratic_head.FIGURE,
    ),
)
