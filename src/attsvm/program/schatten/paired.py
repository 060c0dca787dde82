"""Linear maps that act on pairs of entries of a matrix: derivatives of functions of its singular values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.numbers import Float
from attsvm.program.rows import Rows


@dataclass(frozen=True, eq=False)
class Paired:
    """X ↦ leftᵀ Y right,   Y_ij = direct_ij B_ij + crossed_ij B_ji,   B = left X rightᵀ.

    left (d, d), right (e, e), direct (d, e); crossed (k, k), symmetric, k = min(d, e); beyond, no B_ji.
    """

    left: Float
    right: Float
    direct: Float
    crossed: Float

    def __call__(self, X: Float) -> Float:
        k, B = len(self.crossed), self.left @ X @ self.right.T
        Y = self.direct * B
        Y[:k, :k] += self.crossed * B[:k, :k].T
        return np.asarray(self.left.T @ Y @ self.right)

    def gram(self, rows: Rows) -> Float:
        """The products ⟨A_i, image of A_j⟩ of all pairs of rows: the lower triangle of (w, w)."""
        delta, queries, k = rows.delta @ self.left.T, rows.queries @ self.right.T, len(self.crossed)
        small, spread = delta[:, :k], queries[rows.owner, :k]
        out = np.empty((len(delta), len(delta)))
        for j, mine in enumerate(rows.slices):
            before = slice(0, mine.stop)
            image = delta[before] * ((queries * queries[j]) @ self.direct.T)[rows.owner[before]]
            image[:, :k] += spread[before] * (small[before] @ (queries[j, :k, None] * self.crossed))
            np.matmul(delta[mine], image.T, out=out[mine, before])
        return out


Singular = tuple[Float, Float, Float]
"""U (d, d), σ (k,) and Vᵀ (e, e) of a matrix (d, e)."""


def power(singular: Singular, r: float) -> Float:
    """U diag(σ^r) Vᵀ."""
    U, sigma, Vt = singular
    return np.asarray((U[:, : len(sigma)] * sigma**r) @ Vt[: len(sigma)])


def of_power(singular: Singular, r: float) -> Paired:
    """The derivative of `power`, r > 1.

    It multiplies the symmetric part of a pair by (σ_i^r − σ_j^r)/(σ_i − σ_j), the antisymmetric part by
    (σ_i^r + σ_j^r)/(σ_i + σ_j), and an entry beyond the square by σ_i^(r−1).
    Reference: Noferini 2017, "A formula for the Fréchet derivative of a generalized matrix function".
    """
    return _paired(singular, *_quotients(singular[1], r))


def of_root(singular: Singular, r: float, floor: float) -> Paired:
    """The inverse of that derivative plus `floor`."""
    return _paired(singular, *(1 / (x + floor) for x in _quotients(singular[1], r)))


def _paired(singular: Singular, even: Float, odd: Float, beyond: Float) -> Paired:
    U, _, Vt = singular
    k = len(beyond)
    direct = np.tile(beyond, (len(U), 1)) if len(Vt) == k else np.tile(beyond[:, None], len(Vt))
    direct[:k, :k] = (even + odd) / 2
    return Paired(U.T, Vt, direct, (even - odd) / 2)


def _quotients(sigma: Float, r: float) -> tuple[Float, Float, Float]:
    """(x^r ∓ y^r)/(x ∓ y) of all pairs (k, k), without cancellation, and x^(r−1) (k,), for r > 1."""
    large, less = np.maximum.outer(sigma, sigma), np.minimum.outer(sigma, sigma)
    safe, size = np.where(large > 0, large, 1.0), large ** (r - 1)
    ratio, apart = less / safe, np.log1p((less - large) / safe)
    even = np.where(apart == 0, r, np.expm1(r * apart) / np.expm1(np.where(apart == 0, -1.0, apart)))
    return size * even, size * (1 + ratio**r) / (1 + ratio), sigma ** (r - 1)
