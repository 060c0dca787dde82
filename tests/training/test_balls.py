"""Projections, tested by the laws that only the nearest point obeys."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attsvm.norms import Entrywise, Schatten, frobenius, l1, linf, nuclear, spectral
from attsvm.training.balls import _log_root, project_ball, project_both, project_cone

NORMS = [l1, Entrywise(1.01), Entrywise(1.5), frobenius, Entrywise(3), Entrywise(100), linf]
NORMS += [nuclear, Schatten(1.5), Schatten(3), spectral]
ROUNDING = 1e-10


def nearest(function, *args):
    with jax.enable_x64(True):
        return np.asarray(jax.jit(function)(*map(jnp.asarray, args)))


def points():
    """Far outside, near the boundary, inside, with zeros, with a tiny entry; and a radius for each."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3))
    sparse = np.where(rng.random((4, 3)) < 0.5, 0, x)
    tiny = x.copy()
    tiny[0, 0] = 1e-9
    return np.stack([1e4 * x, x, x, 3 * sparse, tiny])


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_projection_leaves_a_normal_of_the_ball(norm):
    x = points()
    radius = norm.value(x) / np.array([1e4, 1.01, 0.5, 2, 3])
    p = nearest(jax.vmap(lambda x, r: project_ball(x, norm, r)), x, radius)
    outside, normal = np.array([0, 1, 3, 4]), x - p
    # p is nearest exactly when ⟨x − p, y⟩ ≤ ⟨x − p, p⟩ for all y of the ball: N*(x − p) R = ⟨x − p, p⟩.
    gap = norm.dual.value(normal) * radius - (normal * p).sum((-2, -1))
    assert (gap <= ROUNDING * radius * np.abs(x).max((-2, -1))).all()
    np.testing.assert_allclose(norm.value(p)[outside], radius[outside], rtol=1e-12)
    np.testing.assert_allclose(p[2], x[2], rtol=0, atol=1e-14)


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_the_radial_point_is_not_the_projection(norm):
    x = points()[1]
    p = x / norm.value(x)
    gap = norm.dual.value(x - p) - ((x - p) * p).sum()
    assert (gap > 1e-3) == (norm.p != 2)


@pytest.mark.parametrize("p", [1.01, 100])
def test_the_root_that_shrinks_an_entry_is_right_to_rounding_for_every_multiplier(p):
    log_mu = np.linspace(-80, 80, 2001)
    u = nearest(jax.vmap(lambda m: _log_root(jnp.zeros(()), m, p)), log_mu)
    # Of numbers up to 80: a hundred times their rounding, and far below the 1e-8 of a step too few.
    assert np.abs(np.logaddexp(u, log_mu + (p - 1) * u)).max() < 1e-12


@pytest.mark.parametrize("toward", [3, 1, 0, -3], ids=["inside", "near", "across", "behind"])
def test_the_cone_projection_splits_a_point_into_cone_and_polar_cone(toward):
    x, axis = np.random.default_rng(0).standard_normal((2, 4, 3))
    axis, cosine = axis / np.linalg.norm(axis), 0.8
    x = x / np.linalg.norm(x) + toward * axis
    p = nearest(lambda x, axis: project_cone(x, axis, jnp.asarray(cosine)), x, axis)
    rest = x - p
    assert (p * axis).sum() >= cosine * np.linalg.norm(p) - ROUNDING
    assert abs((rest * p).sum()) <= ROUNDING
    assert (rest * axis).sum() <= np.sqrt(1 - cosine**2) * -np.linalg.norm(rest) + ROUNDING or not rest.any()


@pytest.mark.parametrize("norm", [frobenius, Entrywise(3), nuclear, linf], ids=str)
def test_ball_and_cone_together_agree_with_a_general_solver(norm):
    cp = pytest.importorskip("cvxpy")
    x, axis = np.random.default_rng(3).standard_normal((2, 3, 2))
    axis /= np.linalg.norm(axis)
    x = x / np.linalg.norm(x) + 2 * axis  # outside the ball and outside the cone
    p = nearest(lambda x, a: project_both(x, norm, jnp.asarray(1.0), a, jnp.asarray(0.98)), x, axis)
    W = cp.Variable((3, 2))
    size = cp.normNuc(W) if norm is nuclear else cp.pnorm(cp.vec(W, order="C"), norm.p)
    inside = [size <= 1, cp.sum(cp.multiply(axis, W)) >= 0.98 * cp.norm(W, "fro")]
    cp.Problem(cp.Minimize(cp.sum_squares(W - x)), inside).solve(solver="CLARABEL")
    np.testing.assert_allclose(p, W.value, atol=1e-4)  # the general solver's accuracy
