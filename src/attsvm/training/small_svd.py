"""Singular values of many small matrices, by rotations that a GPU does side by side.

A GPU's library takes each small matrix apart for itself, which costs it more than all else of a step.
One-sided Jacobi rotations of neighbouring columns are elementwise: thousands of runs turn theirs at once.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

from attsvm.training.programs import where

LARGEST = 16
"""Columns, at most: the rounds grow with them."""


def small_svd(M: Array) -> tuple[Array, Array, Array]:
    """U (d, r), σ (r,) and Vᵀ (r, m) of a matrix (d, m), r = min(d, m); σ in no order, U zero where σ is.

    Reference: Hestenes 1958, "Inversion of matrices by biorthogonalization and related results"; the order of
    the pairs is that of a tournament, in which a round has every column once.
    """
    if M.shape[0] < M.shape[1]:
        V, sigma, Ut = small_svd(M.T)
        return Ut.T, sigma, V.T
    m = M.shape[1]
    wide = m + m % 2
    A = jnp.pad(M, [(0, 0), (0, wide - m)])
    V = jnp.eye(wide, dtype=M.dtype)
    order, sweeps = (
        _next_round(wide),
        4 + (wide - 1).bit_length(),
    )  # 5, 6, 7 of 4, 8, 16 columns end in rounding

    def turned(_: int, both: Array) -> Array:
        left, right = both[:, 0::2], both[:, 1::2]
        a, b = left[: len(A)], right[: len(A)]
        c, s = _rotation((a * a).sum(0), (b * b).sum(0), (a * b).sum(0))
        pairs = jnp.stack([c * left - s * right, s * left + c * right], 2)
        return pairs.reshape(both.shape)[:, order]

    both = lax.fori_loop(0, sweeps * (wide - 1), turned, jnp.concatenate([A, V]))
    A, V = both[: len(A)], both[len(A) :]
    sigma = jnp.sqrt((A * A).sum(0))
    U = A / where(sigma > 0, sigma, 1)
    if wide > m:  # the column that was added is zero still, wherever the tournament left it
        kept = jnp.argsort(jnp.abs(V[m]) > 0.5, stable=True)[:m]
        return U[:, kept], sigma[kept], V[:m, kept].T
    return U, sigma, V.T


def _rotation(alpha: Array, beta: Array, gamma: Array) -> tuple[Array, Array]:
    """Cosine and sine that make columns of squared lengths α, β and product γ orthogonal."""
    apart = gamma == 0
    zeta = (beta - alpha) / (2 * where(apart, 1, gamma))
    sign = where(zeta >= 0, 1, -1)
    t = where(apart, 0, sign / (jnp.abs(zeta) + jnp.sqrt(1 + zeta * zeta)))
    c = 1 / jnp.sqrt(1 + t * t)
    return c, c * t


def _next_round(wide: int) -> Array:
    """Where the columns of the next round stand in this one: the first stays, a ring of the others turns."""
    upper, lower = list(range(0, wide, 2)), list(range(1, wide, 2))
    ring = [*upper[1:], *lower[::-1]]
    moved = [ring[-1], *ring[:-1]] if ring else ring
    place = {column: moved[k] for k, column in enumerate(ring)} | {0: 0}
    return jnp.array([place[column] for column in range(wide)])
