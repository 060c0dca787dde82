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
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.frobenius.simplex import Hinges, project
from attsvm.program.frobenius.soft_newton import FreeRows

GOOD = 1e-12
"""Gap relative to ½‖W‖², and error of a tie, at which to stop."""

OUTER, INNER, PATIENCE = 60, 30, 10
"""Moves of the centre in all, Newton steps between two, and moves without a smaller gap."""

FIRST, GROWTH, LARGEST = 10.0, 5.0, 1e9
"""σ per squared length of a row: at first, its growth, and the most that rounding allows."""

ROUNDING = 1e-12
"""Shortfall of a margin, relative to the required one, that is not meant."""

SHARE = 0.01
"""An inner problem is solved when its own part of the gap, ½‖W − Σ λ_j A_j‖², is below this share."""


def solve(program: Constraints, slack: Float) -> Answer:
    """The soft-margin weight and multipliers of one run; slack (n,): C, in the units of the rows."""
    if not ((program.bound > 0).any(1) & (slack > 0)).any():  # nothing is asked, or paid: W = 0
        return Answer(np.zeros((program.d, program.e)), np.zeros(program.active.shape))
    return _AugmentedLagrangian(program, slack).solve()


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
    """State: W (d, e) and its margins (n, T); the centre λ' (n, T) and σ.

    unit: mean squared length of a row.
    """

    def __init__(self, program: Constraints, slack: Float) -> None:
        self.rows, self.slack = program, slack
        arrays = program.required, slack, program.active, program.tied, np.zeros(program.n, bool)
        self.hinges = Hinges(*map(np.array, arrays))
        self.centre: Float = np.zeros(program.active.shape)
        self.W, self.margins, self.unit = self._start()
        # More than ten times C of σ would let every multiplier jump from end to end.
        short = np.abs(program.bound - self.margins)[program.separating]
        self.sigma = min(FIRST / self.unit, 10 * float(slack.max()) / max(float(short.mean()), 1e-300))

    def _start(self) -> tuple[Float, Float, float]:
        """The best multiple of Σ_i C_i (mean row of example i), its margins, and a row's mean square."""
        rows, total, count = self.rows, 0.0, max(int(self.rows.separating.sum()), 1)
        for part, delta in rows.chunks():
            squares = np.einsum("ntd,ntd->nt", delta, delta) * rows.separating[part]
            total += float(squares.sum(1) @ np.einsum("ne,ne->n", rows.queries[part], rows.queries[part]))
        share = self.slack / np.maximum(rows.separating.sum(1), 1)
        W = rows.combine(np.where(rows.separating, share[:, None], 0.0))
        margins = rows.margins(W)
        size = max(float(np.abs(margins).max()), 1e-300)
        scales = np.append(np.ldexp(1.0 / size, np.arange(-8, 12)), 0.0)
        scale = min(scales[scales <= 1.0].tolist(), key=lambda a: self._primal(a * W, a * margins))
        return scale * W, scale * margins, max(total / count, 1e-300)

    # ------------------------------------------------------------------ values

    def _multipliers(self, margins: Float) -> Float:
        """λ(W) of a weight with these margins."""
        out = np.empty(margins.shape)
        project(self.hinges, self.centre, self.sigma, margins, out)
        return out

    def _primal(self, W: Float, margins: Float) -> float:
        short = np.where(self.rows.separating, self.rows.bound - margins, 0.0).max(1)
        return 0.5 * float(np.vdot(W, W)) + float(self.slack @ np.maximum(short, 0.0))

    def _gap(self, multipliers: Float, rest: float) -> tuple[float, float]:
        """Primal less dual value; and the same as if C_i were at most twice Σ_t λ_it.

            rest + Σ_i (C_i − Σ_t λ_it) ξ_i + Σ_it λ_it (⟨A_it, W⟩ − b_i + ξ_i)

        rest: ½‖W − Σ λ_j A_j‖². No term is negative and nothing cancels: with a small C both values
        are nearly Σ C_i b_i. The second number does not explode with a C that is larger than needed.
        """
        rows = self.rows
        least = np.where(rows.separating, self.margins, np.inf).min(1)
        slacks = rows.required - least
        slacks[slacks <= ROUNDING * rows.required] = 0.0
        paid = np.where(rows.separating, multipliers, 0.0)
        level = np.where(slacks > 0, least, rows.required)
        idle = float(np.vdot(paid, np.where(paid > 0, self.margins - level[:, None], 0.0)))
        total = paid.sum(1)
        room = self.slack - total
        return rest + idle + float(room @ slacks), rest + idle + float(np.minimum(room, total) @ slacks)

    def _cancelling(self, multipliers: Float) -> float:
        """½(Σ_j |λ_j| |A_j|)², with a mean length: what ½‖W‖² would be if no rows cancelled."""
        return 0.5 * self.unit * float(np.abs(multipliers).sum()) ** 2

    # ------------------------------------------------------------------ the two loops

    def solve(self) -> Answer:
        """Move the centre until the gap is closed or stops shrinking."""
        best = _Best(self.W, self.centre)
        for _ in range(OUTER):
            self.margins = self.rows.margins(self.W)  # afresh: sums of steps gather rounding
            multipliers, gap, settled = self._inner()
            if not settled:  # σ is too large for this centre
                self.sigma /= GROWTH
                continue
            tie = float(np.abs(np.where(self.rows.tied, self.margins, 0.0)).max(initial=0.0))
            best.offer(self.W, multipliers, max(gap, tie))
            if best.gap <= GOOD or best.age >= PATIENCE:
                break
            self.centre = multipliers
            self.sigma = min(self.sigma * GROWTH, LARGEST / self.unit)
        return Answer(self._lifted(best.W), best.multipliers)

    def _lifted(self, W: Float) -> Float:
        """The weight, a little longer where examples fall short by no more than rounding.

        With a large C even rounding would be paid for.
        """
        asks = self.rows.bound > 0
        margins = self.rows.margins(W)
        least = float((margins[asks] / self.rows.bound[asks]).min())
        return W / least if 1 - ROUNDING <= least < 1 else W

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
            free = self.rows.tied | (self.rows.separating & (multipliers > 0))
            step = FreeRows(self.rows, free, self.hinges.reached).direction(gradient, self.sigma)
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
