"""Newton steps of the soft margin: (I + σ Bᵀ B) x = g for the rows B that are free to move."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from attsvm.program.constraints import Constraints
from attsvm.tokens import Bool, Float

DIRECT = 500
"""Free rows, or unknowns, up to which a Cholesky factor is faster than conjugate gradients."""

LARGEST_FACTOR = 4000
"""Free rows up to which a Cholesky factor is the way out when conjugate gradients fail (128 MB)."""

WRITTEN = 1 << 22
"""Largest number of entries of the free rows that are written out at once."""

STEPS, SHARE = 150, 0.02
"""Conjugate-gradient steps of a Newton step, and the share of the gradient that it may leave."""


class FreeRows:
    """The rows with a multiplier inside its limits: B = δ zᵀ, less their mean where Σ_t λ_it = C_i.

    A limit that is reached leaves the multipliers only the moves of sum zero; projecting the rows of
    the example on these is subtracting the mean of their differences.

    Packed to the c examples that have free rows and the largest number k that one of them has:
    used (c, k), delta (c, k, d), queries (c, e).
    """

    def __init__(self, rows: Constraints, free: Bool, reached: Bool) -> None:
        # A single multiplier at its limit cannot move at all.
        fixed = reached & ((free & rows.separating).sum(1) == 1)
        free = free & ~(rows.separating & fixed[:, None])
        example = np.flatnonzero(free.any(1))
        self.count = int(free.sum())
        k = int(free[example].sum(1).max(initial=0))
        token = np.argsort(~free[example], axis=1, kind="stable")[:, :k]
        self.used = np.take_along_axis(free[example], token, 1)
        self.queries = rows.queries[example]
        anchors = rows.keys[example, rows.anchor[example]][:, None]
        self.delta = (anchors - rows.keys[example[:, None], token]) * self.used[..., None]
        bound = self.used & np.take_along_axis(rows.separating[example], token, 1) & reached[example, None]
        mean = (bound[:, None, :] @ self.delta) / np.maximum(bound.sum(1), 1)[:, None, None]
        self.delta -= bound[..., None] * mean

    def direction(self, gradient: Float, sigma: float) -> Float:
        """−(I + σ Bᵀ B)⁻¹ g: (d, e) → (d, e)."""
        if self.count == 0:
            return -gradient
        if gradient.size <= min(DIRECT, self.count):
            return -self._by_unknowns(gradient, sigma)
        # With u = (1/σ + B Bᵀ)⁻¹ B g the answer is g − Bᵀ u.
        u, solved = None, False
        if self.count > DIRECT:
            u, solved = self._conjugate_gradients(gradient, sigma)
        if u is None or (not solved and self.count <= LARGEST_FACTOR):
            u = self._factored(gradient, sigma)
        return self.combine(u) - gradient

    def margins(self, W: Float) -> Float:
        """⟨B_j, W⟩: (d, e) → (c, k)."""
        return np.asarray(np.matmul(self.delta, (self.queries @ W.T)[..., None])[..., 0])

    def combine(self, u: Float) -> Float:
        """Σ_j u_j B_j: (c, k) → (d, e)."""
        return np.asarray(np.matmul(u[:, None, :], self.delta)[:, 0].T @ self.queries)

    def _factored(self, gradient: Float, sigma: float) -> Float:
        """u by the matrix of the free rows, written out."""
        delta, queries = self.delta[self.used], self.queries[np.nonzero(self.used)[0]]
        gram = (delta @ delta.T) * (queries @ queries.T)
        gram.flat[:: len(gram) + 1] += 1 / sigma
        u = np.zeros(self.used.shape)
        u[self.used] = _solve(gram, self.margins(gradient)[self.used])
        return u

    def _by_unknowns(self, gradient: Float, sigma: float) -> Float:
        """The matrix I + σ Bᵀ B (d·e, d·e) itself."""
        delta, queries = self.delta[self.used], self.queries[np.nonzero(self.used)[0]]
        unknowns = gradient.size
        matrix = np.zeros((unknowns, unknowns))
        size = max(1, WRITTEN // unknowns)
        for start in range(0, len(delta), size):
            part = slice(start, start + size)
            B = (delta[part, :, None] * queries[part, None, :]).reshape(-1, unknowns)
            matrix += B.T @ B
        matrix *= sigma
        matrix.flat[:: unknowns + 1] += 1.0
        return _solve(matrix, gradient.ravel()).reshape(gradient.shape)

    def _conjugate_gradients(self, gradient: Float, sigma: float) -> tuple[Float, bool]:
        """u without the matrix, and whether it is good enough; memory linear in the free rows.

        A residual r of u leaves σ Bᵀ r of the gradient.
        """
        squares = np.einsum("ckd,ckd->ck", self.delta, self.delta).max()
        squares *= np.einsum("ce,ce->c", self.queries, self.queries).max()
        goal = SHARE * float(np.linalg.norm(gradient)) / (sigma * np.sqrt(squares))
        blocks = self._blocks(sigma)
        u, residual = np.zeros(self.used.shape), self.margins(gradient)
        direction, previous = np.zeros_like(u), 1.0
        for _ in range(STEPS):
            if np.linalg.norm(residual) <= goal:
                return u, True
            better = np.matmul(blocks, residual[..., None])[..., 0]
            power = float(np.vdot(residual, better))
            direction = better + (power / previous) * direction
            image = self._product(direction) + direction / sigma
            step = power / float(np.vdot(direction, image))
            u, residual = u + step * direction, residual - step * image
            previous = power
        return u, False

    @cached_property
    def _likeness(self) -> Float | None:
        """Z Zᵀ (c, c) where it is cheaper than two products with Z."""
        z = self.queries
        return z @ z.T if len(z) < 2 * z.shape[1] else None

    def _product(self, u: Float) -> Float:
        """B Bᵀ u: gather by example, mix through the queries, spread."""
        sums = np.matmul(u[:, None, :], self.delta)[:, 0]
        z, likeness = self.queries, self._likeness
        mixed = z @ (z.T @ sums) if likeness is None else likeness @ sums
        return np.asarray(np.matmul(self.delta, mixed[..., None])[..., 0])

    def _blocks(self, sigma: float) -> Float:
        """Inverses of the examples' own matrices |z|² Δ Δᵀ + 1/σ (c, k, k): the preconditioner."""
        squares = np.einsum("ce,ce->c", self.queries, self.queries)
        gram = np.matmul(self.delta, self.delta.transpose(0, 2, 1)) * squares[:, None, None]
        diagonal = np.arange(gram.shape[-1])
        gram[:, diagonal, diagonal] += 1 / sigma + 1e-12 * float(gram.max())
        return np.linalg.inv(gram)


def _solve(matrix: Float, right: Float) -> Float:
    """Cholesky; a ridge where rounding has made the matrix indefinite."""
    diagonal = np.diagonal(matrix).copy()
    for ridge in (0.0, 1e-14, 1e-12, 1e-10):
        matrix.flat[:: len(matrix) + 1] = diagonal + ridge * float(diagonal.max())
        factor, info = lapack.dpotrf(matrix.T, lower=0, clean=0)
        if info == 0:
            return np.asarray(lapack.dpotrs(factor, right, lower=0)[0])
    return right / diagonal.max()
