"""The few rows an interior point works on.

Row j is the rank-one matrix δ_j z_jᵀ, so A diag(V) Aᵀ costs n² d e + k² d operations instead of the
k² d e of explicit features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attsvm.program.constraints import Constraints
from attsvm.program.entrywise import products
from attsvm.tokens import Bool, Float


@dataclass(frozen=True, eq=False)
class WorkingRows:
    """Some rows of `Constraints`, sorted by example and divided by their length |x_a − x_t| |z|.

    Near-ties are short rows with large multipliers; of length one they are rows like all others.

    example, token (k,): which rows; delta (k, d): x_a − x_t, scaled; bound (k,), scaled; tied (k,).
    length (k,): what a row was divided by, so that its multiplier in `Constraints` is λ_j / length_j.
    queries (groups, e): the queries of the examples that occur; start (groups,): their first rows.
    """

    example: NDArray[np.intp]
    token: NDArray[np.intp]
    delta: Float
    bound: Float
    tied: Bool
    length: Float
    queries: Float
    start: NDArray[np.intp]

    @classmethod
    def of(cls, rows: Constraints, chosen: Bool) -> WorkingRows:
        """The rows marked in chosen (n, T), but for those that are zero: no W moves them."""
        example, token = np.nonzero(chosen)
        delta, queries = rows.differences(example, token), rows.queries[example]
        square = np.einsum("kd,kd->k", delta, delta) * np.einsum("ke,ke->k", queries, queries)
        if not square.all():
            chosen = chosen.copy()
            chosen[example, token] = square > 0
            return cls.of(rows, chosen)
        length = np.sqrt(square)
        delta = delta / length[:, None]
        start = np.flatnonzero(np.diff(example, prepend=-1))
        if rows.e == 1:  # the query is a number: one group of rows instead of one per example
            delta, queries, start = delta * queries, np.ones((1, 1)), np.zeros(1, np.intp)
        else:
            queries = queries[start]
        bound = rows.bound[example, token] / length
        return cls(example, token, delta, bound, rows.tied[example, token], length, queries, start)

    @property
    def k(self) -> int:
        return len(self.delta)

    @cached_property
    def group(self) -> NDArray[np.intp]:
        """Index into queries of each row (k,)."""
        return np.repeat(np.arange(len(self.start)), np.diff(self.start, append=self.k))

    @cached_property
    def structure(self) -> tuple[Float, Float, NDArray[np.intp]]:
        """What the compiled products need: columns (d, k), queries and edges (groups + 1,)."""
        return np.ascontiguousarray(self.delta.T), self.queries, np.append(self.start, self.k)

    def dense(self) -> Float:
        """The rows as vectors (k, d e)."""
        d, e = self.delta.shape[1], self.queries.shape[1]
        if e == 1:
            return self.delta  # `of` has multiplied the query into it
        return (self.delta[:, :, None] * self.queries[self.group][:, None, :]).reshape(self.k, d * e)

    def margins(self, W: Float) -> Float:
        """δ_jᵀ W z_j: (d, e) → (k,)."""
        out = np.empty(self.k)
        products.margins(*self.structure, W.ravel(), out)
        return out

    def combine(self, multipliers: Float) -> Float:
        """Σ λ_j δ_j z_jᵀ: (k,) → (d, e)."""
        out = np.empty((self.delta.shape[1], self.queries.shape[1]))
        products.combine(*self.structure, multipliers, out.reshape(-1))
        return out
