"""The figure of sinks."""

import numpy as np

from attsvm import max_margin
from attsvm_lab import datasets
from attsvm_lab.figures.sinks.trigger import closed_form


def test_the_drawn_lines_are_the_certified_program():
    solution = max_margin(*datasets.trigger_means(16, 6, 6, seed=0))
    assert solution.certified
    np.testing.assert_allclose(solution.W, closed_form(6), atol=1e-7)
