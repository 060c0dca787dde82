"""The careful way: small programs that float64 cannot finish, solved in numbers of twice the precision.

    hard   max bᵀλ                     with  N*(Σ λ_j A_j) ≤ 1,  λ ≥ 0
    soft   max bᵀλ − ½‖Σ λ_j A_j‖²     with  λ ≥ 0,  Σ_t λ_it ≤ C_i            (λ free on ties)

One form for all norms: W is read off the barrier of the ball. It needs no first feasible weight, and its
numbers stay moderate when margins are tiny. Of many rows it begins with few; those that W violates join.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from attsvm.norms import Norm, frobenius
from attsvm.numbers import Bool, Float
from attsvm.numbers.doubled import Doubled
from attsvm.program import working_set
from attsvm.program.answer import Answer
from attsvm.program.constraints import Constraints
from attsvm.program.extended_precision.balls import Ball, Bowl, unit_ball
from attsvm.program.extended_precision.central_path import FIRST, Point, Program, follow
from attsvm.program.extended_precision.pool import (
    NoAnswer,
    Pool,
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
Solved = Callable[[Pool, tuple[int, int]], Rounded | None]


def solve_in_extended_precision(program: Constraints, norm: Norm, near: Float | None = None) -> Answer | None:
    """The answer over all rows of one run, or None where the problem is too large or the path ends early.

    near: a weight whose margins tell which rows to begin with, where there are many; None: with all rows.
    """
    count = 2 * program.d * program.e + 50
    soft = partial(_soft, price=program.units.price)
    engine = Careful(program, soft if program.units.soft else partial(_hard, norm=norm))
    first = program.active if near is None else working_set.hardest(program, near, count, 2 * count)
    try:
        return working_set.solve_on_pools(program, norm, engine, first, most=ADDED, exact=True, scaled=True)
    except NoAnswer:
        return None


class Careful:
    """An engine in doubled numbers. After so many rounds it takes what it has."""

    def __init__(self, program: Constraints, solved: Solved) -> None:
        self.program, self.solved, self.left = program, solved, ROUNDS

    def __call__(self, rows: Rows) -> working_set.Stage:
        pool, shape = Pool.of(self.program, rows), (self.program.d, self.program.e)
        with np.errstate(all="ignore"):
            rounded = self.solved(pool, shape)
        if rounded is None:
            raise NoAnswer
        self.left -= 1
        allowed = None if self.left else np.full(self.program.n, np.inf)
        W, multipliers = pool.weight(rounded[0].reshape(shape)), pool.multipliers(rounded[1], rows)
        return working_set.Stage(Candidate(W, multipliers), allowed=allowed)


# ---------------------------------------------------------------------- the two programs


def _hard(pool: Pool, shape: tuple[int, int], norm: Norm) -> Rounded | None:
    kept = _independent(pool)
    pair = _hard_pair(pool, kept, norm, shape)
    if pair is None:
        return None
    W, multipliers = pair
    return (
        rounded_weight(W, pool),
        rounded_multipliers(multipliers, pool.A, pool.bound, pool.tied, norm, shape),
    )


def _hard_pair(pool: Pool, kept: Bool, norm: Norm, shape: tuple[int, int]) -> Pair | None:
    """W with the margins asked for, and multipliers with N*(Σ λ_j A_j) < 1."""
    lam = np.where(pool.tied, 0.0, 0.3 / np.abs(pool.A.hi).sum())[kept]
    limits = np.eye(len(lam))[~pool.tied[kept]]
    end = _path(pool, kept, unit_ball(norm.dual, shape), lam, limits, np.zeros(len(limits)), FIRST)
    return None if end is None or end.value > FARTHEST else _spread(pool, kept, end)


def _soft(pool: Pool, shape: tuple[int, int], price: Float) -> Rounded | None:
    """Rows here are 2^−power times, weights 2^−unit times the program's, so Σ_t 2^−power λ_t ≤ 2^−unit C."""
    if len(pool) ** 2 * (len(pool) + pool.A.shape[1]) > WORK:
        return None
    kept, free = _independent(pool), ~pool.tied
    hinges = np.unique(pool.example[free])
    share = np.where(pool.example == hinges[:, None], np.ldexp(free * 1.0, -pool.power), 0.0)
    limit = np.ldexp(price[hinges], -pool.unit) / share.max(1)
    share = share / share.max(1, keepdims=True)
    pair = _below_limits(pool, kept, share, limit, shape) or _soft_pair(pool, kept, share, limit)
    if pair is None:
        return None
    W, lam = pair[0], pair[1].hi
    each = np.ldexp(price[pool.example], pool.power - pool.unit)
    lam = np.ldexp(np.where(pool.tied, lam, np.maximum(lam, 0.0)), pool.unit)
    return rounded_soft_weight(W, pool, each), lam


def _below_limits(pool: Pool, kept: Bool, share: Float, limit: Float, shape: tuple[int, int]) -> Pair | None:
    """The program without slack, where its multipliers stay below a C that is large."""
    if limit.max() < LARGE_PRICE:
        return None
    pair = _hard_pair(pool, kept, frobenius, shape)
    if pair is None:
        return None
    W, lam = pair
    lam = lam * (W * W).sum().sqrt()
    return (W, lam) if (share @ lam.hi <= limit).all() else None


def _soft_pair(pool: Pool, kept: Bool, share: Float, limit: Float) -> Pair | None:
    free, share = ~pool.tied[kept], share[:, kept]
    # A start below all limits, and below what ½‖W‖² would ask for.
    lam = np.minimum((limit / (share > 0).sum(1)) @ (share > 0), 1.0 / len(free)) * 0.3 * free
    L, h = np.concatenate([np.eye(len(lam))[free], -share]), np.append(np.zeros(free.sum()), limit)
    first = 10 * float(limit.sum() * pool.bound.max())
    end = _path(pool, kept, Bowl(pool.A.shape[1], first), lam, L, h, first)
    return None if end is None else _spread(pool, kept, end)


def _path(pool: Pool, kept: Bool, ball: Ball, lam: Float, L: Float, h: Float, first: float) -> Point | None:
    """The end of the path from multipliers of the kept rows."""
    A = pool.A[kept]
    k, D = A.shape
    heights = ball.heights(A.hi.T @ lam)
    more = len(heights)
    if (k + more) ** 2 * (k + more + D + more) > WORK:
        return None
    X = Doubled(np.zeros((D + more, k + more)))
    X[:D, :k] = A.T
    X.hi[D:, k:] = np.eye(more)
    # The height of a bowl is what its quadratic costs.
    gain = np.append(pool.bound[kept], np.full(more, -1.0 if isinstance(ball, Bowl) else 0.0))
    L = np.concatenate([L, np.zeros((len(L), more))], 1)
    program = Program(Doubled(gain), X, ball, Doubled(L), Doubled(h))
    end = follow(program, np.append(lam, heights), GAP_GOAL, first)
    return None if end is None or not end.gap <= LARGEST_GAP * end.value else end


def _spread(pool: Pool, kept: Bool, end: Point) -> tuple[Doubled, Doubled]:
    """W (D,), and the multipliers of all rows of the pool (k,)."""
    lam, count = Doubled(np.zeros(len(pool))), int(kept.sum())
    lam[kept] = end.y[:count]
    return end.W[: pool.A.shape[1]], lam


def _independent(pool: Pool) -> Bool:
    """All inequalities, and ties that depend on no tie before them."""
    kept = ~pool.tied
    basis: list[Doubled] = []
    for j in np.flatnonzero(pool.tied):
        rest = pool.A[j]
        for other in [*basis, *basis]:
            rest = rest - other * (other * rest).sum()
        if float(np.linalg.norm(rest.hi)) > SPANNED:
            basis.append(rest / (rest * rest).sum().sqrt())
            kept[j] = True
    return kept
