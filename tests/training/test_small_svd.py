"""Small matrices taken apart by rotations, as on a GPU, against LAPACK."""

import jax
import numpy as np
import pytest

from attsvm import Schatten, spectral
from attsvm.training import directions
from attsvm.training.directions import LARGEST, small_svd

ROUNDING = 1e-13
"""Of matrices whose largest singular value is about 10; 2e-14 was seen."""


def stack(d, m):
    """Random, rank one, zero, orthogonal, and columns that are graded by 1e-12."""
    rng = np.random.default_rng(10 * d + m)
    M = rng.standard_normal((40, d, m))
    M[:8] = M[:8, :, :1] * M[:8, :1, :]
    M[8], M[9] = 0, np.eye(d, m)
    M[10:18] *= np.logspace(0, -12, m)
    return M


@pytest.mark.parametrize(
    "shape", [(4, 4), (8, 8), (LARGEST, LARGEST), (8, 3), (3, 8), (5, 5), (4, 1)], ids=str
)
def test_rotations_find_the_singular_values_of_lapack(shape):
    M = stack(*shape)
    with jax.enable_x64(True):
        U, sigma, Vt = map(np.asarray, jax.jit(jax.vmap(small_svd))(M))
    assert np.abs((U * sigma[:, None]) @ Vt - M).max() < ROUNDING
    assert np.abs(-np.sort(-sigma) - np.linalg.svd(M, compute_uv=False)).max() < ROUNDING
    turned = Vt @ Vt.swapaxes(1, 2) if shape[0] >= shape[1] else U.swapaxes(1, 2) @ U
    assert np.abs(turned - np.eye(min(shape))).max() < ROUNDING


@pytest.mark.parametrize("norm", [Schatten(3), Schatten(8), spectral], ids=str)
def test_a_direction_is_the_same_by_rotations_and_by_lapack(norm, monkeypatch):
    rng = np.random.default_rng(0)
    tree = {name: rng.standard_normal((8, 4)) for name in ("K", "Q")}
    with jax.enable_x64(True):
        by_lapack = jax.jit(lambda tree: directions.direction(norm, tree, False))(tree)
        monkeypatch.setattr(directions, "backend", lambda: "gpu")
        turning = jax.jit(lambda tree: directions.direction(norm, tree, False))
        by_rotations, other = turning(tree), turning({**tree, "Q": -tree["K"]})
    for name in tree:
        np.testing.assert_allclose(by_rotations[name], by_lapack[name], atol=ROUNDING)
    assert not np.allclose(other["Q"], by_lapack["Q"], atol=1e-3)
