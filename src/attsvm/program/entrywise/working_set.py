"""A working set around the interior point: few rows at first, and those that W violates join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.norms import Norm
from attsvm.norms import frobenius as frobenius_norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.entrywise.interior_point import Pace, Run
from attsvm.program.entrywise.working_rows import WorkingRows
from attsvm.program.frobenius.route import solve as frobenius
from attsvm.program.threads import single_thread
from attsvm.tokens import Bool, Float

GOAL = 1e-10
"""Relative gap at which the interior point stops."""

ENOUGH = 1e-9
"""Gap that no other ball needs to improve."""

SLIP = 1e-11
"""Shortfall of a margin, relative to the largest bound, that adds no row."""

STEPS, STALL, SETTLED, COLD = 150, 30, 2, 30
"""Newton steps at most: in all, without progress, the same on a gap that is enough, and without a start."""

FARTHEST = 100.0
"""Norm, relative to the first one, that a run without a start seeks: more hints at a contradiction."""

ALL = 100
"""Rows up to which there is no choice to make."""


def on_working_set(rows: Constraints, norm: Norm, paces: Sequence[Pace]) -> tuple[Answer, float]:
    """Solve  min N(W) s.t. rows;  the answer and its gap, as far as it is known.

    paces: ways to run the interior point, tried in turn until one converges. It starts from the
    Frobenius solution, which also knows whether the rows are separable. Small problems first try without.
    """
    pricing = Pricing(rows)
    if rows.active.sum() <= ALL:
        answer, gap = _converge(pricing, norm, paces[0], None)
        if gap < ENOUGH:
            return answer, gap
    start = frobenius(rows, frobenius_norm)
    if not start.separable:
        return start, np.inf
    with single_thread():
        best, gap = start, np.inf
        for pace in paces:
            answer, reached = _converge(pricing, norm, pace, start)
            if reached < gap:
                best, gap = answer, reached
            if gap < ENOUGH:
                break
    return best, gap


def _converge(pricing: Pricing, norm: Norm, pace: Pace, start: Answer | None) -> tuple[Answer, float]:
    """Run the interior point; the best answer and its gap, over the rows of its time."""
    rows, chosen = pricing.rows, pricing.rows.active if start is None else pricing.first(start)
    work = WorkingRows.of(rows, chosen)
    best, gap, stalled = start or Answer(np.zeros((rows.d, rows.e)), np.zeros(chosen.shape)), np.inf, 0
    if start is None:
        # The sum of the rows, as long as the margins ask for on average.
        multipliers, W = work.bound, work.combine(work.bound)
        if np.count_nonzero(work.bound) < np.count_nonzero(rows.bound) or not W.any():
            return best, gap
        W *= float(work.bound @ work.bound) / float(np.vdot(W, W))
    else:
        multipliers, W = start.multipliers[work.example, work.token] * work.length, start.W
    run, everything = Run(work, norm, pace, (W, multipliers)), chosen is rows.active
    farthest = FARTHEST * run.size if start is None else np.inf
    for step in range(STEPS if start else COLD):
        try:
            run.step()
        except np.linalg.LinAlgError:
            break
        stalled = stalled + 1 if run.p == run.goal else 0
        if run.gap < gap:
            best, gap, stalled = _answer(run, chosen), run.gap, 0
        done = gap < GOAL or stalled > (SETTLED if gap < ENOUGH else STALL)
        # Every second step: a pass over all tokens may cost more than a Newton step.
        price = not everything and (step < 3 or step % 2 or done)
        if price and (new := pricing.violated(run.W, chosen, done)).any():
            old, chosen = chosen, chosen | new
            work = WorkingRows.of(rows, chosen)
            run.join(work, old[work.example, work.token])
            gap, stalled = np.inf, 0
        elif done or run.value * run.size > farthest:
            break
    return best, gap


def _answer(run: Run, chosen: Bool) -> Answer:
    multipliers = np.zeros(chosen.shape)
    multipliers[run.work.example, run.work.token] = run.multipliers / run.work.length
    return Answer(run.W, multipliers)


@dataclass(frozen=True)
class Pricing:
    """The choice of rows."""

    rows: Constraints

    def first(self, start: Answer) -> Bool:
        """Ties, and the rows with the least margins at the Frobenius solution."""
        rows = self.rows
        # An interior point leaves small multipliers everywhere; a vertex has no more rows than unknowns.
        support = min(int((start.multipliers != 0).sum()), rows.d * rows.e)
        size = support + max(support // 2, 3 * rows.d)
        chosen = rows.active
        if int(rows.active.sum()) > max(size, ALL):
            slack = np.where(rows.active, self._margins(start.W) - rows.bound, np.inf)
            chosen = chosen & (rows.tied | (slack <= np.partition(slack, size, axis=None)[size]))
        return chosen

    def violated(self, W: Float, chosen: Bool, last: bool) -> Bool:
        """Rows outside the chosen ones whose margin is below the bound; the last time, exactly.

        Not more than there are: an early W violates many rows that the next one satisfies.
        """
        rest = self.rows.active & ~chosen
        short = self.rows.bound - (self.rows.margins(W) if last else self._margins(W))
        least, most = SLIP * self.rows.bound.max(), max(int(chosen.sum()), ALL // 2)
        new = rest & (short > least)
        if np.count_nonzero(new) > most:
            new &= short >= np.partition(short[new], -most)[-most]
        return new

    def _margins(self, W: Float) -> Float:
        """Margins as differences of logits: one pass, and exact enough to choose rows."""
        rows = self.rows
        if rows.e == 1:  # one large product instead of one per example
            logits = (rows.keys.reshape(-1, rows.d) @ W[:, 0]).reshape(rows.active.shape) * rows.queries
        else:
            logits = (rows.keys @ (rows.queries @ W.T)[:, :, None])[:, :, 0]
        return np.take_along_axis(logits, rows.anchor[:, None], axis=1) - logits
