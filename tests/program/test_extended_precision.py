"""Extended precision: the central path in doubled numbers, rounding that keeps a certificate."""

import mpmath
import numpy as np
import pytest

from attsvm.data.tokens import Tokens
from attsvm.norms import frobenius
from attsvm.numbers.doubled import Doubled
from attsvm.program.certificate import certify_scaled
from attsvm.program.constraints import Constraints
from attsvm.program.extended_precision import pool
from attsvm.program.extended_precision.pool import DoubledRows
from attsvm.program.extended_precision.route import solve_in_extended_precision
from attsvm.program.max_margin import max_margin
from tests.program import conftest

mp = mpmath.mp.clone()
mp.dps = 40


# ---------------------------------------------------------------------- answers


@pytest.mark.parametrize("build", [conftest.tall, conftest.prompt, conftest.tied], ids=conftest.name)
def test_it_agrees_with_the_fast_way_where_that_is_exact(build):
    instance = build()
    rows = Constraints.of(instance.tokens, instance.selected)
    answer = solve_in_extended_precision(rows)
    fast = max_margin(instance.tokens, instance.selected)
    assert certify_scaled(rows, frobenius, answer.W, answer.multipliers).worst <= 1e-9
    assert frobenius.value(answer.W) == pytest.approx(frobenius.value(fast.W), rel=2e-8)


@pytest.mark.parametrize("slack", [0.03, 1.0, 50.0])
@pytest.mark.parametrize("build", [conftest.everything, conftest.opposite_prompt], ids=conftest.name)
def test_soft_margins_agree_with_the_fast_way(build, slack):
    instance = build()
    each = np.full(instance.tokens.n, slack)
    rows = Constraints.of(instance.tokens, instance.selected, instance.required, each)
    answer = solve_in_extended_precision(rows)
    fast = max_margin(instance.tokens, instance.selected, required=instance.required, slack=slack)
    W, *_ = rows.units.restored(answer.W, answer.multipliers)
    assert certify_scaled(rows, frobenius, answer.W, answer.multipliers).worst <= 1e-9
    assert np.allclose(W, fast.W, atol=1e-4 * np.abs(fast.W).max())


@pytest.mark.parametrize("angle", [1e-3, 1e-6, 1e-9])
def test_two_nearly_opposite_rows_have_the_margin_of_half_their_angle(angle):
    with mp.workdps(40):
        rows = [[mp.cos(mp.mpf(angle)), mp.sin(mp.mpf(angle))], [mp.mpf(-1), mp.mpf(0)]]
    keys = np.zeros((2, 2, 2))
    keys[:, 0] = np.array(rows, float)
    solution = max_margin(Tokens(keys), [0, 0])
    (a, b), (c, d) = keys[:, 0].tolist()
    det = mp.mpf(a) * d - mp.mpf(b) * c  # the rows as stored: W is where both margins are one
    exact = [float((d - b) / det), float((a - c) / det)]
    assert solution.certified
    assert np.allclose(solution.W[:, 0], exact, rtol=1e-7)


def test_a_contradiction_has_no_answer(conflict):
    rows = Constraints.of(conflict.tokens, conflict.selected, conflict.required)
    assert solve_in_extended_precision(rows) is None


def test_rows_that_were_left_out_join_when_they_are_violated():
    tokens, selected = conftest.planted(300, 6, 3, e=1, seed=3)
    rows = Constraints.of(tokens, selected)
    wrong = -max_margin(tokens, selected).W  # its least margins are those of the easiest rows
    answer = solve_in_extended_precision(rows, near=wrong)
    assert certify_scaled(rows, frobenius, answer.W, answer.multipliers).worst <= 1e-9


# ---------------------------------------------------------------------- rounding


def test_a_kind_factor_saves_the_margins_that_rounding_loses():
    kind, plain = [], []
    for seed in range(6):
        random = np.random.default_rng(seed)
        A = random.standard_normal((3, 3))
        A[2] = -A[0] - A[1] + 1e-9 * random.standard_normal(3)
        W = Doubled(*(np.array([getattr(x, part) for x in _solved(A)]) for part in ("real", "imag")))
        kind.append(_shortfall(A, pool.rounded_weight(W, _pool(A))))
        plain.append(_shortfall(A, W.hi))
    assert max(kind) <= 5e-9
    assert np.median(plain) > 2e-8


def _pool(A):
    ones = np.ones(len(A))
    places = np.arange(len(A))
    return DoubledRows(Doubled(A), ones, ones, ones < 0, places, places, np.zeros(len(A), int), 0)


def test_where_no_factor_has_a_loss_the_numbers_are_rounded_as_they_are():
    numbers, bad = np.array([1.0, 2.0]), np.array([np.nan, 0.5])
    scaled = lambda factor: np.outer(1.0 + factor, numbers)  # noqa: E731
    none = pool._least_loss(lambda factor: (np.full(len(factor), np.nan), scaled(factor)), 1)
    some = pool._least_loss(lambda factor: (np.resize(bad, len(factor)), scaled(factor)), 1)
    assert np.array_equal(none, numbers)
    assert not np.array_equal(some, numbers)


def _solved(A):
    """A⁻¹ 1 in 40 digits, each entry as two float64 in a complex number."""
    found = mp.lu_solve(mp.matrix(A.tolist()), mp.matrix([1] * len(A)))
    return [complex(float(x), float(x - float(x))) for x in found]


def _shortfall(A, w):
    return float(
        max(1 - sum(mp.mpf(a) * mp.mpf(x) for a, x in zip(row, w, strict=True)) for row in A.tolist())
    )
