"""Figures that nobody has shown before."""

from attsvm.figures.ours import (  # noqa: F401, I001 (loading registers, in the order of the page)
    past_saturation,
    optimizer_norms,
    joint_family,
    fractions,
    real_tokens,
    head_geometry,
    head_ranks,
    language,
    collapse,
    basins,
    factor_times,
)
