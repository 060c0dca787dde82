"""The authors' own draws: torch's generator without torch, and the data of the published figures."""

import numpy as np
import pytest

from attsvm import datasets
from attsvm.datasets import published
from attsvm.datasets.torch_normals import TorchNormals

SEEDS = (0, 1, 3, 99, 12_345, 2**31 + 5, 2**32 - 1)
SIZES = (1, 5, 3, 16, 7, 17, 100, 2, 15, 33, (3, 4, 4), 1)
"""Calls in a row: fewer than 16 numbers, 16 exactly, and more; an odd number leaves one that waits."""
LAST_PLACES = 4
"""float32 calls for 16 numbers and more: the logarithm and the sine there are torch's own."""


def both(seed, name):
    """Our numbers and those of torch, call by call."""
    torch = pytest.importorskip("torch")
    theirs, ours = torch.Generator().manual_seed(seed), TorchNormals(seed)
    for size in SIZES:
        wanted = torch.randn(size, generator=theirs, dtype=getattr(torch, name)).numpy()
        yield wanted, ours(size, np.dtype(name))


@pytest.mark.parametrize("seed", SEEDS)
def test_float64_numbers_are_those_of_torch_bit_by_bit(seed):
    for wanted, ours in both(seed, "float64"):
        np.testing.assert_array_equal(ours, wanted)


@pytest.mark.parametrize("seed", SEEDS)
def test_float32_numbers_are_those_of_torch_and_of_short_calls_bit_by_bit(seed):
    for wanted, ours in both(seed, "float32"):
        if wanted.size < 16:
            np.testing.assert_array_equal(ours, wanted)
        else:
            places = np.spacing(np.maximum(np.abs(wanted), np.float32(0.01)))
            assert np.max(np.abs(ours - wanted) / places) <= LAST_PLACES


def test_another_seed_another_precision_or_a_lost_number_gives_other_draws():
    first = TorchNormals(0)(100)
    assert not np.allclose(first, TorchNormals(1)(100), atol=0.1)
    assert not np.allclose(first, TorchNormals(0)(100, np.float64), atol=0.1)
    waiting, fresh = TorchNormals(0), TorchNormals(0)
    waiting(3)
    fresh(4)
    fourth, fifth = waiting(1), fresh(1)
    assert fourth == TorchNormals(0)(4)[3] and fifth != fourth


def test_a_dtype_that_torch_draws_otherwise_is_refused():
    with pytest.raises(TypeError, match=r"dtype is float16\. Pass float32 or float64"):
        TorchNormals(0)(3, np.float16)


def test_the_numbers_recovered_from_the_published_plots_are_those_of_their_seeds():
    np.testing.assert_allclose(published.SEVERAL_INPUTS, TorchNormals(0)((3, 7, 3)).ravel(), atol=1e-6)
    for numbers, seed, T in ((published.TWO_CLOUDS, 1, 3), (published.TWO_FANS, 3, 5)):
        normals, other = TorchNormals(seed), TorchNormals(seed + 1)
        drawn, strange = (
            np.concatenate([draw(2), draw((2, T, 2)).ravel(), draw((2, 2)).ravel()])
            for draw in (normals, other)
        )
        np.testing.assert_allclose(numbers, drawn, atol=1e-6)
        assert np.abs(numbers - strange).max() > 0.5


def test_published_draws_are_unit_vectors_by_seed():
    tokens, v = published.sphere(6, 8, 10, seed=range(1, 4))
    alone, head = published.sphere(6, 8, 10, seed=2)
    np.testing.assert_array_equal(tokens.keys[1], alone.keys)
    np.testing.assert_array_equal(v[1], head)
    np.testing.assert_allclose(np.linalg.norm(tokens.keys, axis=-1), 1, atol=1e-6)
    assert not np.allclose(alone.keys, datasets.sphere(6, 8, 10, seed=2)[0].keys, atol=0.1)


def test_published_draws_are_those_of_the_notebook():
    torch = pytest.importorskip("torch")
    theirs, (n, T, d) = torch.Generator().manual_seed(5), (3, 4, 6)
    V = torch.randn((d, d), generator=theirs)
    X = torch.randn((n, T, d), generator=theirs)
    Y = torch.randn(n, generator=theirs)
    Z = torch.randn((n, d), generator=theirs)
    tokens, head = published.relu(n, T, d, seed=5)
    np.testing.assert_allclose(head, V / V.norm(), atol=1e-6)
    np.testing.assert_allclose(tokens.keys, X / X.norm(dim=-1, keepdim=True), atol=1e-6)
    np.testing.assert_array_equal(tokens.labels, 2.0 * (Y.numpy() > 0) - 1)
    np.testing.assert_allclose(tokens.queries, Z / Z.norm(dim=-1, keepdim=True), atol=1e-6)
