"""The working-set loop of the nuclear and the spectral program around their interior point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

from attsvm import norms
from attsvm.norms import Norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.pool import Bases, Pool
from attsvm.program.schatten_interior import Iterate, Program, advance, mean_product
from attsvm.program.threads import single_thread
from attsvm.tokens import Bool, Float

GOAL = 2e-10
"""Relative gap over the pool at which the interior point stops."""

SMALL = 150
"""With at most this many rows all are kept: choosing would cost more than it saves."""

FIRST = 0.2
"""The first pool: rows whose margin under the Frobenius solution exceeds the bound by less."""

STAGES = ((1e-1, 0.3), (1e-2, 0.1), (1e-4, 0.02))
"""(gap, excess): once the gap is reached, the pool becomes the rows with a smaller excess."""

ROUNDS = 30
"""Times that rows may be found violated at the end and added."""


class Form(Program, Protocol):
    """A semidefinite form that can start near a weight and multipliers."""

    def start(self, W: Float, slack: Float, multipliers: Float) -> Iterate: ...


def solve(rows: Constraints, norm: Norm, form: Callable[[Pool], Form]) -> Answer:
    """Start at the Frobenius solution, follow the central path, and keep only the rows that matter.

    Feasibility does not depend on the norm: without a Frobenius solution its proof is the answer.
    """
    from attsvm.program.frobenius import solve as frobenius

    with single_thread():
        first = frobenius(rows, norms.frobenius)
        if not first.separable:
            return first
        return _Search(rows, norm, form).run(first)


class _Search:
    """One problem, its candidate rows and the coordinates of its pools."""

    def __init__(self, rows: Constraints, norm: Norm, form: Callable[[Pool], Form]) -> None:
        self.rows, self.norm, self.form = rows, norm, form
        self.bases = Bases.of(rows)
        self.candidates = rows.active & _nonzero(rows)
        self.scale = float(rows.bound.max())

    def run(self, first: Answer) -> Answer:
        counted = self.rows.bound > 0
        margins = self.rows.margins(first.W)
        least = (margins[counted] / self.rows.bound[counted]).min()
        excess = self._excess(margins / least)
        few = int(self.candidates.sum()) <= SMALL
        program = self._program(excess < (np.inf if few else FIRST))
        pool = program.pool
        # Twice the Frobenius solution has slack in every row.
        slack = 2 * pool.pick(margins) / least - pool.bound
        slack = np.where(pool.tied, 0.0, np.maximum(slack, 0.1 * self.scale))
        W = self.bases.reduce(first.W) * (2 / least)
        at = program.start(W, slack, pool.pick(first.multipliers))
        for gap, keep in () if few else STAGES:
            at = advance(program, at, self._gap(program), gap)
            program, at = self._transfer(program, at, self._excess_of(program, at) < keep)
        return self._finish(program, at)

    def _finish(self, program: Form, at: Iterate) -> Answer:
        """Solve over the pool, add the rows that turn out violated, and repeat from the same point."""
        for _ in range(ROUNDS):
            best = advance(program, at, self._gap(program), GOAL)
            excess = self._excess_of(program, best)
            if excess.min() >= -GOAL:
                break
            chosen = program.pool.spread(np.ones(len(at.slack)), np.zeros(excess.shape)) > 0
            program, at = self._transfer(program, at, chosen | (excess < STAGES[-1][1] / 2))
        W = self.bases.expand(program.weight(best))
        return Answer(W, program.pool.spread(best.multipliers, np.zeros(excess.shape)))

    def _program(self, chosen: Bool) -> Form:
        chosen = self.candidates & (chosen | self.rows.tied)
        return self.form(Pool.of(self.rows, self.bases, chosen))

    def _transfer(self, program: Form, at: Iterate, chosen: Bool) -> tuple[Form, Iterate]:
        """The same point over another pool: new rows enter near the central path."""
        excess = self._excess_of(program, at)
        slack = np.maximum(excess, 0.01) * self.scale
        multipliers = program.pool.spread(at.multipliers, mean_product(program, at) / slack)
        slack = program.pool.spread(at.slack, slack)
        other = self._program(chosen)
        return other, Iterate(at.P, at.Q, other.pool.pick(slack), other.pool.pick(multipliers))

    def _excess_of(self, program: Form, at: Iterate) -> Float:
        return self._excess(self.rows.margins(self.bases.expand(program.weight(at))))

    def _excess(self, margins: Float) -> Float:
        """Margin above the bound, in units of the largest bound (n, T); infinite where no candidate."""
        return np.where(self.candidates & ~self.rows.tied, (margins - self.rows.bound) / self.scale, np.inf)

    def _gap(self, program: Form) -> Callable[[Iterate], float]:
        """Relative duality gap over the pool, or the violation of rows that ask for no margin."""
        pool, norm = program.pool, self.norm
        counted = pool.bound > 0
        zero = ~counted & ~pool.tied

        def gap(at: Iterate) -> float:
            W = program.weight(at)
            margins = pool.margins(W)
            least = np.min(margins[counted] / pool.bound[counted])
            if not least > 0:
                return np.inf
            lower = at.multipliers @ pool.bound / norm.dual.value(pool.combine(at.multipliers))
            wrong = np.max(np.abs(margins[pool.tied]), initial=0.0)
            wrong = max(wrong, np.max(-margins[zero], initial=0.0))
            return float(max(1 - lower * least / norm.value(W), wrong / (least * self.scale)))

        return gap


def _nonzero(rows: Constraints) -> Bool:
    """Rows that are not zero: a token equal to the anchor, or a zero query, asks for nothing."""
    out = np.empty(rows.active.shape, bool)
    for part, delta in rows.chunks():
        out[part] = (delta != 0).any(-1)
    return out & (rows.queries != 0).any(-1)[:, None]
