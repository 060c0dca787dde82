"""Sums over examples in chunks: half precision that stays so, and data that the device cannot hold."""

import jax
import numpy as np
import pytest
from ml_dtypes import bfloat16

from attsvm import Interrupted, Tokens, frobenius
from attsvm.training import attention, streaming, sums
from attsvm.training.attention import Scaled
from attsvm.training.heads import Linear
from attsvm.training.init import gaussian
from attsvm.training.losses import logistic
from attsvm.training.optimizers import polyak, steepest
from attsvm.training.train import train

ROUNDING = 1e-12  # what 20 steps make of sums in another order
V = np.array([0.5, -1.0, 0.25, 2.0])


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 5 examples in the device, of 16 from the file: neither divides 37."""
    monkeypatch.setattr(attention, "KEPT", 0)  # small files would be read into memory
    monkeypatch.setattr("attsvm.training.train.WIDENED", 5 * 3 * 4)
    monkeypatch.setattr(streaming, "READ", 16 * 3 * 4 * 4)


def tokens_on_disk(tmp_path, dtype):
    rng = np.random.default_rng(0)
    keys = rng.standard_normal((37, 3, 4)).astype(dtype)
    file = np.memmap(tmp_path / "keys", dtype, "w+", shape=keys.shape)
    file[:] = keys
    file.flush()
    queries, labels = rng.standard_normal((37, 2)), np.where(rng.random(37) < 0.5, -1, 1)
    mask = rng.random((37, 3)) < 0.8
    mask[:, 0] = True
    mapped = np.memmap(tmp_path / "keys", dtype, "r", shape=keys.shape)
    return Tokens(mapped, queries, labels, mask), Tokens(keys.astype(float), queries, labels, mask)


def run(tokens, **options):
    given = {"optimizer": steepest(frobenius, 0.1), "steps": 20, "record": 4} | options
    return train(tokens, Linear(V), **given)


def assert_close(path, other):
    np.testing.assert_array_equal(path.index, other.index)
    for name in ("W", "loss", "log_excess"):
        np.testing.assert_allclose(getattr(path, name), getattr(other, name), rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, bfloat16], ids=["float32", "float16", "bfloat16"])
def test_narrow_keys_train_as_the_numbers_they_are(dtype, tmp_path, small_chunks, monkeypatch):
    stored, wide = tokens_on_disk(tmp_path, dtype)
    expected = run(wide)
    assert attention.arrays(stored).keys.dtype == dtype  # not widened
    assert_close(run(stored), expected)
    monkeypatch.setattr(streaming, "SHARE", 0.0)
    streamed = run(stored)
    assert_close(streamed, expected)
    assert stored.keys.passes >= 20
    np.testing.assert_array_equal(streamed.selected, expected.selected)


@pytest.mark.parametrize(
    "options",
    # Polyak's steps are long here, and a rounding error grows tenfold with each.
    [
        {"optimizer": polyak(0.1), "steps": 4},
        {"train_head": steepest(frobenius, 0.1)},
        {"init": gaussian(range(2))},
    ],
    ids=["polyak", "trained head", "runs"],
)
def test_what_is_streamed_is_what_fits(options, tmp_path, small_chunks, monkeypatch):
    stored, wide = tokens_on_disk(tmp_path, np.float32)
    expected = run(wide, **options)
    monkeypatch.setattr(streaming, "SHARE", 0.0)
    assert_close(run(stored, **options), expected)


def test_a_streamed_run_goes_on_after_ctrl_c(tmp_path, small_chunks, monkeypatch):
    stored, _ = tokens_on_disk(tmp_path, np.float32)
    monkeypatch.setattr(streaming, "SHARE", 0.0)
    whole, count = run(stored), iter(range(100))
    took = streaming.Segments.took

    def pressing(watch, steps):
        took(watch, steps)
        watch.pressed |= next(count) == 8

    monkeypatch.setattr(streaming.Segments, "took", pressing)
    with pytest.raises(Interrupted) as interrupted:
        run(stored)
    path = run(stored, resume=interrupted.value.path)
    np.testing.assert_array_equal(path.W, whole.W)


def test_chunks_of_very_different_scale_add_up():
    one, tiny = np.ones((2, 2)), np.full((2, 2), 3.0)
    with jax.enable_x64(True):
        near = attention.added(Scaled(one, -5_000.0), Scaled(tiny, -5_001.0))
        nothing = attention.added(Scaled(0 * one, 0.0), Scaled(tiny, -5_000.0))
    np.testing.assert_allclose(near.mantissa, 1 + 3 * np.exp(-1.0), rtol=1e-14)
    assert (float(near.log_scale), float(nothing.log_scale)) == (-5_000, -5_000)  # a zero has no scale
    np.testing.assert_array_equal(nothing.mantissa, tiny)


def test_a_chunk_counted_twice_would_be_seen(tmp_path, small_chunks):
    _, wide = tokens_on_disk(tmp_path, np.float32)
    with jax.enable_x64(True):
        data, W = attention.as_data(wide), jax.device_put(np.ones((4, 2)))
        asked = sums.Asked(loss=True)
        whole, chunked = (
            float(sums.over_examples(asked, logistic, data, W, Linear(V), None, chunk).loss)
            for chunk in (None, 5)
        )
        twice = data._replace(share=jax.device_put(np.full(37, 1 / 35)))
        wrong = float(sums.over_examples(asked, logistic, twice, W, Linear(V), None, 5).loss)
    assert chunked == pytest.approx(whole, rel=1e-14)
    assert abs(wrong - whole) > 1e-3
