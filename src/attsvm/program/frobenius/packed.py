"""Rows packed by example: products with B Bᵀ without its matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attsvm.numbers import Bool, Float
from attsvm.numbers.linear import conjugate_gradients
from attsvm.program.rows import Rows


@dataclass(frozen=True, eq=False)
class Packed:
    """Rows B = δ zᵀ of g examples, packed to the largest number k that one of them has.

    delta (g, k, d): zero where not used (g, k); queries (g, e).
    """

    delta: Float
    queries: Float
    used: Bool

    @classmethod
    def of(cls, rows: Rows) -> Packed:
        """All of the rows, in their order."""
        place = np.arange(len(rows)) - rows.starts[rows.owner]
        used = np.zeros((len(rows.queries), int(place.max()) + 1), bool)
        used[rows.owner, place] = True
        delta = np.zeros((*used.shape, rows.d))
        delta[used] = rows.delta
        return cls(delta, rows.queries, used)

    def pack(self, values: Float) -> Float:
        """Values of the rows, in their order, as (g, k)."""
        out = np.zeros(self.used.shape)
        out[self.used] = values
        return out

    def margins(self, W: Float) -> Float:
        """⟨B_j, W⟩: (d, e) → (g, k)."""
        return np.asarray(np.matmul(self.delta, (self.queries @ W.T)[..., None])[..., 0])

    def combine(self, u: Float) -> Float:
        """Σ_j u_j B_j: (g, k) → (d, e)."""
        return np.asarray(self._sums(u).T @ self.queries)

    def times(self, u: Float) -> Float:
        """B Bᵀ u: (g, k) → (g, k)."""
        z, sums = self.queries, self._sums(u)
        mixed = z @ (z.T @ sums) if self._likeness is None else self._likeness @ sums
        return np.asarray(np.matmul(self.delta, mixed[..., None])[..., 0])

    def solve(
        self, added: float, right: Float, u: Float, goal: float, steps: int, ridge: float
    ) -> tuple[Float, bool]:
        """u with (B Bᵀ + added) u = right up to the goal, from a first u, and whether it was reached.

        The preconditioner has one block |z|² Δ Δᵀ + added per example, with a ridge.
        """
        squares = np.einsum("ge,ge->g", self.queries, self.queries)
        blocks = np.matmul(self.delta, self.delta.transpose(0, 2, 1)) * squares[:, None, None]
        diagonal = np.arange(blocks.shape[-1])
        blocks[:, diagonal, diagonal] += np.where(self.used, added + ridge, 1.0)
        inverse = np.linalg.inv(blocks)
        return conjugate_gradients(
            lambda u: self.times(u) + added * u,
            lambda u: np.matmul(inverse, u[..., None])[..., 0],
            right,
            u,
            goal,
            steps,
        )

    def _sums(self, u: Float) -> Float:
        return np.asarray(np.matmul(u[:, None, :], self.delta)[:, 0])

    @cached_property
    def _likeness(self) -> Float | None:
        """Z Zᵀ (g, g) where it is cheaper than two products with Z."""
        z = self.queries
        return z @ z.T if len(z) < 2 * z.shape[1] else None
