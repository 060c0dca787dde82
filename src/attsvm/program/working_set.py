"""A working set around the interior point: few rows at first, and those that W violates join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.norms import Norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.interior_point import Run, Start
from attsvm.program.threads import single_thread
from attsvm.program.working_rows import WorkingRows
from attsvm.tokens import Bool, Float

GOAL = 1e-10
"""Relative gap at which the interior point stops."""

ENOUGH = 1e-9
"""Gap that no other ball needs to improve."""

SLIP = 1e-11
"""Shortfall of a margin, relative to the largest bound, that adds no row."""

STEPS, STALL, SETTLED = 150, 30, 2
"""Newton steps altogether, without progress, and without progress on a gap that is enough, at most."""

ALL = 100
"""Rows up to which there is no choice to make."""


def on_working_set(rows: Constraints, norm: Norm, start: Answer, balls: Sequence[Start]) -> Answer:
    """Solve  min N(W) s.t. rows, which are separable, from the Frobenius solution.

    balls: ways to run the interior point, tried in turn until one converges.
    """
    with single_thread():
        pricing = Pricing(rows)
        best, gap = start, np.inf
        for ball in balls:
            answer, reached = _converge(pricing, norm, ball, start)
            if reached < gap:
                best, gap = answer, reached
            if gap < ENOUGH:
                break
    return best


def _converge(pricing: Pricing, norm: Norm, ball: Start, start: Answer) -> tuple[Answer, float]:
    """Run the interior point; the best answer and its gap, over the rows of its time."""
    chosen = pricing.first(start)
    work = WorkingRows.of(pricing.rows, chosen)
    run = Run(work, norm, ball, start.W, start.multipliers[chosen] * work.length)
    best, gap, stalled = start, np.inf, 0
    for step in range(STEPS):
        try:
            run.step()
        except np.linalg.LinAlgError:
            break
        reached = run.gap()
        stalled += 1
        if reached < gap:
            best, gap, stalled = _answer(run, chosen), reached, 0
        done = gap < GOAL or stalled > (SETTLED if gap < ENOUGH else STALL)
        # Every second step: a pass over all tokens may cost more than a Newton step.
        new = pricing.violated(run.W, chosen, done) if step < 3 or step % 2 or done else None
        if new is not None and new.any():
            chosen, old = chosen | new, chosen
            run.join(WorkingRows.of(pricing.rows, chosen), old[chosen])
            gap, stalled = np.inf, 0
        elif done:
            break
    return best, gap


def _answer(run: Run, chosen: Bool) -> Answer:
    multipliers = np.zeros(chosen.shape)
    multipliers[chosen] = run.multipliers / run.work.length
    return Answer(run.W, multipliers)


@dataclass(frozen=True)
class Pricing:
    """The choice of rows. Rows that are zero say nothing (Frobenius has met their bound) and stay out."""

    rows: Constraints

    def first(self, start: Answer) -> Bool:
        """Ties, and the rows with the least margins at the Frobenius solution."""
        rows = self.rows
        support = int((start.multipliers != 0).sum())
        size = support + max(support // 2, 3 * rows.d)
        chosen = rows.active
        if int(rows.active.sum()) > max(size, ALL):
            slack = np.where(rows.active, self._margins(start.W) - rows.bound, np.inf)
            chosen = chosen & (rows.tied | (slack <= np.partition(slack, size, axis=None)[size]))
        example, token = np.nonzero(chosen)
        chosen = chosen.copy()
        chosen[example, token] = rows.differences(example, token).any(1) & rows.queries[example].any(1)
        return chosen

    def violated(self, W: Float, chosen: Bool, last: bool) -> Bool:
        """Rows outside the chosen ones whose margin is below the bound; the last time, exactly."""
        rest = self.rows.active & ~chosen
        if not rest.any():
            return rest
        margins = self.rows.margins(W) if last else self._margins(W)
        return rest & (margins < self.rows.bound - SLIP * self.rows.bound.max())

    def _margins(self, W: Float) -> Float:
        """Margins as differences of logits: one pass, and exact enough to choose rows."""
        rows = self.rows
        if rows.e == 1:  # one large product instead of one per example
            logits = (rows.keys.reshape(-1, rows.d) @ W[:, 0]).reshape(rows.active.shape) * rows.queries
        else:
            logits = (rows.keys @ (rows.queries @ W.T)[:, :, None])[:, :, 0]
        return np.take_along_axis(logits, rows.anchor[:, None], axis=1) - logits
