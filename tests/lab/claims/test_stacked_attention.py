"""The gradient of several layers of attention, past saturation, against 400 digits."""

import mpmath
import numpy as np
import pytest

import attsvm as att
from attsvm_lab.claims.stacked_attention import forward, gradient, train

ROUNDING = 1e-11
"""Relative: exponents of a few hundred have 14 digits behind the point, of which sums lose some."""


def loss_in_many_digits(W, tokens, v, residual):
    """The mean logistic loss of the first run; W is a list of L nested lists of mpmath numbers."""
    total, numbers = mpmath.mpf(0), lambda row: [mpmath.mpf(float(x)) for x in row]
    for keys, query, label in zip(tokens.keys[0], tokens.queries[0], tokens.labels[0], strict=True):
        inputs = [numbers(x) for x in keys]
        for level, weight in enumerate(W):
            last = level == len(W) - 1
            outputs = []
            for q in [numbers(query)] if last else inputs:
                direction = [mpmath.fdot(row, q) for row in weight]
                odds = [mpmath.exp(mpmath.fdot(x, direction)) for x in inputs]
                mixed = [mpmath.fdot(odds, column) / sum(odds) for column in zip(*inputs, strict=True)]
                outputs.append(
                    [a + b for a, b in zip(mixed, q, strict=True)] if residual and not last else mixed
                )
            inputs = outputs
        margin = mpmath.fdot(numbers(v[0]), inputs[0]) * float(label)
        total += mpmath.log1p(mpmath.exp(-margin))
    return total / len(tokens.labels[0])


def slopes_in_many_digits(W, tokens, v, residual):
    """Minus the derivative of the loss in every entry of W (L, d, d), by central differences."""
    numbers = [[[mpmath.mpf(float(x)) for x in row] for row in weight] for weight in W]
    step, slopes = mpmath.mpf(10) ** -150, np.empty(W.shape, object)
    for level, i, j in np.ndindex(W.shape):
        at = numbers[level][i][j]
        ends = []
        for moved in (at - step, at + step):
            numbers[level][i][j] = moved
            ends.append(loss_in_many_digits(numbers, tokens, v, residual))
        numbers[level][i][j] = at
        slopes[level, i, j] = (ends[0] - ends[1]) / (2 * step)
    return slopes


@pytest.mark.parametrize(("depth", "residual", "size"), [(2, False, 1.0), (2, False, 3e4), (3, True, 3e4)])
def test_the_gradient_of_every_layer_is_that_of_many_digits(depth, residual, size):
    tokens, v = att.datasets.sphere(2, 3, 2, seed=[3])
    W = size * np.random.default_rng(1).standard_normal((1, depth, 2, 2))
    ours = gradient(tokens, v, W, residual)
    with mpmath.workdps(400):
        expected = slopes_in_many_digits(W[0], tokens, v, residual)
        scales = [mpmath.exp(float(log_scale)) for log_scale in ours.log_scale[0]]
        # Relative to all layers: one whose inputs nearly tie is known to rounding of the others only.
        largest = np.abs(expected).max()
        for slopes, mantissa, scale in zip(expected, ours.mantissa[0], scales, strict=True):
            assert np.abs(scale * mantissa - slopes).max() < ROUNDING * largest
        assert np.abs(scales[0] * ours.mantissa[0, 0].T - expected[0]).max() > 0.01 * largest


def test_saturated_queries_with_one_winner_have_one_output():
    keys = np.array([[[[1.0, 0.3], [0.1, 1.0], [0.7, 0.1]]]])
    tokens = att.Tokens(keys, np.ones((1, 1, 2)), np.ones((1, 1)))
    sharp, soft = (forward(tokens, size * np.ones((1, 2, 2, 2))) for size in (2_000.0, 1.0))
    assert (sharp[0].outputs == sharp[0].outputs[:, :, :1]).all() and sharp[1].tied.all()
    assert not (soft[0].outputs == soft[0].outputs[:, :, :1]).all() and not soft[1].tied.all()


def test_a_step_of_all_layers_has_length_one_and_one_of_each_layer_too():
    tokens, v = att.datasets.sphere(4, 4, 8, seed=range(3))
    start = np.random.default_rng(0).standard_normal((3, 2, 8, 8))
    together, apart = (train(tokens, v, start, [1], apart=apart)[:, 0] - start for apart in (False, True))
    np.testing.assert_allclose(np.linalg.norm(together.reshape(3, -1), axis=-1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(apart, axis=(-2, -1)), 1.0, rtol=1e-12)
    assert np.all(np.abs(np.linalg.norm(together, axis=(-2, -1)) - 1) > 0.01)
