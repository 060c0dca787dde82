"""Numbers of twice the precision, against 60 digits."""

import mpmath
import numpy as np
import pytest

from attsvm.numbers.doubled import ROUNDING, Doubled, exact_product, exact_sum
from attsvm.program.extended_precision import balls
from attsvm_lab.programs.balls import power

mp = mpmath.mp.clone()
mp.dps = 60
rng = np.random.default_rng(0)

ENTRIES = 40 * ROUNDING
"""A few operations, or a sum of forty terms."""


def draw(*shape, positive=False):
    high = rng.standard_normal(shape)
    return Doubled(np.abs(high) if positive else high) + 1e-17 * rng.standard_normal(shape)


def exact(x):
    return np.vectorize(lambda a, b: mp.mpf(a) + mp.mpf(b), otypes=[object])(x.hi, x.lo)


def error(x, expected, size=1):
    """Largest error relative to a size."""
    return float(max(abs(a) for a in ((exact(x) - expected) / size).ravel()))


OPERATIONS = {
    "sum": (lambda a, b: a + b, lambda a, b: abs(a) + abs(b)),
    "difference": (lambda a, b: a - b, lambda a, b: abs(a) + abs(b)),
    "product": (lambda a, b: a * b, lambda a, b: abs(a * b)),
    "quotient": (lambda a, b: a / b, lambda a, b: abs(a / b)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_has_thirty_digits(name):
    operate, size = OPERATIONS[name]
    a, b = draw(50), draw(50)
    expected, scale = operate(exact(a), exact(b)), size(exact(a), exact(b))
    assert error(operate(a, b), expected, scale) <= ENTRIES
    assert error(Doubled(operate(a.hi, b.hi)), expected, scale) > 1e5 * ENTRIES  # float64 has sixteen


def test_a_float_array_may_stand_on_either_side():
    a, b = draw(20), rng.standard_normal(20)
    assert error(b - a, b - exact(a), abs(exact(a)) + np.abs(b)) <= ENTRIES
    assert error(b / a, b / exact(a), abs(b / exact(a))) <= ENTRIES
    assert error(2.0 * a + b, 2 * exact(a) + b, abs(exact(a)) + np.abs(b)) <= ENTRIES


def test_sums_and_products_of_floats_have_no_error_at_all():
    a, b = rng.standard_normal((2, 100)) * 10.0 ** rng.uniform(-9, 9, (2, 100))
    for (high, low), expected in (
        (exact_sum(a, b), [mp.mpf(x) + mp.mpf(y) for x, y in zip(a, b, strict=True)]),
        (exact_product(a, b), [mp.mpf(x) * mp.mpf(y) for x, y in zip(a, b, strict=True)]),
    ):
        assert all(mp.mpf(x) + mp.mpf(y) == z for x, y, z in zip(high, low, expected, strict=True))


def test_matrices_multiply_and_sum_with_thirty_digits():
    A, B, x = draw(7, 40), draw(40, 5), draw(40)
    assert error(A @ B, exact(A) @ exact(B), abs(exact(A)) @ abs(exact(B))) <= ENTRIES
    assert error(A @ x, exact(A) @ exact(x), abs(exact(A)) @ abs(exact(x))) <= ENTRIES
    assert error(A.sum(0), exact(A).sum(0), abs(exact(A)).sum(0)) <= ENTRIES


def test_cancellation_is_seen_where_float64_sees_nothing():
    a = Doubled(np.array([1.0, 1e-20, -1.0]))
    assert a.sum().hi == 1e-20
    assert np.array([1.0, 1e-20, -1.0]).sum() == 0


def test_roots_and_powers():
    a = draw(30, positive=True)
    roots = np.vectorize(mp.sqrt, otypes=[object])(exact(a))
    assert error(a.sqrt(), roots, roots) <= ENTRIES
    for exponent in (0.3, 2.0, 2.5, 40.0):
        powers = np.vectorize(lambda x, p=exponent: mp.power(x, p), otypes=[object])(exact(a))
        assert error(power(a, exponent), powers, powers) <= 100 * ENTRIES


def test_systems_are_solved_that_float64_cannot_tell_from_singular():
    hilbert = Doubled(np.ones((9, 9))) / (1.0 + np.arange(9.0)[:, None] + np.arange(9.0))
    right = hilbert @ Doubled(np.ones(9))
    assert np.abs(balls.solve_positive(hilbert, right).hi - 1).max() <= 1e-14
    assert np.abs(balls.solve_positive(hilbert.hi, right.hi) - 1).max() > 1e-7


@pytest.mark.parametrize("kind", [Doubled, np.asarray], ids=["doubled", "float64"])
def test_a_matrix_that_is_not_positive_is_refused(kind):
    with pytest.raises(np.linalg.LinAlgError, match="not positive"):
        balls.solve_positive(kind(np.diag([1.0, -1.0])), kind(np.ones(2)))
