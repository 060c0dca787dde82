"""Keys on a disk, in slices, on a device, in chunks: each home reads and prices them as memory does."""

from functools import partial

import numpy as np
import pytest

from attsvm import NotSeparable, Tokens, best_tokens, frobenius, max_margin, nuclear, scores, separable
from attsvm.numbers.stored import Stored
from tests.numbers.test_stored import Sliced, mapped, numbers
from tests.program.test_working_set import SAME, problem

INDICES = [
    slice(None),
    slice(2, 5),
    np.array([4, 0, 4]),
    np.array([True, False, True, False, False, True]),
    (np.array([5, 1, 5]), np.array([0, 3, 0])),
    (2, 1),
    (np.array([3, 1]), slice(None), 0),
    np.arange(24).reshape(6, 4) % 5 == 0,
    (np.array([3, 1]), np.array([2, 0]), 1),
]


def in_torch(array):
    return pytest.importorskip("torch").from_numpy(np.array(array))


def in_jax(array):
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        return jax.device_put(array)


def chunked(array, chunks=4):
    return pytest.importorskip("dask.array").from_array(array, chunks=(chunks, *array.shape[1:]))


@pytest.fixture(params=["disk", "slices", "torch", "JAX", "chunks"])
def put(request, tmp_path, monkeypatch):
    """Puts an array where it stays. Every array of torch and JAX counts as one on a GPU."""
    devices = ("torch", "jax")
    monkeypatch.setattr("attsvm.numbers.library.on_gpu", lambda x: type(x).__module__.startswith(devices))
    homes = {"disk": partial(mapped, tmp_path), "slices": Sliced, "torch": in_torch, "JAX": in_jax}
    return (homes | {"chunks": chunked})[request.param]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_what_is_elsewhere_is_read_as_numpy_reads_it(put, index):
    for dtype in ("float16", "float32", "float64"):
        array = numbers(6, 4, 3, dtype=dtype)
        keys = Tokens(put(array)).keys
        assert isinstance(keys, Stored) and keys[index].dtype == np.float64
        assert np.array_equal(keys[index], array.astype(float)[index])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(("shape", "norm"), [((200, 6, 12, 1), frobenius), ((40, 4, 5, 4), nuclear)], ids=str)
def test_the_answer_is_the_one_in_memory(put, shape, norm, dtype):
    keys, queries, best = problem(*shape, dtype)
    there, here = (max_margin(Tokens(x, queries), best, norm) for x in (put(keys), keys))
    assert there.certified
    assert norm.value(there.W) == pytest.approx(norm.value(here.W), rel=SAME)


def test_soft_margins_are_those_in_memory(put):
    keys, queries, best = problem(100, 5, 5, 4)
    best[::7] = (best[::7] + 1) % 5  # no W separates these
    there, here = (max_margin(Tokens(x, queries), best, slack=1.0) for x in (put(keys), keys))
    assert there.certified
    np.testing.assert_allclose(there.W, here.W, rtol=0, atol=1e-6 * np.abs(here.W).max())


def test_bad_shapes_bad_numbers_and_contradictions_are_named(put):
    keys, _, best = problem(50, 4, 6, 1)
    assert separable(Tokens(put(keys)), best)
    keys[20], best[20] = keys[10], (best[10] + 1) % 4
    assert not separable(Tokens(put(keys)), best)
    with pytest.raises(NotSeparable, match="10"):
        max_margin(Tokens(put(keys)), best)
    keys[31, 2, 5] = np.nan
    with pytest.raises(ValueError, match=r"keys\[31, 2, 5\] is not finite"):
        Tokens(put(keys))
    with pytest.raises(ValueError, match=r"keys has shape \(4, 6\)"):
        Tokens(put(keys[0]))


def test_a_head_scores_values_where_they_are(put):
    array, v = numbers(6, 4, 3), np.array([1.0, -2.0, 0.5])
    assert np.allclose(scores(Tokens(put(array)), v), array @ v, rtol=1e-6)
    assert np.array_equal(best_tokens(Tokens(put(array)), v), best_tokens(Tokens(array), v))
