"""The figure of even pairs."""

import pytest

from attsvm.figures.even_pairs.two_phases import experiment


@pytest.fixture(scope="module")
def arrays():
    return experiment(steps=600)


def test_the_first_phase_and_the_accuracy_agree(arrays):
    assert {check.agreement for check in experiment.checks(arrays)[:3]} == {"agrees"}


def test_a_head_that_grows_linearly_everywhere_is_seen(arrays):
    wrong = arrays | {"exponents": arrays["exponents"] * 0 + 1}
    assert "differs, not explained" in {check.agreement for check in experiment.checks(wrong)}


def test_every_panel_names_its_axes_and_its_curves(arrays):
    axes = experiment.draw(arrays).axes
    assert all(ax.get_ylabel() and ax.texts for ax in axes)
