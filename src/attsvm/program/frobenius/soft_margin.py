"""Soft margin, one hinge per example: an augmented Lagrangian with semismooth Newton steps.

    min ½‖W‖² + Σ_i C_i ξ_i  subject to  ⟨A_it, W⟩ ≥ b_i − ξ_i  (= 0 where tied),  ξ ≥ 0

At a weight W the multipliers are a projection, λ(W) = Π(λ' + σ (b − A W)), onto the allowed set
{λ ≥ 0, Σ_t λ_it ≤ C_i}. The inner problem finds W = Σ λ(W)_j A_j by Newton steps on the rows that are
free to move; the outer one moves the centre λ' to λ and raises σ, until the gap closes.
Reference: Li, Sun and Toh 2018, "A highly efficient semismooth Newton augmented Lagrangian method".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.numbers import Float
from attsvm.program.frobenius.hinged import Hinged
from attsvm.program.frobenius.simplex import project
from attsvm.program.frobenius.soft_newton import FreeRows
from attsvm.program.rows import Candidate, Rows
from attsvm.program.working_set import SATISFIED, Stage

GOOD = 1e-12
"""Gap relative to ½‖W‖², and error of a tie, at which to stop."""

STAGES = (1e-1, 1e-2, 1e-4)
"""The same while rows are sought: a crude W violates nearly the same ones."""

NEAR = 1.2
"""Margin, in units of the required one, beyond which a row without a multiplier leaves the pool."""

OUTER, INNER, PATIENCE = 60, 30, 10
"""Moves of the centre in all, Newton steps between two, and moves without a smaller gap."""

FIRST_SIGMA, SIGMA_GROWTH, LARGEST_SIGMA = 10.0, 5.0, 1e9
"""σ per squared length of a row: at first, its growth, and the most that rounding allows."""

ROUNDING = 1e-12
"""Shortfall of a margin, relative to the required one, that is not meant."""

EXACT_STEPS = 3
"""Solves of the linear system that ends the method; all but the first refine it."""

SHARE = 0.01
"""An inner problem is solved when its own part of the gap, ½‖W − Σ λ_j A_j‖², is below this share."""


class SoftMargin:
    """An engine for pools that follow one another: each begins at the answer of the one before.

    count: how many rows the program has.
    """

    def __init__(self, count: int) -> None:
        self.before: tuple[Float, Float] | None = None
        self.stages, self.count = iter(STAGES), count

    def __call__(self, pool: Rows) -> Stage:
        rows, multipliers, allowed = Hinged(pool), np.zeros(len(pool)), np.zeros(pool.n)
        W: Float = np.zeros((pool.d, pool.e))
        lam: Float = multipliers
        others = len(pool) < self.count
        goal = next(self.stages, GOOD) if others else GOOD
        if (rows.hinges.required * rows.hinges.price).any():  # else nothing is asked, or paid: W = 0
            start = self.before and (self.before[0], rows.rows.pick(self.before[1]))
            W, lam, gap = _AugmentedLagrangian(rows, start).solve(goal, others)
            if start and gap > goal:  # with a large C the answer of another pool may lead nowhere
                cold = _AugmentedLagrangian(rows, None).solve(goal, others)
                W, lam, _ = cold if cold[2] < gap else (W, lam, gap)
        allowed[rows.example[rows.starts]] = rows.most(rows.asked - rows.margins(W))
        self.before = W, rows.rows.spread(lam)
        multipliers[rows.order] = lam
        retained = None
        if goal > GOOD:  # later a row that left might join again and again
            retained = pool.tied | (multipliers > 0) | (pool.margins(W) <= NEAR * pool.bound)
        return Stage(Candidate(W, multipliers), goal == GOOD, retained, allowed)


@dataclass
class _Best:
    """The pair with the smallest gap so far."""

    W: Float
    multipliers: Float
    gap: float = np.inf
    age: int = 0

    def offer(self, W: Float, multipliers: Float, gap: float) -> None:
        self.age += 1
        if gap < 0.5 * self.gap:
            self.age = 0
        if gap < self.gap:
            self.W, self.multipliers, self.gap = W, multipliers, gap


class _AugmentedLagrangian:
    """State: W (d, e) and its margins (k,); the centre λ' (k,) and σ.

    unit: mean squared length of a row; start: a W and multipliers to start from.
    """

    def __init__(self, rows: Hinged, start: tuple[Float, Float] | None) -> None:
        self.rows, self.price, free = rows, rows.hinges.price, ~rows.tied
        self.unit = max(float((rows.length[free] ** 2).sum()) / max(int(free.sum()), 1), 1e-300)
        self.W, self.centre = (self._start(), 0.0 * rows.length) if start is None else start
        self.margins = rows.margins(self.W)
        # More than ten times C of σ would let every multiplier jump from end to end.
        short = float(np.abs(rows.asked - self.margins)[free].mean())
        self.sigma = min(FIRST_SIGMA / self.unit, 10 * float(self.price.max()) / max(short, 1e-300))

    def _start(self) -> Float:
        """The best multiple of Σ_i C_i (mean row of example i)."""
        rows = self.rows
        share = self.price / np.maximum(rows.total(np.ones(len(rows.length))), 1)
        W = rows.combine(np.where(rows.tied, 0.0, share[rows.group]))
        margins = rows.margins(W)
        size = max(float(np.abs(margins).max()), 1e-300)
        scales = np.append(np.ldexp(1.0 / size, np.arange(-8, 12)), 0.0)
        return W * min(scales[scales <= 1.0].tolist(), key=lambda a: self._primal(a * W, a * margins))

    # ------------------------------------------------------------------ values

    def _multipliers(self, margins: Float) -> Float:
        """λ(W) of a weight with these margins."""
        out = np.empty(margins.shape)
        project(self.rows.hinges, self.centre, self.sigma, margins, out)
        return out

    def _primal(self, W: Float, margins: Float) -> float:
        return 0.5 * float(np.vdot(W, W)) + float(self.price @ self.rows.most(self.rows.asked - margins))

    def _gap(self, multipliers: Float, rest: float) -> tuple[float, float]:
        """Primal less dual value; and the same as if C_i were at most twice Σ_t λ_it.

            rest + Σ_i (C_i − Σ_t λ_it) ξ_i + Σ_it λ_it (⟨A_it, W⟩ − b_i + ξ_i)

        rest: ½‖W − Σ λ_j A_j‖². No term is negative and nothing cancels: with a small C both values
        are nearly Σ C_i b_i. The second number does not explode with a C that is larger than needed.
        """
        rows, required = self.rows, self.rows.hinges.required
        least = rows.least(self.margins)
        short = required - least
        short[short <= ROUNDING * required] = 0.0
        level = np.where(short > 0, least, required)
        paid = ~rows.tied & (multipliers > 0)
        idle = float(multipliers[paid] @ (self.margins - level[rows.group])[paid])
        total = rows.total(multipliers)
        room = self.price - total
        return rest + idle + float(room @ short), rest + idle + float(np.minimum(room, total) @ short)

    def _cancelling(self, multipliers: Float) -> float:
        """½(Σ_j |λ_j| |A_j|)², with a mean length: what ½‖W‖² would be if no rows cancelled."""
        return 0.5 * self.unit * float(np.abs(multipliers).sum()) ** 2

    # ------------------------------------------------------------------ the two loops

    def solve(self, goal: float, others: bool) -> tuple[Float, Float, float]:
        """W, λ and the gap: move the centre until it is closed or stops shrinking; others: see `_lifted`."""
        best = _Best(self.W, self.centre)
        for _ in range(OUTER):
            self.margins = self.rows.margins(self.W)  # afresh: sums of steps gather rounding
            multipliers, gap, settled = self._inner()
            if not settled:  # σ is too large for this centre
                self.sigma /= SIGMA_GROWTH
                continue
            tie = float(np.abs(self.margins).max(initial=0.0, where=self.rows.tied))
            best.offer(self.W, multipliers, max(gap, tie))
            if best.gap <= goal or best.age >= PATIENCE:
                break
            self.centre = multipliers
            self.sigma = min(self.sigma * SIGMA_GROWTH, LARGEST_SIGMA / self.unit)
        W, multipliers = self._exact(best.W, best.multipliers) if goal <= GOOD else (best.W, best.multipliers)
        return self._lifted(W, others), multipliers, best.gap

    def _exact(self, W: Float, multipliers: Float) -> tuple[Float, Float]:
        """The pair with the free rows at their margins, W = Σ λ_j A_j, where that has a smaller gap.

        With a large C the multipliers cancel, and what a Newton step leaves of them is much of W.
        """
        rows, best = self.rows, self._gap_of(W, multipliers)
        rows.hinges.reached[:] = rows.total(multipliers) >= (1 - ROUNDING) * self.price
        free, lam = FreeRows(rows, rows.tied | (multipliers > 0)), multipliers.copy()
        for _ in range(EXACT_STEPS):
            change = free.exact(rows.combine(lam))
            if change is None:
                break
            lam[free.at] += change
            if (lam[~rows.tied] < 0).any():
                break
            other = rows.combine(lam)
            gap = self._gap_of(other, lam)
            if gap < best:
                W, multipliers, best = other, lam.copy(), gap
        return W, multipliers

    def _gap_of(self, W: Float, multipliers: Float) -> float:
        """Primal less dual value of a pair."""
        self.margins = self.rows.margins(W)
        return self._gap(multipliers, 0.5 * float(np.square(W - self.rows.combine(multipliers)).sum()))[0]

    def _lifted(self, W: Float, others: bool) -> Float:
        """The weight, a little longer where examples fall short by no more than rounding.

        With a large C even rounding would be paid for. others: rows outside may fall short by SATISFIED.
        """
        asks = self.rows.asked > 0
        least = float((self.rows.margins(W)[asks] / self.rows.asked[asks]).min())
        if not least >= 1 - ROUNDING:
            return W
        return W / min(least, 1.0, 1.0 - SATISFIED * others)

    def _inner(self) -> tuple[Float, float, bool]:
        """Newton steps to W = Σ λ(W)_j A_j: the multipliers, the relative gap, and whether it settled."""
        multipliers = self._multipliers(self.margins)
        for _ in range(INNER):
            gradient = self.W - self.rows.combine(multipliers)
            rest = 0.5 * float(np.vdot(gradient, gradient))
            gap, measured = self._gap(multipliers, rest)
            size, cancelling = 0.5 * float(np.vdot(self.W, self.W)), self._cancelling(multipliers)
            if rest <= max(SHARE * measured, 1e-3 * GOOD * size, 1e-28 * cancelling):
                return multipliers, gap / max(size, 1e-3 * cancelling, 1e-300), True
            free = self.rows.tied | (multipliers > 0)
            step = FreeRows(self.rows, free).direction(gradient, self.sigma)
            multipliers = self._move(gradient, step)
        return multipliers, np.inf, False

    def _move(self, gradient: Float, step: Float) -> Float:
        """Go along the step to where the inner objective is near its least; the multipliers there.

        Margins are linear in W, so one pass over the data serves the whole search; the slope is
        increasing and piecewise linear, so regula falsi finds its zero.
        """
        moved = self.rows.margins(step)
        first, linear = float(np.vdot(gradient, step)), float(np.vdot(self.W, step))
        square = float(np.vdot(step, step))
        low, low_slope, high, high_slope, length = 0.0, first, 1.0, np.inf, 1.0
        for _ in range(30):
            multipliers = self._multipliers(self.margins + length * moved)
            slope = linear + length * square - float(np.vdot(multipliers, moved))
            if abs(slope) <= 0.5 * abs(first) or (length == 1.0 and slope <= 0):
                break
            if slope > 0:
                high, high_slope = length, slope
            else:
                low, low_slope = length, slope
            part = -low_slope / (high_slope - low_slope)
            length = low + (high - low) * min(max(part, 0.1), 0.9)
        self.W, self.margins = self.W + length * step, self.margins + length * moved
        return multipliers
