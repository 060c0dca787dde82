"""Some rows of a program at length one: what every engine solves.

Near-ties are short rows with large multipliers; at length one they are rows like all others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.norms import Norm
from attsvm.numbers import Bool, Float
from attsvm.program import bounds, passes
from attsvm.program.constraints import Constraints, unit
from attsvm.program.engine import Answer, Found
from attsvm.program.passes import TINY
from attsvm.program.span import Span

WRITTEN = 1 << 14
"""Most numbers in rows that are written out: one product is then cheaper than three steps."""

EACH = ("delta", "owner", "bound", "tied", "price", "length", "example", "token")
"""What there is one of for each row."""


@dataclass(frozen=True, eq=False)
class Rows:
    """k rows  ⟨A_j, W⟩ ≥ bound_j  (= 0 where tied),  A_j = δ_j z_jᵀ of length one.

    delta (k, d), queries (g, e): of length one, the queries of the g examples that have a row.
    owner (k,): which of the g; example, token (k,): the rows' names in the program.
    length (k,): what a row was divided by, so that its multiplier in the program is λ_j / length_j.
    price (k,): what a unit costs that its example falls short; ∞: it must not. Zero rows are left out, but
    where they can be paid for, or are asked for: these have the length of the longest, and δ = 0.
    shape (n, T): that of the program's arrays.

    Matrices and vectors differ in two ways. Rows of matrices (e > 1) are sorted by example and token, and
    share the query of their example. Of vectors (e = 1) the query is a number, which goes into δ: all rows
    share the query one, g = 1; rows that join come last, in a buffer that begins with delta and has room
    for them, so that an engine may keep what it knows of those before.
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
    def of(cls, program: Constraints, chosen: Bool | None = None, zeros: bool = False) -> Rows:
        """The chosen rows (n, T), all by default; zeros: with zero rows."""
        example, token = np.nonzero(program.active if chosen is None else chosen)
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
        at, price, zero = (example, token), program.price.take(example), length <= TINY
        if zero.any():
            kept = ~zero | (price < np.inf) | zeros
            if not kept.all():
                return cls.named(program, example[kept], token[kept])
            delta[zero], length[zero] = 0.0, float(length.max()) if not zero.all() else 1.0
        bound, tied = program.bound[at] / length, program.tied[at]
        return cls(delta, queries, owner, bound, tied, price, length, *at, program.active.shape)

    def some(self, which: NDArray[np.intp] | Bool) -> Rows:
        """Some of the rows, in their order; queries that none of them has stay."""
        return replace(self, buffer=None, **{name: getattr(self, name)[which] for name in EACH})

    def joined(self, more: Rows) -> Rows:
        """These rows and others: of vectors the others last, in the same memory, else sorted by name."""
        if not (len(self) and len(more)):
            return self if len(self) else more
        both = ((name, [getattr(self, name), getattr(more, name)]) for name in EACH[1:])
        parts: dict[str, Any] = {name: np.concatenate(pair) for name, pair in both}
        if self.e == 1:
            buffer = self._with_room(len(self) + len(more))
            buffer[len(self) : len(self) + len(more)] = more.delta
            return replace(self, delta=buffer[: len(self) + len(more)], buffer=buffer, **parts)
        parts["delta"] = np.concatenate([self.delta, more.delta])
        order = np.lexsort((parts["token"], parts["example"]))
        place = np.concatenate([self.owner, more.owner + len(self.queries)])[order]
        parts = {name: part[order] for name, part in parts.items()}
        first = _first(parts["example"])
        queries = np.concatenate([self.queries, more.queries])[place[first]]
        return replace(self, **parts | {"owner": np.cumsum(first) - 1, "queries": queries})

    def _with_room(self, count: int) -> Float:
        """Memory for so many rows that begins with these."""
        if self.buffer is not None and len(self.buffer) >= count:
            return self.buffer
        buffer = np.empty((2 * count, self.d))
        buffer[: len(self)] = self.delta
        return buffer

    def places(self, pool: Rows) -> NDArray[np.intp]:
        """Where among these rows are those of the pool that others have joined: (k',)."""
        if self.e == 1:
            return np.arange(len(pool))
        width = int(self.token.max()) + 1
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
        """The same where they are few."""
        return self.dense if self.delta.size * self.e <= WRITTEN else None

    # ------------------------------------------------------------------ the linear map and its adjoint

    def margins(self, W: Float) -> Float:
        """δ_jᵀ W z_j: (d, e), or flat (d·e,), → (k,)."""
        if self.features is not None:
            return np.asarray(self.features @ W.ravel())
        if self.e == 1:
            return np.asarray(self.delta @ W.ravel())
        out = np.empty(len(self))
        passes.row_margins(self.delta, self.owner, self.queries @ W.reshape(self.d, self.e).T, out)
        return out

    def combine(self, multipliers: Float) -> Float:
        """Σ λ_j δ_j z_jᵀ: (k,) → (d, e), the adjoint of `margins`."""
        if self.features is not None:
            return np.asarray(multipliers @ self.features).reshape(self.d, self.e)
        if self.e == 1:
            return np.asarray(multipliers @ self.delta)[:, None]
        sums = np.zeros((len(self.queries), self.d))
        passes.row_sums(self.delta, self.owner, np.ascontiguousarray(multipliers), sums)
        return np.asarray(sums.T @ self.queries)

    @property
    def gram(self) -> Float:
        """⟨A_i, A_j⟩ of all pairs (k, k): (Δ Δᵀ) ∘ (Z Zᵀ)."""
        products = self.delta @ self.delta.T
        if self.e == 1:
            return np.asarray(products)
        if len(self) <= len(self.queries):  # a few rows may come with the queries of many
            own = self.queries[self.owner]
            products *= own @ own.T
        else:
            like = self.queries @ self.queries.T
            products *= like.take(self.owner, 0).take(self.owner, 1)
        return np.asarray(products)

    # ------------------------------------------------------------------ the program's arrays

    def pick(self, values: Float) -> Float:
        """These rows' part (k,) of an array over all rows of the program (n, T)."""
        return values[self.example, self.token]

    def spread(self, values: Float) -> Float:
        """The array over all rows of the program that has these values (k,), and zeros elsewhere."""
        out = np.zeros(self.shape)
        out[self.example, self.token] = values
        return out

    def answer(self, found: Found) -> Answer:
        """What was found on these rows as an answer of the program, up to positive factors."""
        multipliers = found.multipliers if found.scaled else found.multipliers / self.length
        return Answer(found.W, self.spread(multipliers), found.separable, found.gap)

    def at_margin_one(self, found: Found, norm: Norm, least: float = np.inf) -> Answer:
        """The same with W at the required margins and N*(Σ λ_j A_j) = 1, where both can be.

        least: the least margin per bound of the other rows of the program.
        """
        gap, least, lower = bounds.measured(self, norm, found.W, found.multipliers, least)
        if not (0 < least < np.inf and lower > 0):
            return self.answer(replace(found, gap=np.inf))
        lam = np.where(self.tied, found.multipliers, np.maximum(found.multipliers, 0.0))
        lam *= lower / float(lam @ self.bound)
        return Answer(found.W / least, self.spread(lam / self.length), gap=gap)


def hardest(program: Constraints, W: Float, count: int, few: int) -> Bool:
    """All rows where they are few; else the ties, and so many with a bound, so many without (n, T).

    Those of least margin at W, relative to the bound. A margin of exactly zero is a zero row's, which takes
    no place; another one joins if it is violated.
    """
    if np.count_nonzero(program.active) <= few:
        return program.active
    margins, asks = program.margins(W), program.bound > 0
    order = margins / np.where(asks, program.bound, 1.0)
    free = program.separating & ~asks & (margins != 0)
    return program.tied | least(order, asks, count) | least(order, free, count)


def _first(example: NDArray[np.intp]) -> Bool:
    """Which rows are the first of their example (k,)."""
    first = np.ones(len(example), bool)
    np.not_equal(example[1:], example[:-1], out=first[1:])
    return first


def least(values: Float, among: Bool, count: int) -> Bool:
    """Of some rows of a program (n, T) so many with the least values, however many are alike."""
    example, token = np.nonzero(among)
    if len(example) <= count:
        return among
    few = np.argpartition(values[example, token], count)[:count]
    chosen = np.zeros(among.shape, bool)
    chosen[example[few], token[few]] = True
    return chosen


def _shared(delta: Float, queries: Float, owner: NDArray[np.intp]) -> tuple[Float, Float, NDArray[np.intp]]:
    """The parts of rows; where queries are numbers, they go into the differences."""
    if queries.shape[1] > 1:
        return delta, queries, owner
    signed = delta if (queries > 0).all() else delta * queries[owner]
    return signed, np.ones((1, 1)), np.zeros_like(owner)
