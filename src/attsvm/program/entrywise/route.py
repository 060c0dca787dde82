"""The programs of the entrywise norms: an interior point on a pool of rows that grows while it runs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from attsvm.norms import Norm
from attsvm.numbers import Bool
from attsvm.numbers.threads import single_thread
from attsvm.program import working_set
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer, Found
from attsvm.program.entrywise.interior_point import Pace, Run
from attsvm.program.rows import Rows, hardest

PACES = ((0.65, 1e-3), (0.8, 1e-2), (0.9, 1e-4))
"""In turn: the factor by which p − 1, or 1/(p − 1), shrinks in a step, and the complementarity meanwhile."""

FAST, FROM = (0.5, 1e-3), 1.05
"""Tried before them for FROM < p < 2, where the way is short."""

GAP_GOAL, GAP_ENOUGH = 1e-10, 1e-9
"""Relative gap at which the interior point stops, and one that no other pace needs to improve."""

STEPS, STALL, SETTLED, COLD = 150, 30, 2, 30
"""Newton steps at most: in all, without progress, the same on a gap that is enough, and without a start."""

FARTHEST = 100.0
"""Norm, relative to the first one, that a run without a start seeks: more hints at a contradiction."""

FEW_ROWS = 100
"""Rows up to which there is no choice to make, and a run without a start comes first."""


def solve_entrywise(program: Constraints, norm: Norm, first: Callable[[], Answer]) -> Answer:
    """Smallest W in an entrywise norm that satisfies the rows.

        min ‖W‖_p  s.t.  A W ≥ b        dual:  max b'λ,  ‖A'λ‖_q ≤ 1,  1/p + 1/q = 1

    For p = 1 and p = ∞, W need not be unique: the interior point ends in the middle of the optimal face.
    It starts from the Frobenius solution, which also knows whether the rows are separable; small problems
    first try without.
    """
    paces = paces_of(norm.p)
    if np.count_nonzero(program.active) <= FEW_ROWS:
        answer = working_set.solve_on_pools(program, norm, engine(norm, paces[:1]), program.active)
        if answer.gap < GAP_ENOUGH:
            return answer
    start = first()
    if not (start.separable and start.W.any()):
        return start
    with single_thread():
        chosen = first_rows(program, start)
        return working_set.solve_on_pools(program, norm, engine(norm, paces, start), chosen)


def paces_of(p: float) -> tuple[Pace, ...]:
    """The ways to run the interior point of an exponent, in turn."""
    if p == 1 or np.isinf(p):
        return ((1.0, 0.0),)
    return (FAST, *PACES) if FROM < p < 2 else PACES


def engine(
    norm: Norm, paces: tuple[Pace, ...], start: Answer | None = None, run_of: Any = Run
) -> working_set.Engine:
    """The interior point, on a pool of rows that may grow while it runs.

    paces: ways to run it, tried in turn until one converges.
    start: where it begins; None: at the sum of the rows, which may be a bad start: it gives up early.
    run_of: the interior point of a family of norms, made from rows, norm, pace and start.
    """
    steps = _steps(norm, paces, start, run_of)
    next(steps)
    return steps.send


def _sum(rows: Rows) -> Answer:
    """The sum of the rows, as long as the margins ask for on average."""
    W = rows.combine(rows.bound)
    square = float(np.vdot(W, W))
    return rows.answer(Found(W * (float(rows.bound @ rows.bound) / square if square else 1.0), rows.bound))


def _steps(
    norm: Norm, paces: tuple[Pace, ...], start: Answer | None, run_of: Any
) -> Generator[Found, Rows, None]:
    rows, guessed = (yield Found(np.zeros((0, 0)), np.zeros(0))), start is None
    start = start or _sum(rows)
    best = Found(start.W, rows.pick(start.multipliers) * rows.length)
    for pace in paces if start.W.any() else ():
        run, gap, stalled = run_of(rows, norm=norm, pace=pace, start=start), np.inf, 0
        farthest = FARTHEST * run.size if guessed else np.inf
        for step in range(COLD if guessed else STEPS):
            try:
                run.step()
            except np.linalg.LinAlgError:
                break
            stalled = stalled + 1 if run.p == run.goal else 0
            if run.gap < gap:
                gap, stalled = run.gap, 0
            if gap < best.gap:
                best = run.found()
            done = gap < GAP_GOAL or stalled > (SETTLED if gap < GAP_ENOUGH else STALL)
            if (done and gap > GAP_ENOUGH) or run.value * run.size > farthest:
                break
            # Every second step: a pass over all tokens may cost more than a Newton step.
            if done or (not guessed and (step < 3 or step % 2)):
                rows = yield best if done else run.found(final=False)
                if len(rows) > len(run.pool):
                    best, gap, stalled = _on_more(rows, best, run.pool), np.inf, 0
                    run.join(rows)
        if best.gap < GAP_ENOUGH:
            break
    while True:
        pool, rows = rows, (yield best)
        best = _on_more(rows, best, pool)


def _on_more(rows: Rows, found: Found, pool: Rows) -> Found:
    """What was found on a smaller pool; what that is worth on these rows nobody knows."""
    multipliers = np.zeros(len(rows))
    multipliers[rows.places(pool)] = found.multipliers
    return Found(found.W, multipliers)


def first_rows(program: Constraints, start: Answer) -> Bool:
    """Ties, and the rows of least slack at the Frobenius solution: those with a bound, those without."""
    size = start.carriers + max(start.carriers // 4, 3 * program.d)
    return hardest(program, start.W, size, max(size, FEW_ROWS))
