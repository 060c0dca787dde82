"""The figures of match and copy, sparse signals and one location."""

import numpy as np
import pytest

import attsvm as att
from attsvm.claims.sparse_signals import prompt
from attsvm.figures.match_and_copy import past_the_last_digit
from attsvm.figures.one_location import where_descent_ends
from attsvm.figures.sparse_signals import capacity, two_steps


@pytest.fixture(scope="module")
def computed():
    return {
        "copy": (past_the_last_digit.experiment, past_the_last_digit.experiment(runs=3, steps=3_000)),
        "location": (where_descent_ends.experiment, where_descent_ends.experiment(runs=3, steps=300)),
        "signals": (two_steps.experiment, two_steps.experiment(runs=2, d=20)),
        "capacity": (capacity.experiment, capacity.experiment()),
    }


@pytest.mark.parametrize("name", ["copy", "location", "signals", "capacity"])
def test_every_panel_names_its_axes(name, computed):
    figure, arrays = computed[name]
    assert all(ax.get_title() and ax.get_xlabel() for ax in figure.draw(arrays).axes)


@pytest.mark.parametrize("name", ["copy", "signals", "capacity"])
def test_numbers_agree(name, computed):
    figure, arrays = computed[name]
    assert {check.agreement for check in figure.checks(arrays)} == {"agrees"}


def test_margins_that_grow_like_log_t_are_seen(computed):
    figure, arrays = computed["copy"]
    wrong = arrays | {"margin_plain": 2 * arrays["margin_plain"]}
    assert "differs, not explained" in {check.agreement for check in figure.checks(wrong)}


def test_a_capacity_five_percent_off_is_seen(computed):
    figure, arrays = computed["capacity"]
    wrong = arrays | {"place": 1.05 * arrays["place"]}
    assert "differs, not explained" in {check.agreement for check in figure.checks(wrong)}


def test_the_second_step_of_joint_descent_is_the_papers_formula():
    tokens, _ = att.datasets.sparse_signals(60, 4, 8, seed=0)
    np.testing.assert_allclose(two_steps.two_steps(tokens), prompt(tokens), atol=1e-10)


def test_on_the_manifold_both_descents_take_the_same_steps():
    k = np.array([[0.3, 0.0, np.sqrt(1 - 0.09), 0.0]])
    v = np.array([[0.0, -0.2, 0.0, np.sqrt(1 - 0.04)]])
    risk = where_descent_ends.RISK
    seen, _ = where_descent_ends.on_spheres(risk, k, v, 0.01, 200)
    alone = where_descent_ends.on_manifold(risk, np.array([0.3, -0.2]), 0.01, 200)
    np.testing.assert_allclose(seen[0, :, [0, 3]].T, alone, atol=1e-9)
    assert np.abs(alone[-1] - alone[0]).min() > 0.01
