"""Sums over examples, in blocks and of very different scale."""

import jax
import numpy as np
import pytest

from attsvm.training import attention, sums
from attsvm.training.attention import Scaled
from attsvm.training.data import Data, arrays
from attsvm.training.losses import logistic
from attsvm.training.prediction_heads import Linear, QuadraticPenalty
from tests.training.test_streaming import tokens_on_disk

ROUNDING = 1e-12  # what 20 steps make of sums in another order
V = np.array([0.5, -1.0, 0.25, 2.0])


def test_chunks_of_very_different_scale_add_up():
    one, tiny = np.ones((2, 2)), np.full((2, 2), 3.0)
    with jax.enable_x64(True):
        near = attention.added(Scaled(one, -5_000.0), Scaled(tiny, -5_001.0))
        nothing = attention.added(Scaled(0 * one, 0.0), Scaled(tiny, -5_000.0))
    np.testing.assert_allclose(near.mantissa, 1 + 3 * np.exp(-1.0), rtol=1e-14)
    assert (float(near.log_scale), float(nothing.log_scale)) == (-5_000, -5_000)  # a zero has no scale
    np.testing.assert_array_equal(nothing.mantissa, tiny)


@pytest.mark.parametrize("head", [Linear(V), QuadraticPenalty(V, 0.5)], ids=["linear", "quadratic"])
def test_examples_in_blocks_have_the_sums_of_all_at_once(head, tmp_path):
    _, wide = tokens_on_disk(tmp_path, np.float32)
    asked, W = sums.Needed(slope=True, pull=True, loss=True, excess=isinstance(head, Linear)), np.ones((4, 2))

    def see(data, block):
        sum_up = jax.jit(lambda data: sums.over_examples(asked, logistic, data, W, head, None, block))
        found = sum_up(data)
        return np.concatenate([np.ravel(x) for x in jax.tree.leaves(found)])

    with jax.enable_x64(True):
        data = jax.device_put(arrays(wide))
        whole, blocks, one_less = see(data, None), see(data, 5), see(jax.tree.map(lambda x: x[:36], data), 5)
    np.testing.assert_allclose(blocks, whole, rtol=ROUNDING)
    assert np.abs(one_less - whole).max() > 1e-3


def test_half_precision_is_widened_block_by_block():
    keys = np.zeros((64, 64, 32), np.uint16)  # the bits of bfloat16

    def held(block):
        def see(keys, queries):
            data = Data(keys, queries, queries[:, 0], None, None)
            asked = sums.Needed(slope=True)
            return sums.over_examples(
                asked, logistic, data, np.ones((32, 1)), Linear(np.ones(32)), None, block
            )

        with (
            jax.enable_x64(True),
            jax.default_device(jax.devices("cpu")[0]),
        ):  # a GPU lays out memory its own way
            return jax.jit(see).lower(keys, np.ones((64, 1))).compile().memory_analysis().temp_size_in_bytes

    assert held(2) < keys.nbytes < held(None)
