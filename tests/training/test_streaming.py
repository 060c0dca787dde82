"""Data that the device cannot hold: half precision that stays so, and sums over examples read in chunks."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

from attsvm import Interrupted, Tokens, frobenius
from attsvm.training import streaming
from attsvm.training.data import arrays
from attsvm.training.init import gaussian
from attsvm.training.optimizers import polyak, steepest
from attsvm.training.prediction_heads import Linear
from attsvm.training.train import train

ROUNDING = 1e-12  # what 20 steps make of sums in another order
V = np.array([0.5, -1.0, 0.25, 2.0])


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 5 examples in the device, of 16 from the file: neither divides 37."""
    monkeypatch.setattr("attsvm.training.inputs.COPY_LIMIT", 0)  # small files would be read into memory
    monkeypatch.setattr("attsvm.training.layout.CACHED", 5 * 3 * 4)
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
    for name in ("W", "loss", "log_excess", *(("v",) if other.v is not None else ())):
        np.testing.assert_allclose(getattr(path, name), getattr(other, name), rtol=ROUNDING, atol=ROUNDING)


@pytest.mark.parametrize("dtype", [np.float32, bfloat16], ids=["float32", "bfloat16"])
def test_narrow_keys_train_as_the_numbers_they_are(dtype, tmp_path, small_chunks, monkeypatch):
    stored, wide = tokens_on_disk(tmp_path, dtype)
    expected = run(wide)
    assert arrays(stored).keys.nbytes == stored.keys.array.nbytes  # not widened
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
        {"optimizer": polyak(0.1), "steps": 4, "train_head": steepest(frobenius, 0.1)},
        {"init": gaussian(range(2))},
    ],
    ids=["polyak and a trained head", "runs"],
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
        watch.by_hand |= next(count) == 8

    monkeypatch.setattr(streaming.Segments, "took", pressing)
    with pytest.raises(Interrupted) as interrupted:
        run(stored)
    path = run(stored, resume=interrupted.value.path)
    np.testing.assert_array_equal(path.W, whole.W)
