"""A working set around the interior point: few rows at first, and those that W violates join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.norms import Norm
from attsvm.norms import frobenius as frobenius_norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.frobenius import solve as frobenius
from attsvm.program.interior_point import Run, Start
from attsvm.program.threads import single_thread
from attsvm.program.working_rows import WorkingRows
from attsvm.tokens import Bool, Float

GOAL = 1e-11
"""Relative gap at which the interior point stops."""

ENOUGH = 1e-9
"""Gap that no other ball needs to improve, and shortfall of a margin that adds no row at the end."""

STEPS, STALL = 150, 30
"""Newton steps altogether, and without progress, after which a run is given up."""

ALL = 100
"""Rows up to which there is no choice to make."""


def on_working_set(rows: Constraints, norm: Norm, balls: Sequence[Start]) -> Answer:
    """Solve  min N(W) s.t. rows  from the Frobenius solution, which also decides separability.

    balls: ways to run the interior point, tried in turn until one converges.
    """
    start = frobenius(rows, frobenius_norm)
    if not start.separable:
        return start
    with single_thread():
        pricing = Pricing(rows, rows.active & _nonzero(rows))
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
    run = Run(work, norm, ball, start.W, start.multipliers[chosen])
    best, gap, stalled = start, np.inf, 0
    for _ in range(STEPS):
        try:
            run.step()
        except np.linalg.LinAlgError:
            break
        reached = run.gap()
        stalled += 1
        if reached < gap:
            best, gap, stalled = _answer(run, chosen), reached, 0
        new = pricing.violated(run.W, chosen, last=gap < GOAL)
        if new.any():
            chosen, old = chosen | new, chosen
            run.join(WorkingRows.of(pricing.rows, chosen), old[chosen])
            gap, stalled = np.inf, 0
        elif gap < GOAL or stalled > STALL:
            break
    return best, gap


def _answer(run: Run, chosen: Bool) -> Answer:
    multipliers = np.zeros(chosen.shape)
    multipliers[chosen] = run.multipliers
    return Answer(run.W, multipliers)


@dataclass(frozen=True)
class Pricing:
    """The choice of rows; exists (n, T) leaves out the zero rows, which say nothing."""

    rows: Constraints
    exists: Bool

    def first(self, start: Answer) -> Bool:
        """Ties, and the rows with the least margins at the Frobenius solution."""
        support = int((start.multipliers != 0).sum())
        size = support + max(support // 2, 3 * self.rows.d)
        if int(self.exists.sum()) <= max(size, ALL):
            return self.exists
        margins = np.where(self.exists, self._margins(start.W) - self.rows.bound, np.inf)
        least = np.partition(margins, size, axis=None)[size]
        return self.exists & (self.rows.tied | (margins <= least))

    def violated(self, W: Float, chosen: Bool, last: bool) -> Bool:
        """Rows outside the chosen ones whose margin is below the bound; the last time, to rounding."""
        rest = self.exists & ~chosen
        if not rest.any():
            return rest
        if not last:
            return rest & (self._margins(W) < self.rows.bound)
        margins, bound = self.rows.margins(W), self.rows.bound
        return rest & (margins < bound - ENOUGH * 0.1 * bound.max())

    def _margins(self, W: Float) -> Float:
        """Margins as differences of logits: one pass, and exact enough to choose rows."""
        rows = self.rows
        logits = (rows.keys @ (rows.queries @ W.T)[:, :, None])[:, :, 0]
        return np.take_along_axis(logits, rows.anchor[:, None], axis=1) - logits


def _nonzero(rows: Constraints) -> Bool:
    """Rows δ zᵀ that are not the zero matrix (n, T)."""
    out = np.zeros(rows.active.shape, bool)
    for part, delta in rows.chunks():
        out[part] = delta.any(-1)
    return out & rows.queries.any(-1)[:, None]
