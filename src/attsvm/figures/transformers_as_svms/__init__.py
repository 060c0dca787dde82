"""Figures of: Transformers as Support Vector Machines."""

from attsvm.figures.transformers_as_svms import (  # noqa: F401, I001 (loading registers, in the order of the page)
    two_clouds,
    two_fans,
    local_convergence,
    rank,
    where_it_ends,
    relu_head,
    quadratic_head,
)
