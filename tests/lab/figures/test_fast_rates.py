"""The figure of GD, normalised GD and Polyak's step."""

import numpy as np

from attsvm import datasets
from attsvm.program.max_margin import max_margin
from attsvm_lab.figures.fast_rates.three_methods import in_span


def test_the_program_is_the_same_in_the_coordinates_of_its_tokens():
    tokens, v = datasets.orthogonal(4, 3, 30, seed=range(2))
    small, head = in_span(tokens, v)
    selected = (tokens.values @ v[:, None, :, None])[..., 0] * tokens.labels[..., None] > 0.5
    assert small.keys.shape[-1] == 12
    np.testing.assert_allclose(max_margin(small, selected).margin, max_margin(tokens, selected).margin)
    np.testing.assert_allclose(np.linalg.norm(head, axis=-1), np.linalg.norm(v, axis=-1))
