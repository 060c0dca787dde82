"""The engine of interior points on growing pools: lp, l1, l∞, and Schatten(p) for 1 < p < ∞.

A family of norms supplies its interior point. The engine tries several paces and resumes it on larger pools.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Protocol

import numpy as np

from attsvm.norms import Norm
from attsvm.numbers import Bool, Float
from attsvm.numbers.threads import single_thread
from attsvm.program import working_set
from attsvm.program.answer import Answer
from attsvm.program.constraints import Constraints
from attsvm.program.rows import Candidate, Rows
from attsvm.program.working_set import Stage

Pace = tuple[float, float]
"""The factor by which p − 1, or 1/(p − 1), shrinks in a step, and the complementarity meanwhile."""

PACES = ((0.65, 1e-3), (0.8, 1e-2), (0.9, 1e-4))
"""The paces, in this order."""

FAST, FROM = (0.5, 1e-3), 1.05
"""The first pace for FROM < p < 2, where the exponent moves little."""

GAP_GOAL, GAP_ENOUGH = 1e-10, 1e-9
"""Relative gap at which the interior point stops, and at which no other pace is tried."""

STEPS, STALL, SETTLED, COLD = 150, 30, 2, 30
"""Newton steps at most: in all, without progress, the same below GAP_ENOUGH, and without a start."""

FARTHEST = 100.0
"""Norm, relative to the first one, at which a run without a start ends: a contradiction is likely."""

FEW_ROWS = 100
"""Rows up to which all are in the first pool."""

LOOSE = 0.1
"""Distance from the boundary, relative to the solution's size, of the first slacks and multipliers."""

LEAST = 1e-13
"""Complementarity, relative to the objective, below which the systems lose their digits."""

BOUNDARY = 0.995
"""Share of the way to the boundary that a step may go."""

FLOOR = 1e-10
"""Least curvature of |x|^p, p > 2, relative to that of x = 1: it vanishes at x = 0."""


class InteriorPoint(Protocol):
    """An interior point under way.

    p: its exponent, which moves from 2 to its goal; gap: over the rows of its pool; size: what W was divided
    by; value: Σ λ_j b_j, with b divided like W.
    """

    pool: Rows
    p: float
    goal: float
    gap: float
    size: float
    value: float

    @property
    def candidate(self) -> Candidate: ...
    def step(self) -> None: ...
    def join(self, rows: Rows) -> None: ...


Start = Callable[[Rows, Norm, Pace, Answer], InteriorPoint]
"""The interior point of a family of norms from a start: any W that is not zero, any λ with Σ λ_j b_j > 0."""


def solve_by(interior_point: Start, program: Constraints, norm: Norm, first: Callable[[], Answer]) -> Answer:
    """The answer on all rows at first where they are few, else on a pool that grows.

    The interior point starts from the Frobenius solution, which also says whether the rows are separable.
    Small programs are first tried without it.
    """
    paces = paces_of(norm.p)
    if np.count_nonzero(program.active) <= FEW_ROWS:
        engine = resumable(interior_point, norm, paces[:1])
        answer = working_set.solve_on_pools(program, norm, engine, program.active)
        if answer.gap < GAP_ENOUGH:
            return answer
    start = first()
    if not (start.separable and start.W.any()):
        return start
    with single_thread():
        engine = resumable(interior_point, norm, paces, start)
        return working_set.solve_on_pools(program, norm, engine, first_rows(program, start))


def paces_of(p: float) -> tuple[Pace, ...]:
    """The paces for an exponent, in the order in which they are tried."""
    if p == 1 or np.isinf(p):
        return ((1.0, 0.0),)
    return (FAST, *PACES) if FROM < p < 2 else PACES


def first_rows(program: Constraints, start: Answer) -> Bool:
    """Ties, and the rows of least slack at the Frobenius solution: those with a bound, those without."""
    size = start.carriers + max(start.carriers // 4, 3 * program.d)
    return working_set.hardest(program, start.W, size, max(size, FEW_ROWS))


def resumable(
    interior_point: Start, norm: Norm, paces: tuple[Pace, ...], start: Answer | None = None
) -> working_set.Engine:
    """An engine that resumes the interior point on larger pools; paces are tried in turn until one converges.

    start: where it begins; None: at the sum of the rows. That may be a bad start, so it gives up early.
    """
    steps = _steps(interior_point, norm, paces, start)
    next(steps)
    return steps.send


def _sum(rows: Rows) -> Answer:
    """The sum of the rows, of a length with which the margins are those required on average."""
    W = rows.combine(rows.bound)
    square = float(np.vdot(W, W))
    return rows.answer(
        Candidate(W * (float(rows.bound @ rows.bound) / square if square else 1.0), rows.bound)
    )


def _steps(
    interior_point: Start, norm: Norm, paces: tuple[Pace, ...], start: Answer | None
) -> Generator[Stage, Rows, None]:
    rows, cold = (yield Stage(Candidate(np.zeros((0, 0)), np.zeros(0)))), start is None
    start = start or _sum(rows)
    best = Candidate(start.W, rows.pick(start.multipliers) * rows.length)
    for pace in paces if start.W.any() else ():
        run, gap, stalled = interior_point(rows, norm, pace, start), np.inf, 0
        farthest = FARTHEST * run.size if cold else np.inf
        for step in range(COLD if cold else STEPS):
            try:
                run.step()
            except np.linalg.LinAlgError:
                break
            stalled = stalled + 1 if run.p == run.goal else 0
            if run.gap < gap:
                gap, stalled = run.gap, 0
            if gap < best.gap:
                best = run.candidate
            settled = gap < GAP_GOAL or stalled > (SETTLED if gap < GAP_ENOUGH else STALL)
            if (settled and gap > GAP_ENOUGH) or run.value * run.size > farthest:
                break
            # Every second step: a pass over all tokens may cost more than a Newton step.
            if settled or (not cold and (step < 3 or step % 2)):
                rows = yield Stage(best) if settled else Stage(run.candidate, final=False)
                if len(rows) > len(run.pool):
                    best, gap, stalled = _on_larger_pool(rows, best, run.pool), np.inf, 0
                    run.join(rows)
        if best.gap < GAP_ENOUGH:
            break
    while True:
        pool, rows = rows, (yield Stage(best))
        best = _on_larger_pool(rows, best, pool)


def _on_larger_pool(rows: Rows, candidate: Candidate, pool: Rows) -> Candidate:
    """The candidate of a smaller pool, without a gap over these rows."""
    multipliers = np.zeros(len(rows))
    multipliers[rows.places(pool)] = candidate.multipliers
    return Candidate(candidate.W, multipliers)


# ---------------------------------------------------------------------- for interior points


def nearer(p: float, goal: float, pace: float) -> float:
    """The next exponent on the way from 2 to the goal."""
    return max(goal, 1 + (p - 1) * pace) if goal < 2 else min(goal, 1 + (p - 1) / pace)


def first_pair(rows: Rows, margins: Float, bound: Float, multipliers: Float) -> tuple[Float, Float]:
    """The first slacks and multipliers (k,), away from the boundary."""
    slack = np.maximum(margins - bound, LOOSE * bound.max())
    centre = LOOSE * float(multipliers @ bound) / len(rows)
    return slack, np.where(rows.tied, multipliers, np.maximum(multipliers, centre / slack))


def centred_pair(margins: Float, bound: Float, mean: float) -> tuple[Float, Float]:
    """Slacks and multipliers (k,) of new rows on the central path, as far inside as a row is outside."""
    slack = np.maximum(np.abs(margins - bound), np.sqrt(mean) * bound.max())
    return slack, mean / slack


def length(x: Float, p: float) -> float:
    """‖x‖_p, p in [1, ∞], of all entries: `Entrywise(p).value` without its generality."""
    size = np.abs(x)
    largest = float(size.max())
    if math.isinf(p) or largest == 0:
        return largest
    return largest * float(((size / largest) ** p).sum()) ** (1 / p)
