"""The few rows an interior point works on, and the Newton matrix  A diag(V) Aᵀ + diag(θ)  they give.

Row j is the rank-one matrix δ_j z_jᵀ, so A diag(V) Aᵀ costs n² d e + k² d operations instead of the
k² d e of explicit features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.linalg.lapack import dpotrf, dpotrs

from attsvm.program.constraints import Constraints
from attsvm.program.entrywise import products
from attsvm.tokens import Bool, Float

RAISED = (0.0, 1e-15, 1e-13, 1e-11, 1e-9, 1e-7)
"""Relative increases of the diagonal, in turn, that make dependent rows factorable."""

STIFF = 1e-2
"""A row is stiff, that is nearly active, if θ is below this share of its entry of A diag(V) Aᵀ."""

Solve = Callable[[Float], Float]
Response = Callable[[Float, bool], tuple[Float, Float, float]]


@dataclass(frozen=True, eq=False)
class Border:
    """One more unknown τ of the Newton system: dW has U dτ, the rows a = A U (k,); stiffness c > 0."""

    direction: Float
    column: Float
    stiffness: float


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
        """The rows marked in chosen (n, T)."""
        example, token = np.nonzero(chosen)
        start = np.flatnonzero(np.diff(example, prepend=-1))
        delta = rows.differences(example, token)
        length = np.linalg.norm(delta, axis=1) * np.linalg.norm(rows.queries[example], axis=1)
        delta = delta / length[:, None]
        queries = rows.queries[example[start]]
        if rows.e == 1:  # the query is a number: one group of rows instead of one per example
            delta = delta * rows.queries[example]
            queries, start = np.ones_like(queries[:1]), start[:1]
        bound = rows.bound[chosen] / length
        return cls(example, token, delta, bound, rows.tied[chosen], length, queries, start)

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
        products.margins(*self.structure, W, out)
        return out

    def combine(self, multipliers: Float) -> Float:
        """Σ λ_j δ_j z_jᵀ: (k,) → (d, e)."""
        out = np.empty((self.delta.shape[1], self.queries.shape[1]))
        products.combine(*self.structure, multipliers, out)
        return out

    def newton(self, V: Float, theta: Float, border: Border | None = None) -> Response:
        """Factor  K = A diag(V) Aᵀ + a aᵀ/c + diag(θ);  returns  (r, refined) → x, y, t:

            x = K⁻¹ r,    y = V ∘ Aᵀx + U t,    t = aᵀx / c

        V (d, e) > 0, θ (k,) ≥ 0, border = (U, a = A U, c) or none.
        With more rows than entries of W, most rows are eliminated into a matrix of that size.
        """
        if self.k <= 1.2 * V.size:
            solve = self._by_rows(V, theta, border)
        else:
            solve = self._by_entries(V, theta, border)

        def rough(r: Float) -> tuple[Float, Float, float]:
            x = solve(r)
            if border is None:
                return x, V * self.combine(x), 0.0
            t = float(border.column @ x) / border.stiffness
            return x, V * self.combine(x) + t * border.direction, t

        def response(r: Float, refined: bool) -> tuple[Float, Float, float]:
            x, y, t = rough(r)
            if not refined:
                return x, y, t
            # y and t are refined with x: new products with V, up to 1e13, would undo the refinement.
            more, further, beyond = rough(r - self.margins(y) - theta * x)
            return x + more, y + further, t + beyond

        return response

    def _by_rows(self, V: Float, theta: Float, border: Border | None) -> Solve:
        matrix = np.empty((self.k, self.k))
        products.gram(*self.structure, V, matrix)
        if border is not None:
            matrix += np.outer(border.column, border.column / border.stiffness)
        np.einsum("ii->i", matrix)[:] += theta
        return factor(matrix)

    def _by_entries(self, V: Float, theta: Float, border: Border | None) -> Solve:
        """Eliminate the rows with large θ into a matrix of the size of W, then factor the others.

        Eliminating active rows too (θ → 0) would cancel all digits of their multipliers. The border
        acts as one more entry of W, with its column a and weight 1/c.
        """
        features, root = self.dense(), np.sqrt(V).ravel()
        if border is not None:
            features = np.column_stack([features, border.column])
            root = np.append(root, 1.0 / np.sqrt(border.stiffness))
        features = features * root
        near = theta <= STIFF * np.einsum("kj,kj->k", features, features)
        stiff, loose, weight = features[near], features[~near], 1.0 / theta[~near]
        matrix = (loose.T * weight) @ loose
        np.einsum("ii->i", matrix)[:] += 1.0
        forward = partial(solve_triangular, cholesky(matrix), lower=True, check_finite=False)
        image = forward(stiff.T)
        inner = image.T @ image
        np.einsum("ii->i", inner)[:] += theta[near]
        solve = factor(inner)

        def reduced(r: Float) -> Float:
            pulled = forward((weight * r[~near]) @ loose)
            x = np.empty(self.k)
            x[near] = solve(r[near] - pulled @ image)
            x[~near] = weight * (r[~near] - loose @ forward(pulled + image @ x[near], trans=1))
            return x

        return reduced


def factor(matrix: Float) -> Solve:
    """The function that solves with a positive matrix, given by its lower triangle."""
    if not matrix.size:
        return lambda r: r
    lower = cholesky(matrix)
    return lambda r: np.asarray(dpotrs(lower.T, r)[0])


def cholesky(matrix: Float) -> Float:
    """Lower Cholesky factor; the diagonal is raised until there is one.

    Each entry is raised relative to itself: the diagonal spans twenty orders of magnitude.
    """
    diagonal = np.einsum("ii->i", matrix)
    for raised in RAISED:
        diagonal *= 1.0 + raised
        upper, info = dpotrf(matrix.T, clean=0)  # transposed: LAPACK counts by columns
        if info == 0:
            return np.asarray(upper).T
    raise np.linalg.LinAlgError("the Newton matrix is not positive")
