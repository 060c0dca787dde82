"""A working set around the interior point: few rows at first, more where W violates them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.norms import Norm
from attsvm.norms import frobenius as frobenius_norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.frobenius import solve as frobenius
from attsvm.program.interior_point import Point, Start, interior_point
from attsvm.program.threads import single_thread
from attsvm.program.working_rows import WorkingRows
from attsvm.tokens import Bool, Float

ROUGH, FINE = 1e-3, 1e-11
"""Gaps of the first solve, which finds the rows that matter, and of the last."""

ENOUGH = 1e-9
"""A gap over the working rows that no slower pace needs to improve."""

NEAR = 0.3
"""After the rough solve, rows whose margin exceeds the bound by less than this share are kept."""

SLIP = 1e-10
"""Shortfall of a margin, relative to the bound, that does not call for another round."""

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
        task = _Task(rows, norm, rows.active & _nonzero(rows))
        best, gap = start, np.inf
        for ball in balls:
            answer, reached = task.solve(ball, start)
            if reached < gap:
                best, gap = answer, reached
            if gap < ENOUGH:
                break
    return best


@dataclass(frozen=True)
class _Task:
    """The rows of a program; exists (n, T) leaves out the zero rows, which say nothing."""

    rows: Constraints
    norm: Norm
    exists: Bool

    def solve(self, ball: Start, start: Answer) -> tuple[Answer, float]:
        """The answer over all rows and its gap over the last working set."""
        chosen = self._first(start)
        point = Point(start.W, start.multipliers, 1.0)
        if (chosen != self.exists).any():
            point = self._interior_point(chosen, ball, point, ROUGH)
            if not point.gap < 0.1:
                return Answer(point.W, point.multipliers), np.inf
            chosen = self.rows.tied & self.exists | self._short(chosen, point.W, NEAR)
        while True:
            fine = self._interior_point(chosen, ball, point, FINE)
            violated = self._short(chosen, fine.W, -SLIP) & ~chosen
            if not violated.any():
                return Answer(fine.W, fine.multipliers), fine.gap
            chosen = chosen | self._short(chosen, fine.W, NEAR / 3)

    def _interior_point(self, chosen: Bool, ball: Start, start: Point, goal: float) -> Point:
        work = WorkingRows.of(self.rows, chosen)
        inner = Point(start.W, start.multipliers[chosen], start.gap)
        found = interior_point(work, self.norm, ball, inner, goal)
        multipliers = np.zeros(chosen.shape)
        multipliers[chosen] = found.multipliers
        return Point(found.W, multipliers, found.gap)

    def _first(self, start: Answer) -> Bool:
        """Ties, and the rows with the least margins at the Frobenius solution."""
        total = int(self.exists.sum())
        support = int((start.multipliers != 0).sum())
        size = support + max(support // 2, 3 * self.rows.d)
        if total <= max(size, ALL):
            return self.exists
        excess = np.where(self.exists, self._excess(start.W, self.exists), np.inf)
        return self.exists & (self.rows.tied | (excess <= np.partition(excess, size, axis=None)[size]))

    def _short(self, chosen: Bool, W: Float, share: float) -> Bool:
        """Inequalities whose margin is below (1 + share) times the bound."""
        return self.exists & ~self.rows.tied & (self._excess(W, chosen) < share)

    def _excess(self, W: Float, chosen: Bool) -> Float:
        """margin/bound − 1, with W scaled to margin one over the chosen rows (n, T)."""
        bound = self.rows.bound
        margins = self.rows.margins(W)
        counted = chosen & (bound > 0)
        least = float((margins[counted] / bound[counted]).min())
        unit = np.where(bound > 0, bound, float(bound.max()))
        return (margins / least - bound) / unit


def _nonzero(rows: Constraints) -> Bool:
    """Rows δ zᵀ that are not the zero matrix (n, T)."""
    out = np.zeros(rows.active.shape, bool)
    for part, delta in rows.chunks():
        out[part] = delta.any(-1)
    return out & rows.queries.any(-1)[:, None]
