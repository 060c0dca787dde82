"""Some rows of a program at length one, which every engine solves, and fewer coordinates for them.

Near-ties are short rows with large multipliers; at length one their multipliers have the usual size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.norms import Norm
from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import compiled
from attsvm.program import bounds
from attsvm.program.answer import Answer
from attsvm.program.constraints import TINY, Constraints, unit

FEW_NUMBERS = 1 << 14
"""Most numbers in rows that are written out: one product is then cheaper than three steps."""

OF_ROWS = ("delta", "owner", "bound", "tied", "price", "length", "example", "token")
"""The arrays that have one entry per row."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """W and multipliers of some rows of length one, up to positive factors.

    W (d, e), multipliers (k,); not separable: W and gap are zero, and the multipliers prove a contradiction.
    gap: the relative gap between their bounds over these rows.
    """

    W: Float
    multipliers: Float
    gap: float = np.inf
    separable: bool = True


@dataclass(frozen=True, eq=False)
class Rows:
    """k rows  ⟨A_j, W⟩ ≥ bound_j  (= 0 where tied),  A_j = δ_j z_jᵀ of length one.

    delta (k, d), queries (g, e): of length one, the queries of the g examples that have a row.
    owner (k,): which of the g; example, token (k,): the rows' names in the program.
    length (k,): of the row in the program, whose multiplier is λ_j / length_j.
    price (k,): per unit that its example falls short; ∞: it must not. Zero rows are omitted, unless their
    example may fall short or `zeros` requests them: they have the length of the longest row, and δ = 0.
    shape (n, T): that of the program's arrays.

    Matrices and vectors differ in two ways. Rows of matrices (e > 1) are sorted by example and token, and
    share the query of their example. Of vectors (e = 1) the query is a number, which multiplies δ: all rows
    share the query one, g = 1. New rows come last, in a buffer that begins with delta, so that an engine may
    reuse its factors of the earlier rows.
    """

    delta: Float
    queries: Float
    owner: NDArray[np.intp]
    bound: Float
    tied: Bool
    price: Float
    length: Float
    example: NDArray[np.intp]
    token: NDArray[np.intp]
    shape: tuple[int, ...]
    buffer: Float | None = None

    @classmethod
    def of(cls, program: Constraints, subset: Bool | None = None, zeros: bool = False) -> Rows:
        """The rows of a subset (n, T), all by default; zeros: with zero rows."""
        example, token = np.nonzero(program.active if subset is None else subset)
        return cls.named(program, example, token, zeros)

    @classmethod
    def named(
        cls, program: Constraints, example: NDArray[np.intp], token: NDArray[np.intp], zeros: bool = False
    ) -> Rows:
        """The same by their names (k,), (k,), sorted by example."""
        delta, reach = program.unit_differences(example, token)
        first = _first(example)
        owner = np.cumsum(first) - 1
        queries, size = unit(program.queries[example[first]])
        length = reach * size[owner]
        delta, queries, owner = _shared(delta, queries, owner)
        at, price, zero = (example, token), program.units.price.take(example), length <= TINY
        if zero.any():
            retained = ~zero | (price < np.inf) | zeros
            if not retained.all():
                return cls.named(program, example[retained], token[retained])
            delta[zero], length[zero] = 0.0, float(length.max()) if not zero.all() else 1.0
        bound, tied = program.bound[at] / length, program.tied[at]
        return cls(delta, queries, owner, bound, tied, price, length, *at, program.active.shape)

    def some(self, index: NDArray[np.intp] | Bool) -> Rows:
        """Some of the rows, in their order; queries that none of them has stay."""
        return replace(self, buffer=None, **{name: getattr(self, name)[index] for name in OF_ROWS})

    def joined(self, new: Rows) -> Rows:
        """These rows and new ones: of vectors the new ones last, in the same memory, else sorted by name."""
        if not (len(self) and len(new)):
            return self if len(self) else new
        both = ((name, [getattr(self, name), getattr(new, name)]) for name in OF_ROWS[1:])
        arrays: dict[str, Any] = {name: np.concatenate(pair) for name, pair in both}
        if self.e == 1:
            buffer = self._with_room(len(self) + len(new))
            buffer[len(self) : len(self) + len(new)] = new.delta
            return replace(self, delta=buffer[: len(self) + len(new)], buffer=buffer, **arrays)
        arrays["delta"] = np.concatenate([self.delta, new.delta])
        order = np.lexsort((arrays["token"], arrays["example"]))
        place = np.concatenate([self.owner, new.owner + len(self.queries)])[order]
        arrays = {name: array[order] for name, array in arrays.items()}
        first = _first(arrays["example"])
        queries = np.concatenate([self.queries, new.queries])[place[first]]
        return replace(self, **arrays | {"owner": np.cumsum(first) - 1, "queries": queries})

    def _with_room(self, count: int) -> Float:
        """Memory for so many rows that begins with these."""
        if self.buffer is not None and len(self.buffer) >= count:
            return self.buffer
        buffer = np.empty((2 * count, self.d))
        buffer[: len(self)] = self.delta
        return buffer

    def places(self, pool: Rows) -> NDArray[np.intp]:
        """The places among these rows of the rows of an earlier pool: (k',)."""
        if self.e == 1:
            return np.arange(len(pool))
        width = int(self.token.max(initial=0)) + 1
        return np.searchsorted(self.example * width + self.token, pool.example * width + pool.token)

    def within(self, span: Span) -> Rows:
        """The rows in the coordinates of a span that holds them."""
        delta, queries, owner = _shared(self.delta @ span.left, self.queries @ span.right, self.owner)
        return replace(self, delta=delta, queries=queries, owner=owner, buffer=None)

    # ------------------------------------------------------------------ sizes and views

    def __len__(self) -> int:
        return len(self.bound)

    @property
    def n(self) -> int:
        return self.shape[0]

    @property
    def d(self) -> int:
        return self.delta.shape[1]

    @property
    def e(self) -> int:
        return self.queries.shape[1]

    @property
    def span(self) -> Span:
        """Coordinates that hold the rows; all of them where the rows are many."""
        return Span(basis(self.delta), basis(self.queries))

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """First row of each query (g,)."""
        return np.searchsorted(self.owner, np.arange(len(self.queries)))

    @cached_property
    def slices(self) -> list[slice]:
        """The rows of each query."""
        ends = [*self.starts[1:].tolist(), len(self)]
        return [slice(a, b) for a, b in zip(self.starts.tolist(), ends, strict=True)]

    @property
    def dense(self) -> Float:
        """The rows as vectors (k, d·e)."""
        if self.e == 1:
            return self.delta
        return (self.delta[:, :, None] * self.queries[self.owner][:, None, :]).reshape(-1, self.d * self.e)

    @cached_property
    def features(self) -> Float | None:
        """The rows as vectors where they are few."""
        return self.dense if self.delta.size * self.e <= FEW_NUMBERS else None

    # ------------------------------------------------------------------ the linear map and its adjoint

    def margins(self, W: Float) -> Float:
        """δ_jᵀ W z_j: (d, e), or flat (d·e,), → (k,)."""
        if self.features is not None:
            return np.asarray(self.features @ W.ravel())
        if self.e == 1:
            return np.asarray(self.delta @ W.ravel())
        out = np.empty(len(self))
        _margins(self.delta, self.owner, self.queries @ W.reshape(self.d, self.e).T, out)
        return out

    def combine(self, multipliers: Float) -> Float:
        """Σ λ_j δ_j z_jᵀ: (k,) → (d, e), the adjoint of `margins`."""
        if self.features is not None:
            return np.asarray(multipliers @ self.features).reshape(self.d, self.e)
        if self.e == 1:
            return np.asarray(multipliers @ self.delta)[:, None]
        sums = np.zeros((len(self.queries), self.d))
        _sums(self.delta, self.owner, np.ascontiguousarray(multipliers), sums)
        return np.asarray(sums.T @ self.queries)

    @property
    def gram(self) -> Float:
        """⟨A_i, A_j⟩ of all pairs (k, k): (Δ Δᵀ) ∘ (Z Zᵀ)."""
        products = self.delta @ self.delta.T
        if self.e == 1:
            return np.asarray(products)
        if len(self) <= len(self.queries):  # a few rows may come with the queries of many
            queries = self.queries[self.owner]
            products *= queries @ queries.T
        else:
            similar = self.queries @ self.queries.T
            products *= similar.take(self.owner, 0).take(self.owner, 1)
        return np.asarray(products)

    # ------------------------------------------------------------------ the program's arrays

    def pick(self, values: Float) -> Float:
        """The entries (k,) of an array over all rows of the program (n, T) that belong to these."""
        return values[self.example, self.token]

    def spread(self, values: Float) -> Float:
        """The array over all rows of the program that has these values (k,), and zeros elsewhere."""
        out = np.zeros(self.shape)
        out[self.example, self.token] = values
        return out

    def answer(self, candidate: Candidate) -> Answer:
        """A candidate over these rows as an answer of the program, up to positive factors."""
        return self.answer_at_lengths(replace(candidate, multipliers=candidate.multipliers / self.length))

    def answer_at_lengths(self, candidate: Candidate) -> Answer:
        """The same where the multipliers are those of the program's rows, not of rows at length one."""
        return Answer(candidate.W, self.spread(candidate.multipliers), candidate.separable, candidate.gap)

    def at_margin_one(self, candidate: Candidate, norm: Norm, least: float = np.inf) -> Answer:
        """The answer with W at the required margins and N*(Σ λ_j A_j) = 1, where both can be.

        least: the least margin per bound of the program's rows that are not here.
        """
        gap, least, lower = bounds.measured(self, norm, candidate.W, candidate.multipliers, least)
        if not (0 < least < np.inf and lower > 0):
            return self.answer(replace(candidate, gap=np.inf))
        lam = np.where(self.tied, candidate.multipliers, np.maximum(candidate.multipliers, 0.0))
        lam *= lower / float(lam @ self.bound)
        return Answer(candidate.W / least, self.spread(lam / self.length), gap=gap)


def _first(example: NDArray[np.intp]) -> Bool:
    """Which rows are the first of their example (k,)."""
    first = np.ones(len(example), bool)
    np.not_equal(example[1:], example[:-1], out=first[1:])
    return first


def _shared(delta: Float, queries: Float, owner: NDArray[np.intp]) -> tuple[Float, Float, NDArray[np.intp]]:
    """Differences, queries and owners of rows; where queries are numbers, they go into the differences."""
    if queries.shape[1] > 1:
        return delta, queries, owner
    signed = delta if (queries > 0).all() else delta * queries[owner]
    return signed, np.ones((1, 1)), np.zeros_like(owner)


@compiled
def _margins(delta: Float, owner: NDArray[np.intp], directions: Float, out: Float) -> None:
    """δ_jᵀ y of its example: delta (k, d), owner (k,), y (g, d) → out (k,)."""
    for j in range(len(delta)):
        total, i = 0.0, owner[j]
        for c in range(delta.shape[1]):
            total += delta[j, c] * directions[i, c]
        out[j] = total


@compiled
def _sums(delta: Float, owner: NDArray[np.intp], multipliers: Float, out: Float) -> None:
    """Σ_j λ_j δ_j of each example: λ (k,) → out (g, d), zero at first."""
    for j in range(len(delta)):
        weight, i = multipliers[j], owner[j]
        if weight != 0.0:
            for c in range(delta.shape[1]):
                out[i, c] += weight * delta[j, c]


# ---------------------------------------------------------------------- fewer coordinates


@dataclass(frozen=True, eq=False)
class Span:
    """Orthonormal bases left (d, d') of the differences and right (e, e') of the queries.

    Projecting W on these spans changes no margin and makes no singular value larger, so that
    W = left · W' · rightᵀ loses nothing in any norm of the singular values.
    """

    left: Float
    right: Float

    @classmethod
    def of(cls, program: Constraints) -> Span:
        """The span of all rows of one run; the whole space where they are many."""
        fewer = np.count_nonzero(program.active) < program.d
        left = basis(program.differences(*np.nonzero(program.active))) if fewer else np.eye(program.d)
        return cls(left, basis(program.queries[program.active.any(1)]))

    @classmethod
    def exactly(cls, delta: Float, queries: Float) -> Span:
        """The span of all rows, however many: tokens from a small vocabulary span less than the space."""
        return cls(_rank_revealing(delta), _rank_revealing(queries))

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


def basis(vectors: Float) -> Float:
    """Orthonormal columns (d, r) whose span holds all vectors (k, d); the identity where k ≥ d."""
    count, d = vectors.shape
    return np.eye(d) if count >= d else np.asarray(np.linalg.qr(vectors.T)[0])


def _rank_revealing(vectors: Float) -> Float:
    """Orthonormal basis (d, r) of the span of vectors (k, d), by a triangular factor."""
    _, sigma, right = np.linalg.svd(np.linalg.qr(vectors, mode="r"), full_matrices=False)
    return np.asarray(right[sigma > sigma[0] * max(vectors.shape) * np.finfo(float).eps].T)
