"""Small programs that float64 cannot finish, solved in numbers of twice the precision.

    hard   max bᵀλ                     with  ‖Σ λ_j A_j‖ ≤ 1,  λ ≥ 0
    soft   max bᵀλ − ½‖Σ λ_j A_j‖²     with  λ ≥ 0,  Σ_t λ_it ≤ C_i            (λ free on ties)

Euclidean norms only. W follows from the barrier of the ball. The path needs no feasible weight to start from,
and its numbers stay moderate when margins are tiny. Of many rows the first pool has few; violated ones join.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from attsvm.norms import frobenius
from attsvm.numbers import Bool, Float
from attsvm.numbers.doubled import Doubled
from attsvm.program import working_set
from attsvm.program.answer import Answer
from attsvm.program.constraints import Constraints
from attsvm.program.extended_precision.balls import Ball, Bowl, Round
from attsvm.program.extended_precision.central_path import FIRST, Point, Problem, follow
from attsvm.program.extended_precision.pool import (
    DoubledRows,
    NoAnswer,
    rounded_multipliers,
    rounded_soft_weight,
    rounded_weight,
)
from attsvm.program.rows import Candidate, Rows

GAP_GOAL, LARGEST_GAP = 1e-11, 1e-7
"""Relative gap at which the path ends, and above which its end is no answer."""

WORK = 12_000_000
"""Operations of a step, N² (N + D) for N unknowns and D entries of W: a fraction of a second."""

FARTHEST = 1e13
"""Norm, where rows and bounds are near one, whose margins no float64 weight can hold."""

SPANNED = 1e-25
"""Distance of a tie from the span of others at which it depends on them."""

LARGE_PRICE = 1e6
"""A C, where rows and bounds are near one, beyond which the program without slack is tried first."""

ROUNDS, ADDED = 12, 30
"""Times that rows may be found violated, and how many of them join."""


Rounded = tuple[Float, Float]
Pair = tuple[Doubled, Doubled]
Solved = Callable[[DoubledRows], Rounded | None]


def solve_in_extended_precision(program: Constraints, near: Float | None = None) -> Answer | None:
    """The answer over all rows of one run, or None where the problem is too large or the path ends early.

    near: a weight whose margins tell which rows to begin with, where there are many; None: with all rows.
    """
    count = 2 * program.d * program.e + 50
    soft = partial(_soft, price=program.units.price)
    engine = DoubledEngine(program, soft if program.units.soft else _hard)
    first = program.active if near is None else working_set.hardest(program, near, count, 2 * count)
    try:
        return working_set.solve_on_pools(
            program, frobenius, engine, first, most=ADDED, exact=True, scaled=True
        )
    except NoAnswer:
        return None


class DoubledEngine:
    """An engine in doubled numbers. After ROUNDS rounds it accepts its answer, whatever rows are violated."""

    def __init__(self, program: Constraints, solved: Solved) -> None:
        self.program, self.solved, self.remaining = program, solved, ROUNDS

    def __call__(self, rows: Rows) -> working_set.Stage:
        pool, shape = DoubledRows.of(self.program, rows), (self.program.d, self.program.e)
        with np.errstate(all="ignore"):
            rounded = self.solved(pool)
        if rounded is None:
            raise NoAnswer
        self.remaining -= 1
        allowed = None if self.remaining else np.full(self.program.n, np.inf)
        W, multipliers = pool.weight(rounded[0].reshape(shape)), pool.multipliers(rounded[1], rows)
        return working_set.Stage(Candidate(W, multipliers), allowed=allowed)


# ---------------------------------------------------------------------- the two programs


def _hard(pool: DoubledRows) -> Rounded | None:
    pair = _hard_pair(pool, _independent(pool))
    if pair is None:
        return None
    W, multipliers = pair
    return rounded_weight(W, pool), rounded_multipliers(multipliers, pool)


def _hard_pair(pool: DoubledRows, used: Bool) -> Pair | None:
    """W with the required margins, and multipliers with ‖Σ λ_j A_j‖ < 1."""
    lam = np.where(pool.tied, 0.0, 0.3 / np.abs(pool.A.hi).sum())[used]
    limits = np.eye(len(lam))[~pool.tied[used]]
    end = _path(pool, used, Round(pool.A.shape[1]), lam, limits, np.zeros(len(limits)), FIRST)
    return None if end is None or end.value > FARTHEST else _spread(pool, used, end)


def _soft(pool: DoubledRows, price: Float) -> Rounded | None:
    """Rows here are 2^−power times, weights 2^−unit times the program's, so Σ_t 2^−power λ_t ≤ 2^−unit C."""
    if len(pool) ** 2 * (len(pool) + pool.A.shape[1]) > WORK:
        return None
    used, free = _independent(pool), ~pool.tied
    hinges = np.unique(pool.example[free])
    share = np.where(pool.example == hinges[:, None], np.ldexp(free * 1.0, -pool.power), 0.0)
    limit = np.ldexp(price[hinges], -pool.unit) / share.max(1)
    share = share / share.max(1, keepdims=True)
    pair = _below_limits(pool, used, share, limit) or _soft_pair(pool, used, share, limit)
    if pair is None:
        return None
    W, lam = pair[0], pair[1].hi
    each = np.ldexp(price[pool.example], pool.power - pool.unit)
    lam = np.ldexp(np.where(pool.tied, lam, np.maximum(lam, 0.0)), pool.unit)
    return rounded_soft_weight(W, pool, each), lam


def _below_limits(pool: DoubledRows, used: Bool, share: Float, limit: Float) -> Pair | None:
    """The program without slack, where its multipliers stay below a C that is large."""
    if limit.max() < LARGE_PRICE:
        return None
    pair = _hard_pair(pool, used)
    if pair is None:
        return None
    W, lam = pair
    lam = lam * (W * W).sum().sqrt()
    return (W, lam) if (share @ lam.hi <= limit).all() else None


def _soft_pair(pool: DoubledRows, used: Bool, share: Float, limit: Float) -> Pair | None:
    free, share = ~pool.tied[used], share[:, used]
    # A start below all limits, and below the optimum without limits.
    lam = np.minimum((limit / (share > 0).sum(1)) @ (share > 0), 1.0 / len(free)) * 0.3 * free
    L, h = np.concatenate([np.eye(len(lam))[free], -share]), np.append(np.zeros(free.sum()), limit)
    first = 10 * float(limit.sum() * pool.bound.max())
    end = _path(pool, used, Bowl(pool.A.shape[1], first), lam, L, h, first)
    return None if end is None else _spread(pool, used, end)


def _path(
    pool: DoubledRows, used: Bool, ball: Ball, lam: Float, L: Float, h: Float, first: float
) -> Point | None:
    """The end of the path from multipliers of the independent rows."""
    A = pool.A[used]
    k, D = A.shape
    heights = ball.heights(A.hi.T @ lam)
    count = len(heights)
    if (k + count) ** 2 * (k + count + D + count) > WORK:
        return None
    X = Doubled(np.zeros((D + count, k + count)))
    X[:D, :k] = A.T
    X.hi[D:, k:] = np.eye(count)
    # The height of a bowl is the value of its quadratic, which the objective subtracts.
    gain = np.append(pool.bound[used], np.full(count, -1.0 if isinstance(ball, Bowl) else 0.0))
    L = np.concatenate([L, np.zeros((len(L), count))], 1)
    program = Problem(Doubled(gain), X, ball, Doubled(L), Doubled(h))
    end = follow(program, np.append(lam, heights), GAP_GOAL, first)
    return None if end is None or not end.gap <= LARGEST_GAP * end.value else end


def _spread(pool: DoubledRows, used: Bool, end: Point) -> tuple[Doubled, Doubled]:
    """W (D,), and the multipliers of all rows of the pool (k,)."""
    lam, count = Doubled(np.zeros(len(pool))), int(used.sum())
    lam[used] = end.y[:count]
    return end.W[: pool.A.shape[1]], lam


def _independent(pool: DoubledRows) -> Bool:
    """All inequalities, and ties that depend on no tie before them."""
    used = ~pool.tied
    basis: list[Doubled] = []
    for j in np.flatnonzero(pool.tied):
        remainder = pool.A[j]
        for direction in [*basis, *basis]:
            remainder = remainder - direction * (direction * remainder).sum()
        if float(np.linalg.norm(remainder.hi)) > SPANNED:
            basis.append(remainder / (remainder * remainder).sum().sqrt())
            used[j] = True
    return used
