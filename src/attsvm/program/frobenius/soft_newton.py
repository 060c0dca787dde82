"""Newton steps of the soft margin: (I + σ Bᵀ B) x = g for the rows B that are free to move."""

from __future__ import annotations

import numpy as np

from attsvm.numbers import Bool, Float
from attsvm.numbers.linear import Cholesky
from attsvm.program.frobenius.hinged import Hinged
from attsvm.program.frobenius.packed import Packed

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
    """

    def __init__(self, rows: Hinged, free: Bool) -> None:
        loose = free & ~rows.tied
        # A single multiplier at its limit cannot move at all.
        fixed = rows.hinges.reached & (np.add.reduceat(loose, rows.starts, dtype=int) == 1)
        self.at = at = np.flatnonzero(free & ~(loose & fixed[rows.group]))
        self.count = len(at)
        some, owner = np.unique(rows.group[at], return_inverse=True)
        first = np.searchsorted(owner, np.arange(len(some)))
        used = np.zeros((len(some), int(np.bincount(owner, minlength=1).max())), bool)
        used[owner, np.arange(len(at)) - first[owner]] = True
        delta, bound = np.zeros((*used.shape, rows.rows.d)), np.zeros(used.shape, bool)
        delta[used] = rows.rows.delta[at] * rows.length[at, None]
        bound[used] = (loose & rows.hinges.reached[rows.group])[at]
        mean = (bound[:, None, :] @ delta) / np.maximum(bound.sum(1), 1)[:, None, None]
        delta -= bound[..., None] * mean
        self.packed = Packed(delta, rows.rows.queries[rows.rows.owner[rows.starts[some]]], used)
        # Rows of an example at its limit have one margin, which is not known: B sees their differences alone.
        self.target = np.where(bound[used], 0.0, rows.asked[at])

    def exact(self, W: Float) -> Float | None:
        """By how much the multipliers of the free rows change (count,) until  B W = target; None if too many.

        The change of least length moves the multipliers of an example at its limit by a sum of zero.
        """
        if not 0 < self.count <= DIRECT or self.count * W.size > WRITTEN:
            return None
        owner = np.nonzero(self.packed.used)[0]
        B = self.packed.delta[self.packed.used][:, :, None] * self.packed.queries[owner][:, None, :]
        B = B.reshape(self.count, -1)
        return np.asarray(np.linalg.lstsq(B @ B.T, self.target - B @ W.ravel(), rcond=None)[0])

    def direction(self, gradient: Float, sigma: float) -> Float:
        """−(I + σ Bᵀ B)⁻¹ g: (d, e) → (d, e)."""
        if self.count == 0:
            return -gradient
        if gradient.size <= min(DIRECT, self.count):
            return -self._by_unknowns(gradient, sigma)
        # With u = (1/σ + B Bᵀ)⁻¹ B g the answer is g − Bᵀ u.
        u, solved = None, False
        if self.count > DIRECT:
            u, solved = self._iterated(gradient, sigma)
        if u is None or (not solved and self.count <= LARGEST_FACTOR):
            u = self._factored(gradient, sigma)
        return self.packed.combine(u) - gradient

    @property
    def _factors(self) -> tuple[Float, Float]:
        """δ and z of the rows, one after the other."""
        packed = self.packed
        return packed.delta[packed.used], packed.queries[np.nonzero(packed.used)[0]]

    def _factored(self, gradient: Float, sigma: float) -> Float:
        """u by the matrix of the free rows, written out."""
        delta, queries = self._factors
        gram = (delta @ delta.T) * (queries @ queries.T)
        gram.flat[:: len(gram) + 1] += 1 / sigma
        return self.packed.pack(_solve(gram, self.packed.margins(gradient)[self.packed.used]))

    def _by_unknowns(self, gradient: Float, sigma: float) -> Float:
        """The matrix I + σ Bᵀ B (d·e, d·e) itself."""
        delta, queries = self._factors
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

    def _iterated(self, gradient: Float, sigma: float) -> tuple[Float, bool]:
        """u without the matrix, and whether it is good enough; memory linear in the free rows.

        A residual r of u leaves σ Bᵀ r of the gradient.
        """
        packed = self.packed
        squares = float(np.einsum("gkd,gkd->gk", packed.delta, packed.delta).max())
        squares *= float(np.einsum("ge,ge->g", packed.queries, packed.queries).max())
        goal = SHARE * float(np.linalg.norm(gradient)) / (sigma * np.sqrt(squares))
        right, ridge = packed.margins(gradient), 1e-12 * squares
        return packed.solve(1 / sigma, right, np.zeros_like(right), goal, STEPS, ridge)


def _solve(matrix: Float, right: Float) -> Float:
    """Cholesky; the gradient's own direction where rounding leaves no factor."""
    try:
        return Cholesky(matrix.copy).solve(right)
    except np.linalg.LinAlgError:
        return right / np.diagonal(matrix).max()
