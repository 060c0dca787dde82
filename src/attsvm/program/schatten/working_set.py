"""The working-set loop of the nuclear and the spectral program around their interior point."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from attsvm import norms
from attsvm.norms import Norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.schatten import small
from attsvm.program.schatten.interior_point import Iterate, Program, advance, mean_product
from attsvm.program.schatten.pool import Bases, Pool
from attsvm.program.threads import single_thread
from attsvm.tokens import Bool, Float

GOAL, ENOUGH = 4e-10, 5e-9
"""Relative gap at which the interior point stops, and above which a more careful attempt follows."""

SMALL = 150
"""Pools of at most this many rows stay as they are: choosing would cost more than it saves."""

STAGES = ((1e-1, 0.2), (1e-2, 0.07), (1e-4, 0.015))
"""(gap, excess): once the gap is reached, the pool becomes the rows with a smaller excess."""

ATTEMPTS = (1.5, 4.0, 16.0)
"""Rows of the first pool in units of the Frobenius support; later attempts do not drop rows."""

ROOM = 1.2
"""The start is this multiple of the Frobenius solution: every row has slack."""

ROUNDS = 20
"""Times that rows may be found violated at the end and added."""


Stages = tuple[tuple[float, float], ...]


class Form(Program, Protocol):
    """A semidefinite form that can start near a weight and multipliers."""

    def start(self, W: Float, slack: Float, multipliers: Float) -> Iterate: ...


def solve(rows: Constraints, norm: Norm, form: Callable[[Pool], Form]) -> Answer:
    """Start at the Frobenius solution, follow the central path, and keep only the rows that matter.

    Feasibility does not depend on the norm: without a Frobenius solution its proof is the answer.
    """
    from attsvm.program.frobenius.route import solve as frobenius

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
        size = _sizes(rows)
        self.candidates = rows.active & (size > 0)
        self.size = np.where(self.candidates, size, 1.0)
        self.unit = float((rows.bound / self.size).max())

    def run(self, first: Answer) -> Answer:
        counted, margins = self.rows.bound > 0, self.rows.margins(first.W)
        least = (margins[counted] / self.rows.bound[counted]).min()
        # Where rounding leaves no margin, the norm of W alone sets the scale.
        factor = 1 / least if least > 0 else self.unit / np.linalg.norm(first.W)
        first, margins = replace(first, W=first.W * factor), margins * factor
        best, least = self._small(first)
        if least <= ENOUGH:
            return best
        for growth in ATTEMPTS:
            program, at = self._start(first, margins, growth)
            answer, gap = self._finish(*self._shrink(program, at, STAGES if growth == ATTEMPTS[0] else ()))
            if gap < least:
                best, least = answer, gap
            if gap <= ENOUGH or self._complete(program):
                break
        return best

    def _small(self, first: Answer) -> tuple[Answer, float]:
        """The answer of the compiled path and its gap, if the program is small and all rows are alike."""
        bound = self.rows.bound[self.candidates]
        if not (bound > 0).all() or not small.fits(len(bound), *self.bases.shape, self.norm):
            return first, np.inf
        pool = Pool.of(self.rows, self.bases, self.candidates, self.unit)
        start = self.bases.reduce(first.W / self.unit), pool.pick(first.multipliers) * pool.size
        W, multipliers, gap = small.solve(pool, self.norm, *start, GOAL)
        spread = pool.spread(multipliers / pool.size, np.zeros(self.rows.bound.shape))
        return (Answer(self.bases.expand(W) * self.unit, spread) if gap < 1 else first), gap

    def _complete(self, program: Form) -> bool:
        """Whether the pool has all rows."""
        return len(program.pool.bound) == np.count_nonzero(self.candidates)

    def _start(self, first: Answer, margins: Float, growth: float) -> tuple[Form, Iterate]:
        """The rows closest to their bound under the Frobenius solution, and a point near it."""
        count = int(growth * np.count_nonzero(first.multipliers))
        program = self._program(self._nearest(self._excess(margins), np.inf, count))
        pool = program.pool
        slack = np.maximum(ROOM * pool.pick(margins) / pool.size - pool.bound, 0.1)
        multipliers = pool.pick(first.multipliers) * pool.size
        W = ROOM * self.bases.reduce(first.W / self.unit)
        return program, program.start(W, slack * pool.open, multipliers)

    def _nearest(self, excess: Float, most: float, count: int) -> Bool:
        """The rows with a smaller excess than `most`, but not more than count of them."""
        count = max(SMALL, count)
        if count < self.candidates.sum():
            most = min(most, float(np.partition(excess, count, axis=None)[count]))
        return excess <= most

    def _shrink(self, program: Form, at: Iterate, stages: Stages) -> tuple[Form, Iterate, Form, Iterate]:
        """Advance in stages with fewer and fewer rows; also the point after the first stage."""
        early = program, at
        for gap, keep in stages:
            if len(at.slack) <= SMALL:
                break
            at = advance(program, at, self._gap(program), gap)
            excess = self._excess(self._margins(program, at))
            program, at = self._transfer(program, at, self._nearest(excess, keep, 2 * len(at.slack)))
            early = (program, at) if gap == stages[0][0] else early
        return program, at, *early

    def _finish(self, program: Form, at: Iterate, origin: Form, early: Iterate) -> tuple[Answer, float]:
        """Solve over the pool; if rows outside are violated, add them and resume from the early point.

        From a point close to the optimum of the smaller pool the central path of the larger one is
        hardly reached any more.
        """
        short = np.zeros(self.rows.bound.shape)
        for _ in range(ROUNDS):
            best = advance(program, at, self._gap(program), GOAL)
            if self._complete(program):
                break
            margins = self._margins(program, best)
            short = np.where(self.rows.separating, self.rows.bound - margins, 0.0) / self.rows.bound.max()
            inside = program.pool.spread(np.ones(len(at.slack)), np.zeros(short.shape)) > 0
            if not ((short > GOAL) & ~inside).any():
                break
            near = self._nearest(self._excess(margins), 0.1, int(inside.sum()))
            program, at = self._transfer(origin, early, inside | near | (short > GOAL))
        multipliers = program.pool.spread(best.multipliers / program.pool.size, np.zeros(short.shape))
        answer = Answer(self._weight(program, best), multipliers)
        return answer, max(self._gap(program)(best), float(short.max()))

    def _program(self, chosen: Bool) -> Form:
        chosen = self.candidates & (chosen | self.rows.tied)
        return self.form(Pool.of(self.rows, self.bases, chosen, self.unit))

    def _transfer(self, program: Form, at: Iterate, chosen: Bool) -> tuple[Form, Iterate]:
        """The same point over another pool: new rows enter near the central path."""
        slack: Float = np.maximum(self._excess(self._margins(program, at)), 0.01)
        multipliers = program.pool.spread(at.multipliers, mean_product(program, at) / slack)
        slack = program.pool.spread(at.slack, slack)
        other = self._program(chosen)
        return other, Iterate(at.P, at.Q, other.pool.pick(slack), other.pool.pick(multipliers))

    def _margins(self, program: Form, at: Iterate) -> Float:
        return self.rows.margins(self._weight(program, at))

    def _weight(self, program: Form, at: Iterate) -> Float:
        return self.bases.expand(program.weight(at)) * self.unit

    def _excess(self, margins: Float) -> Float:
        """Distance from the bound, as a part of the largest distance of a bound from zero (n, T).

        Infinite where there is no inequality.
        """
        distance = (margins - self.rows.bound) / (self.size * self.unit)
        return np.where(self.candidates & ~self.rows.tied, distance, np.inf)

    def _gap(self, program: Form) -> Callable[[Iterate], float]:
        """Relative duality gap over the pool, or the violation of rows that ask for no margin."""
        pool, nuclear, largest = program.pool, self.norm.p == 1, self.rows.bound.max()
        counted = np.flatnonzero(pool.bound > 0)
        zero = np.flatnonzero(~pool.tied & ~(pool.bound > 0))
        tied = np.flatnonzero(pool.tied)

        def gap(at: Iterate) -> float:
            W = program.weight(at)
            margins = pool.margins(W)
            least = float((margins[counted] / pool.bound[counted]).min())
            if not least > 0:
                return np.inf
            # One call for both norms, of which each is the dual of the other.
            sigma = np.linalg.svd(np.stack([W, pool.combine(at.multipliers)]), compute_uv=False)
            size, steepness = (sigma[0].sum(), sigma[1, 0]) if nuclear else (sigma[0, 0], sigma[1].sum())
            shortfall = 1 - (at.multipliers @ pool.bound) * least / (size * steepness)
            if len(counted) == len(margins):
                return float(shortfall)
            margins = margins * pool.size
            wrong = max(np.abs(margins[tied]).max(initial=0.0), -margins[zero].min(initial=0.0))
            return float(max(shortfall, wrong / (least * largest)))

        return gap


def _sizes(rows: Constraints) -> Float:
    """Norms |δ| |z| of the rows (n, T): zero for a token equal to the anchor, or a zero query."""
    out = np.empty(rows.active.shape)
    for part, delta in rows.chunks():
        out[part] = np.linalg.norm(delta, axis=-1)
    return out * np.linalg.norm(rows.queries, axis=-1)[:, None]
