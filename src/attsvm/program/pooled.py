"""Keys that are stored elsewhere: a pool of rows is solved in memory, and a pass tells which rows it missed.

    pool → W, λ  → one pass: margins of all rows → add the most violated ones → …

Every pool is a program of its own, solved to the last digits by the algorithm of its norm. Its value is a
lower bound on the value over all rows, and W divided by its least margin gives the upper one; the rounds
end when no row outside the pool is violated. Examples that W cannot have harmed since they were read last,
|⟨A_j, W − W'⟩| ≤ |A_j| |W − W'|, are not read again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.progress import Line
from attsvm.tokens import Bool, Float, Tokens

SATISFIED = 1e-11
"""Shortfall of a row, relative to what it asks for, that needs no further round."""

ROUNDS = 200

PROBE, ADDED, EACH = 2, 4, 3
"""Rows per unknown in the first pool, and added in a round; the most rows of one example among these."""

STRIDES = (16, 4)
"""The first rounds read every 16th and every 4th example: W is crude."""

FEWEST, MEMORY = 256, 1 << 26
"""Rows that may be added in a round at least, and numbers that they may have (0.5 GB)."""

NEAR = 0.1
"""Rows without a multiplier stay in the pool while their margin exceeds what they ask for by less."""


@dataclass(frozen=True)
class Pool:
    """Some rows as a program in memory; example (k,), token (k, t): its tokens among all n × width."""

    rows: Constraints
    example: NDArray[np.intp]
    token: NDArray[np.intp]
    width: int

    @classmethod
    def of(cls, tokens: Tokens, rows: Constraints, chosen: Bool, together: bool) -> Pool:
        """The chosen rows (n, T): each an example of its own, or those of an example together."""
        if not together:
            example, token = np.nonzero(chosen)
            token = np.stack([rows.anchor[example], token], 1)
            small = Tokens(tokens.keys[example[:, None], token], tokens.queries[example])
            selected = np.stack([np.ones(len(example), bool), rows.tied[example, token[:, 1]]], 1)
            return cls(Constraints.of(small, selected, rows.asked[example]), example, token, rows.T)
        example = np.flatnonzero(chosen.any(1))
        few = chosen[example]
        order = np.argsort(~few, axis=1, kind="stable")[:, : int(few.sum(1).max(initial=1))]
        token = np.concatenate([rows.anchor[example, None], order], 1)
        mask = np.concatenate([np.ones((len(example), 1), bool), np.take_along_axis(few, order, 1)], 1)
        at = np.nonzero(mask)
        keys = np.zeros((*token.shape, rows.d))
        keys[at] = tokens.keys[example[at[0]], token[at]]
        selected = np.take_along_axis(rows.tied[example], token, 1) & mask
        selected[:, 0] = True
        small = Tokens(keys, tokens.queries[example], mask=mask)
        return cls(Constraints.of(small, selected, rows.asked[example]), example, token, rows.T)

    @property
    def names(self) -> NDArray[np.intp]:
        """Of every active row, in their order, a number that is the same in every pool."""
        example, token = np.nonzero(self.rows.active)
        return self.example[example] * self.width + self.token[example, token]

    def shortfall(self, W: Float, n: int) -> Float:
        """By how much the pool lets each of n examples fall short, relative to what it asks: zero if hard."""
        asked = self.rows.asked
        over = self.rows.token_margins(W) - asked[:, None]
        short = -over.min(1, initial=0.0, where=self.rows.separating)
        out = np.zeros(n)
        np.maximum.at(out, self.example, short / np.where(asked > 0, asked, asked.max() or 1.0))
        return out

    def lift(self, multipliers: Float, shape: tuple[int, int]) -> Float:
        """Multipliers of the pool laid out over all tokens."""
        out = np.zeros(shape)
        live = self.rows.active
        out[np.broadcast_to(self.example[:, None], live.shape)[live], self.token[live]] = multipliers[live]
        return out


Solve = Callable[[Pool], Answer]
"""A pool → its answer in the units of the tokens."""


class Slacks:
    """What is known of the rows outside the pool: the least slack of every example when it was read last."""

    def __init__(self, rows: Constraints) -> None:
        self.rows = rows
        self.least = np.full(rows.n, -np.inf)
        self.round = np.zeros(rows.n, int)
        self.points: list[Float] = []
        largest = float(rows.bound.max(initial=0.0)) or 1.0
        self.unit = np.where(rows.bound > 0, rows.bound, largest)
        self.reach = rows.reach / self.unit.min(1)

    def forget(self, examples: Bool) -> None:
        """A row of these examples (n,) has left the pool."""
        self.least[examples] = -np.inf

    def measure(self, W: Float, chosen: Bool, allowed: Float, stride: int, turn: int) -> Float:
        """Shortfalls (n, T) of the rows outside the pool beyond those allowed (n,), relative to the bounds.

        −∞ for rows that need not be read.
        """
        moved = np.array([float(np.linalg.norm(W - before)) for before in self.points] or [np.inf])
        doubt = self.least + allowed <= self.reach * moved[self.round]
        if stride > 1:
            doubt &= np.arange(self.rows.n) % stride == turn % stride
        examples = np.flatnonzero(doubt)
        rows, short = self.rows, np.full(chosen.shape, -np.inf)
        outside = (rows.separating & ~chosen)[examples]
        over = (rows.some_margins(W, examples) - rows.bound[examples]) / self.unit[examples]
        self.points.append(W)
        self.least[examples] = over.min(1, initial=np.inf, where=outside)
        short[examples] = np.where(outside, -over - allowed[examples, None], -np.inf)
        self.round[examples] = len(self.points) - 1
        return short


def solve(tokens: Tokens, rows: Constraints, solve_pool: Solve, together: bool) -> Answer:
    """The answer over all rows, in the units of the tokens; a terminal shows how far it is.

    together: the rows of an example stay one, because they share a query or the hinge of a soft margin.
    """
    with Line() as line:
        return _rounds(tokens, rows, solve_pool, together, line)


def _rounds(tokens: Tokens, rows: Constraints, solve_pool: Solve, together: bool, line: Line) -> Answer:
    if not rows.active.any():
        return Answer(np.zeros((rows.d, rows.e)), np.zeros(rows.active.shape))
    chosen = _first(rows)
    slacks, share = Slacks(rows), _share(rows)
    for turn in range(ROUNDS):
        pool = Pool.of(tokens, rows, chosen, together)
        answer = solve_pool(pool)
        multipliers = pool.lift(answer.multipliers, rows.active.shape)
        if not answer.separable:
            return replace(answer, W=np.zeros((rows.d, rows.e)), multipliers=multipliers)
        W = np.ldexp(answer.W, -rows.unit)
        stride = STRIDES[turn] if turn < len(STRIDES) and rows.n > 64 * STRIDES[turn] else 1
        short = slacks.measure(W, chosen, pool.shortfall(answer.W, rows.n), stride, turn)
        missed = _missed(short, share)
        line.show(_words(turn + 1, pool, short))
        if not missed.any() and stride == 1:
            break
        kept = _useful(chosen, pool, answer, rows)
        slacks.forget(np.any(chosen & ~kept, axis=1))
        chosen = missed | kept
    return replace(answer, multipliers=multipliers)


def _words(turn: int, pool: Pool, short: Float) -> str:
    """How far the rounds have come: the rows that the last pass found violated, and the worst of them."""
    violated = np.count_nonzero(short > SATISFIED)
    worst = f", worst by {short.max():.1e}" if violated else ""
    return f"pass {turn}, pool of {pool.rows.m:,} rows: {violated:,} others violated{worst}"


def _first(rows: Constraints) -> Bool:
    """All ties; of vectors all rows of a few examples, of matrices, which have more room, a few of all."""
    most = max(PROBE * min(rows.d * rows.e, rows.n), FEWEST)
    most = min(most, max(1, MEMORY // rows.d))
    chosen, have = rows.tied.copy(), np.flatnonzero(rows.active.any(1))
    count, each = (1 + most // rows.T, rows.T) if rows.e == 1 else (most, max(1, most // rows.n))
    few = have[np.linspace(0, len(have) - 1, min(len(have), count)).astype(int)]
    chosen[few] |= rows.active[few] & (rows.active[few].cumsum(1) <= each)
    return chosen


def _share(rows: Constraints) -> int:
    """Rows that may join the pool in a round."""
    return min(max(ADDED * min(rows.d * rows.e, rows.n), FEWEST), max(1, MEMORY // rows.d))


def _missed(short: Float, share: int) -> Bool:
    """The most violated rows, at most EACH of an example."""
    each = min(EACH, short.shape[1])
    worst = -np.partition(-short, each - 1, axis=1)[:, each - 1 : each]
    missed = (short > SATISFIED) & (short >= worst)
    if np.count_nonzero(missed) > share:
        values = short[missed]
        missed &= short >= -np.partition(-values, share - 1)[share - 1]
    return missed


def _useful(chosen: Bool, pool: Pool, answer: Answer, rows: Constraints) -> Bool:
    """The rows of the pool that hold W, or nearly do."""
    over = pool.rows.token_margins(answer.W) - (1 + NEAR) * pool.rows.asked[:, None]
    keep = (over <= 0) | (answer.multipliers != 0) | pool.rows.tied
    return chosen & (pool.lift(np.where(keep, 1.0, 0.0), rows.active.shape) > 0)
