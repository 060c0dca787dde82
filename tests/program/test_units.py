"""Units: rows are scaled by powers of two, and W and the multipliers come back in the units of the tokens."""

import numpy as np
import pytest

from attsvm.data.tokens import Tokens
from attsvm.program.constraints import Constraints
from attsvm.program.units import normalised

pytestmark = pytest.mark.quick


def program(size, slack=None):
    rng = np.random.default_rng(0)
    keys = rng.standard_normal((3, 4, 2)) * np.array([1.0, size, 1 / size])[:, None, None]
    return Constraints.of(Tokens(keys), [0, 1, 2], 1.0, None if slack is None else np.full(3, slack))


@pytest.mark.parametrize("size", [1.0, 1e9, 1e-150])
@pytest.mark.parametrize("slack", [None, 1e-20, 1.0])
def test_what_is_restored_and_scaled_again_is_the_same_to_the_last_bit(size, slack):
    rows, rng = program(size, slack), np.random.default_rng(1)
    W, multipliers = rng.standard_normal((2, 1)), rng.random(rows.active.shape) * rows.active
    there_W, there_multipliers, rounded = rows.units.restored(W, multipliers)
    back_W, back, power = rows.units.scaled(there_W, there_multipliers)
    assert not rounded
    assert np.array_equal(back_W, W)
    assert np.array_equal(np.ldexp(back, power), multipliers)
    margins = np.ldexp(rows.margins(W), (rows.units.exponent + rows.units.powers[0])[:, None])
    np.testing.assert_array_equal(rows.token_margins(there_W), margins)


def test_a_weight_that_float64_must_round_in_the_units_of_the_tokens_is_reported():
    rows = program(1.0)
    scaled = Constraints.of(Tokens(np.ldexp(rows.keys, 900)), [0, 1, 2])
    W, multipliers = np.array([[1.0], [1 / 3 * 2.0**-150]]), np.zeros(rows.active.shape)
    assert not rows.units.restored(W, multipliers)[2]
    assert scaled.units.restored(W, multipliers)[2]


def test_a_proof_that_there_is_no_weight_stays_in_the_units_of_the_rows():
    rows = program(1e9)
    multipliers = rows.active * 1.0
    assert np.array_equal(rows.units.restored(np.zeros((2, 1)), multipliers, separable=False)[1], multipliers)
    assert not np.array_equal(rows.units.restored(np.zeros((2, 1)), multipliers)[1], multipliers)


def test_multipliers_are_brought_near_one_whatever_their_size():
    x, size = normalised(np.array([[3e-300, 0.0], [1e-310, 0.0]]), np.array([1000, 900]))
    assert 0.5 <= np.abs(x).max() < 1
    assert np.ldexp(x[0, 0], int(size) - 1000) == 3e-300
