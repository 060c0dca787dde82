"""Newton steps of the soft margin: I + σ Bᵀ B for the rows B that are free to move, in their structure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from attsvm.program.constraints import Constraints
from attsvm.tokens import Bool, Float

DIRECT = 2500
"""Free rows, or unknowns, up to which a Cholesky factor is formed (50 MB)."""

WRITTEN = 1 << 22
"""Largest number of entries of the free rows that are written out at once."""

STEPS = 200
"""Conjugate-gradient steps of one Newton step: an inexact step is still one of descent."""


class FreeRows:
    """The rows with a multiplier inside its limits: B = δ zᵀ, less their mean where Σ_t λ_it = C_i.

    A limit that is reached leaves the multipliers only the moves of sum zero; projecting the rows of
    the example on these is subtracting the mean of their differences.

    delta (s, d): the differences; example (s,).
    """

    def __init__(self, rows: Constraints, free: Bool, reached: Bool) -> None:
        # A single multiplier at its limit cannot move at all.
        single = reached & ((free & rows.separating).sum(1) == 1)
        free = free & ~(rows.separating & single[:, None])
        self.rows = rows
        self.example, token = np.nonzero(free)
        self.delta = rows.differences(self.example, token)
        centred = reached[self.example] & rows.separating[self.example, token]
        self.delta[centred] -= _means(self.delta[centred], self.example[centred])

    def direction(self, gradient: Float, sigma: float) -> Float:
        """−(I + σ Bᵀ B)⁻¹ g: (d, e) → (d, e)."""
        count, unknowns = len(self.example), gradient.size
        if count == 0:
            return -gradient
        if min(count, unknowns) > DIRECT:
            return -self._conjugate_gradients(gradient, sigma)
        if count < unknowns:
            return -self._by_rows(gradient, sigma)
        return -self._by_unknowns(gradient, sigma)

    def margins(self, W: Float) -> Float:
        """⟨B_j, W⟩: (d, e) → (s,)."""
        directions = self.rows.queries @ W.T
        return np.einsum("sd,sd->s", self.delta, directions[self.example])

    def combine(self, weight: Float) -> Float:
        """Σ_j u_j B_j: (s,) → (d, e)."""
        sums = np.zeros((self.rows.n, self.rows.d))
        first = np.flatnonzero(np.diff(self.example, prepend=-1))
        sums[self.example[first]] = np.add.reduceat(weight[:, None] * self.delta, first, axis=0)
        return sums.T @ self.rows.queries

    def _by_rows(self, gradient: Float, sigma: float) -> Float:
        """g − Bᵀ (1/σ + B Bᵀ)⁻¹ B g: the matrix of the free rows (s, s)."""
        z = self.rows.queries
        gram = self.delta @ self.delta.T
        gram *= (z @ z.T)[np.ix_(self.example, self.example)]
        gram.flat[:: len(gram) + 1] += 1 / sigma
        return gradient - self.combine(_solve(gram, self.margins(gradient)))

    def _by_unknowns(self, gradient: Float, sigma: float) -> Float:
        """The matrix I + σ Bᵀ B (d·e, d·e) itself."""
        unknowns = gradient.size
        matrix = np.zeros((unknowns, unknowns))
        size = max(1, WRITTEN // unknowns)
        for start in range(0, len(self.example), size):
            part = slice(start, start + size)
            queries = self.rows.queries[self.example[part]]
            B = (self.delta[part, :, None] * queries[:, None, :]).reshape(-1, unknowns)
            matrix += B.T @ B
        matrix *= sigma
        matrix.flat[:: unknowns + 1] += 1.0
        return _solve(matrix, gradient.ravel()).reshape(gradient.shape)

    def _conjugate_gradients(self, gradient: Float, sigma: float) -> Float:
        """(I + σ Bᵀ B) x = g without the matrix; memory linear in the free rows."""
        x, residual = np.zeros_like(gradient), gradient.copy()
        direction, square = residual, float(np.vdot(residual, residual))
        goal = 1e-4 * square
        for _ in range(STEPS):
            if square <= goal:
                break
            image = direction + sigma * self.combine(self.margins(direction))
            step = square / float(np.vdot(direction, image))
            x, residual = x + step * direction, residual - step * image
            previous, square = square, float(np.vdot(residual, residual))
            direction = residual + (square / previous) * direction
        return x


def _means(vectors: Float, group: NDArray[np.intp]) -> Float:
    """Mean of the vectors of each group, given to all its members: (k, d), (k,) sorted → (k, d)."""
    if not len(group):
        return vectors
    first = np.flatnonzero(np.diff(group, prepend=-1))
    count = np.diff(np.append(first, len(group)))
    return np.repeat(np.add.reduceat(vectors, first, axis=0) / count[:, None], count, axis=0)


def _solve(matrix: Float, right: Float) -> Float:
    """Cholesky; a ridge where rounding has made the matrix indefinite."""
    diagonal = np.diagonal(matrix).copy()
    for ridge in (0.0, 1e-14, 1e-12, 1e-10):
        matrix.flat[:: len(matrix) + 1] = diagonal + ridge * float(diagonal.max())
        factor, info = lapack.dpotrf(matrix.T, lower=0, clean=0)
        if info == 0:
            return np.asarray(lapack.dpotrs(factor, right, lower=0)[0])
    return right / diagonal.max()
