"""How a run leaves a stop of low rank: the power and the steps, predicted by the multipliers at the stop."""

import numpy as np
import pytest

import attsvm as att
from attsvm_lab.programs import leaving_exponent, steps_to_leave
from tests.comparison.test_kkt import EXPONENT, ROUNDING, STEPS, length, rank_one, trained

ALONG = 0.02
"""The second singular direction of W still turns to that of the pull."""


@pytest.fixture(scope="module")
def waiting():
    """Gradient descent on K and Q that stands beside a stop of rank one."""
    records = np.arange(0, STEPS + 1, 200)
    return trained(410, att.frobenius, att.KeyQuery(), init=rank_one(1e-7), record=records)


def test_a_stop_is_left_with_the_predicted_exponent(waiting):
    run, v = waiting
    point = att.kkt_point(run, v)
    late = run.index >= 4_000
    shares = point.singular_values[late, 1] / point.singular_values[late, 0]
    observed = np.polyfit(np.log(length(run)[late]), np.log(shares), 1)[0]
    exponent = leaving_exponent(point)
    assert observed == pytest.approx(exponent, rel=EXPONENT)
    waits = run.index[-1] * (shares[-1] ** (-1 / exponent) - 1)
    assert steps_to_leave(run, point) == pytest.approx(waits, rel=ALONG)
    wrong = att.kkt_point(run.changed(tokens=att.datasets.sphere(4, 4, 8, seed=411)[0]), v)
    assert abs(observed - leaving_exponent(wrong)) > 0.5


def test_a_stop_of_exactly_one_column_is_never_left():
    run, v = trained(410, att.frobenius, att.KeyQuery(), init=rank_one(0.0), count=5_000)
    point = att.kkt_point(run, v)
    assert (point.status, point.rank) == ("stop", 1)
    assert steps_to_leave(run, point) > 1e9


def near_one_axis(factors, axis, noise):
    """Factors with one entry of 0.3, and little positive noise in all others."""
    rng = np.random.default_rng(axis)
    start = {}
    for name in att.Diagonal(factors).names:
        start[name] = noise * (1 + rng.random(8))
        start[name][axis] = 0.3
    return start


@pytest.mark.parametrize(("factors", "noise"), [(2, 1e-7), (3, 1e-4)])
def test_a_stop_of_diagonals_is_left_with_the_predicted_exponent(factors, noise):
    tokens, v = att.datasets.sphere(2, 4, 8, seed=0)
    weight, steps = att.Diagonal(factors), att.Entrywise(factors)
    run = att.train(
        tokens,
        att.Linear(v),
        weight=weight,
        optimizer=att.steepest(steps, 0.003),
        steps=STEPS,
        init=near_one_axis(factors, 2, noise),
        record=np.arange(0, STEPS + 1, 200),
    )
    point = att.kkt_point(run, v, steps=steps, weight=weight)
    assert (point.status, point.rank, point.norm) == ("stop", 1, att.l1)
    # L factors grow by L ((σ/s)^(1/(L − 1)) − 1), the root of Π (1 + N/p)^(1 − 1/p) = σ/s
    assert leaving_exponent(point) == pytest.approx(factors * (point.pull ** (1 / (factors - 1)) - 1))
    late, entries = run.index >= 5_000, np.abs(np.diagonal(run.W, axis1=1, axis2=2))
    shares = np.sort(entries[late], axis=1)[:, -2] / entries[late].max(1)
    observed = np.polyfit(np.log(0.003 * run.index[late] + 0.3), np.log(shares), 1)[0]
    assert observed == pytest.approx(leaving_exponent(point), rel=EXPONENT)
    assert point.balance < 1e-6
    waits = run.index[-1] * (shares[-1] ** (-1 / leaving_exponent(point)) - 1)
    assert 0.5 < steps_to_leave(run, point) / waits < 2
    wrong = att.kkt_point(
        run.changed(tokens=att.datasets.sphere(2, 4, 8, seed=1)[0]), v, steps=steps, weight=weight
    )
    assert abs(observed - leaving_exponent(wrong)) > 0.5


def test_two_norms_with_r_of_one_have_the_growth_that_solves_their_equation(waiting):
    run, v = waiting
    point = att.kkt_point(run, v, steps=(att.Schatten(3), att.Schatten(1.5)))
    N = leaving_exponent(point)
    pull = (1 + N / 3) ** (2 / 3) * (1 + N / 1.5) ** (1 / 3)
    assert abs(pull / point.pull - 1) < ROUNDING < 1e-3 < abs(N / (2 * point.pull - 2) - 1)


def test_what_is_at_its_limit_does_not_leave_and_of_other_norms_no_power_is_known():
    run, v = trained(1, att.Schatten(4))
    point = att.kkt_point(run, v, steps=att.Schatten(4))
    assert point.status == "limit" and np.isnan(leaving_exponent(point))
    assert steps_to_leave(run, point) == np.inf
