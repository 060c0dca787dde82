"""Barriers of unit balls: their derivatives, and where they end."""

import numpy as np
import pytest

from attsvm.norms import Entrywise, frobenius, l1, linf, nuclear, spectral
from attsvm.numbers.doubled import Doubled
from attsvm.program.extended_precision.balls import Bowl
from attsvm_lab.programs.balls import unit_ball

NORMS = [l1, linf, frobenius, nuclear, spectral, Entrywise(1.5), Entrywise(3), Entrywise(1.01)]
BALLS = {str(norm): unit_ball(norm, (2, 3)) for norm in NORMS} | {"bowl": Bowl(6, 1.0)}


@pytest.mark.parametrize("name", BALLS)
def test_the_hessian_is_the_derivative_of_the_gradient(name):
    ball = BALLS[name]
    x = 0.1 * np.random.default_rng(0).standard_normal(6)
    point = np.append(x, ball.heights(x))
    assert ball.inside(point)
    step = 1e-9
    for column, unit in zip(ball.hessian(Doubled(point)).hi, np.eye(len(point)), strict=True):
        up, down = (ball.gradient(Doubled(point) + sign * step * unit) for sign in (1.0, -1.0))
        assert np.allclose((up - down).hi / (2 * step), column, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_ball_ends_where_its_norm_is_one(norm):
    ball = unit_ball(norm, (2, 3))
    W = np.random.default_rng(1).standard_normal((2, 3))
    W /= norm.value(W)
    inside, outside = ((1 - 1e-6) * W).ravel(), ((1 + 1e-6) * W).ravel()
    assert ball.inside(np.append(inside, ball.heights(inside)))
    assert not ball.inside(np.append(outside, ball.heights(outside)))
