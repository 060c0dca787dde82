"""The figure of GD, normalised GD and Polyak's step."""

import numpy as np
import pytest

from attsvm import datasets
from attsvm.figures.fast_rates.three_methods import METHODS, experiment, in_span
from attsvm.program.max_margin import max_margin


@pytest.fixture(scope="module")
def arrays():
    return experiment(runs=2)


def test_what_no_data_can_change_agrees_with_the_reference_run(arrays):
    assert "differs, not explained" not in {check.agreement for check in experiment.checks(arrays)}


def test_plain_steps_under_the_name_of_normalised_ones_are_seen(arrays):
    plain = {f"{what}_normalised GD": arrays[f"{what}_GD"] for what in ("steps", "away", "norm", "residual")}
    assert "differs, not explained" in {check.agreement for check in experiment.checks(arrays | plain)}


def test_the_program_is_the_same_in_the_coordinates_of_its_tokens():
    tokens, v = datasets.orthogonal(4, 3, 30, seed=range(2))
    small, head = in_span(tokens, v)
    selected = (tokens.values @ v[:, None, :, None])[..., 0] * tokens.labels[..., None] > 0.5
    assert small.keys.shape[-1] == 12
    np.testing.assert_allclose(max_margin(small, selected).margin, max_margin(tokens, selected).margin)
    np.testing.assert_allclose(np.linalg.norm(head, axis=-1), np.linalg.norm(v, axis=-1))


def test_every_panel_names_its_axes_and_its_curves(arrays):
    axes = experiment.draw(arrays).axes
    assert all(ax.get_ylabel() for ax in axes)
    assert all({text.get_text() for text in ax.texts} == set(METHODS) for ax in axes)
