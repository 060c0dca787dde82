"""Tokens are multiplied where they are, in the precision they have."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="attsvm.probe needs the extra 'sklearn'")

from attsvm.numbers import library
from attsvm.probe import AttentionProbe, TokenStore
from attsvm.probe.data.backends import backend_of


def test_bfloat16_is_read_as_its_bits_and_multiplied_exactly():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="JAX brings it")
    brain = np.random.default_rng(0).standard_normal((12, 5)).astype(ml_dtypes.bfloat16)
    store = TokenStore.from_flat(brain, [0, 3, 4, 9, 12])
    backend = backend_of(store.rows)
    block = backend.centred(store.read(slice(0, 4)), np.zeros(5, np.float32))
    np.testing.assert_array_equal(block, brain.astype(np.float32))
    assert store.read(slice(0, 4)).dtype == np.uint16


def test_half_precision_is_widened_exactly_subnormal_numbers_too():
    bits = np.arange(65536, dtype=np.uint16).view(np.float16)
    finite = bits[np.isfinite(bits)].reshape(-1, 16)
    store = TokenStore.from_flat(finite, [0, len(finite)])
    backend = backend_of(store.rows)
    centre = np.full(16, 0.5, np.float32)
    np.testing.assert_array_equal(backend.centred(finite, centre), finite.astype(np.float32) - centre)
    assert not np.array_equal(backend.centred(finite, 0 * centre), finite.astype(np.float32) - centre)


def test_tensors_on_a_gpu_are_multiplied_by_their_own_library(monkeypatch):
    torch = pytest.importorskip("torch", reason="needs attsvm[torch]")
    monkeypatch.setattr("attsvm.numbers.library.on_gpu", lambda x: library.home(x) == "torch")
    rng = np.random.default_rng(1)
    lengths, labels = rng.integers(2, 6, 40), np.arange(40) % 2
    offsets = np.r_[0, np.cumsum(lengths)]
    flat = rng.standard_normal((offsets[-1], 4)).astype(np.float32)
    flat[offsets[:-1], 0] += 3 * (2 * labels - 1)
    here, there = TokenStore.from_flat(flat, offsets), TokenStore.from_flat(torch.tensor(flat), offsets)
    assert isinstance(there.rows.read(slice(2)), torch.Tensor)
    fixed = {"head_ridge": 0.1, "prompt_ridge": 0.1}
    expected = AttentionProbe(**fixed).fit(here, labels).predict_proba(here)
    found = AttentionProbe(**fixed).fit(there, labels).predict_proba(there)
    np.testing.assert_allclose(found, expected, atol=1e-5)  # float32, and slopes of 1e-6
    assert (
        np.abs(AttentionProbe(**fixed).fit(there[::-1], labels).predict_proba(there) - expected).max() > 1e-2
    )
