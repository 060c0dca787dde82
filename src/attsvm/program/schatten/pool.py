"""A working set of rows of norm one, in the smallest coordinates that hold all rows of the program."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attsvm.program.constraints import Constraints
from attsvm.tokens import Bool, Float

FEATURES = 1 << 14
"""Most numbers in rows that are written out."""

BLOCK = 64
"""Rows per piece of a (w, w) matrix of which only the lower triangle is built."""


@dataclass(frozen=True, eq=False)
class Bases:
    """Orthonormal bases left (d, d') of the differences and right (e, e') of the queries.

    A unitarily invariant norm does not grow when W is projected on these spans and the margins do
    not change, so W = left · W' · rightᵀ loses nothing.
    """

    left: Float
    right: Float

    @classmethod
    def of(cls, rows: Constraints) -> Bases:
        left = np.eye(rows.d)
        if rows.active.sum() < rows.d:
            left = np.linalg.qr(rows.differences(*np.nonzero(rows.active)).T)[0]
        right = np.linalg.qr(rows.queries.T)[0] if rows.n < rows.e else np.eye(rows.e)
        return cls(left, right)

    @property
    def shape(self) -> tuple[int, int]:
        """(d', e')."""
        return self.left.shape[1], self.right.shape[1]

    def reduce(self, W: Float) -> Float:
        """(d, e) → (d', e')."""
        return self.left.T @ W @ self.right

    def expand(self, W: Float) -> Float:
        """(d', e') → (d, e)."""
        return self.left @ W @ self.right.T


@dataclass(frozen=True, eq=False)
class Pool:
    """w rows δ_j z_jᵀ in reduced coordinates, of norm one, sorted by example.

    delta (w, d'), queries (k, e') of the k examples that have a row: of length one.
    owner (w,): which of the k; size (w,): norm of the original row times the unit of W, by which
        the bound is divided: in that unit no bound is larger than one, whatever the data.
    bound (w,), tied (w,): as in `Constraints`; example (w,), token (w,): the rows' places there.
    """

    delta: Float
    queries: Float
    owner: NDArray[np.intp]
    size: Float
    bound: Float
    tied: Bool
    example: NDArray[np.intp]
    token: NDArray[np.intp]

    @classmethod
    def of(cls, rows: Constraints, bases: Bases, chosen: Bool, unit: float = 1.0) -> Pool:
        """The chosen rows (n, T) of a program, none of them zero."""
        example, token = np.nonzero(chosen)
        present = chosen.any(axis=1)
        owner = (np.cumsum(present) - 1)[example]
        delta, length = _unit(rows.differences(example, token) @ bases.left)
        queries, query_length = _unit(rows.queries[present] @ bases.right)
        size = length * query_length[owner] * unit
        bound, tied = rows.bound[example, token] / size, rows.tied[example, token]
        return cls(delta, queries, owner, size, bound, tied, example, token)

    @property
    def d(self) -> int:
        return self.delta.shape[1]

    @property
    def e(self) -> int:
        return self.queries.shape[1]

    @cached_property
    def inequalities(self) -> int:
        """How many rows are not tied."""
        return len(self.tied) - int(np.count_nonzero(self.tied))

    @cached_property
    def open(self) -> Float:
        """1.0 for inequalities, 0.0 for ties (w,)."""
        return 1.0 - self.tied

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """First row of each example (k,)."""
        return np.searchsorted(self.owner, np.arange(len(self.queries)))

    @cached_property
    def slices(self) -> list[slice]:
        """The rows of each example."""
        ends = [*self.starts[1:].tolist(), len(self.owner)]
        return [slice(a, b) for a, b in zip(self.starts.tolist(), ends, strict=True)]

    @cached_property
    def blocks(self) -> list[slice]:
        """All rows in pieces of at most BLOCK."""
        return [slice(a, min(a + BLOCK, len(self.owner))) for a in range(0, len(self.owner), BLOCK)]

    @cached_property
    def features(self) -> Float | None:
        """The rows written out (w, d'·e'), when that is small: one product instead of three steps."""
        if self.delta.size * self.e > FEATURES:
            return None
        rows = self.delta[:, :, None] * self.queries[self.owner][:, None, :]
        return rows.reshape(len(rows), -1)

    def margins(self, W: Float) -> Float:
        """δ_jᵀ W z_j: (d', e'), or flat (d'·e',), → (w,)."""
        if self.features is not None:
            return np.asarray(self.features @ W.ravel())
        directions = self.queries @ W.reshape(self.d, self.e).T
        return np.einsum("ja,ja->j", self.delta, directions[self.owner])

    def combine(self, multipliers: Float) -> Float:
        """Σ λ_j δ_j z_jᵀ: (w,) → (d', e')."""
        if self.features is not None:
            return np.asarray(multipliers @ self.features).reshape(self.d, self.e)
        sums = np.add.reduceat(multipliers[:, None] * self.delta, self.starts, axis=0)
        return np.asarray(sums.T @ self.queries)

    def gram(self, weights: Float) -> Float:
        """Σ weight_j A_j ⊗ A_j: (w,) → (d'·e', d'·e')."""
        if self.features is not None:
            return np.asarray((self.features.T * weights) @ self.features)
        weighted = weights[:, None] * self.delta
        blocks = [weighted[mine].T @ self.delta[mine] for mine in self.slices]
        outer = self.queries[:, :, None] * self.queries[:, None, :]
        total = np.tensordot(np.stack(blocks), outer, axes=(0, 0))  # indices a, c, b, f
        return total.transpose(0, 2, 1, 3).reshape(self.d * self.e, -1)

    def inverse(self, values: Float) -> Float:
        """1 / values (w,) on the inequalities, 0 where tied."""
        return self.open / (values if self.inequalities == len(values) else values + self.tied * (1 - values))

    def pick(self, values: Float) -> Float:
        """The pool's part (w,) of an array over all rows (n, T)."""
        return values[self.example, self.token]

    def spread(self, values: Float, elsewhere: Float) -> Float:
        """The array over all rows (n, T) that has the values (w,) on the pool."""
        out = elsewhere.copy()
        out[self.example, self.token] = values
        return out


def _unit(vectors: Float) -> tuple[Float, Float]:
    length = np.linalg.norm(vectors, axis=1)
    return vectors / length[:, None], length
