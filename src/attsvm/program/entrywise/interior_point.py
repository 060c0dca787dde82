"""A primal-dual interior point for  min N(W)  s.t. rows, for every entrywise norm.

The unit ball of the norm is the only part that varies: it relates W to the dual matrix M = Σ λ_j A_j
and its linearisation is diagonal, dW = V ∘ dM + …, so that every norm shares the Newton matrix
A diag(V) Aᵀ + diag(s/λ). Rows may join while it runs.
Reference: Mehrotra 1992, "On the implementation of a primal-dual interior point method".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from attsvm.norms import Norm
from attsvm.program.entrywise.working_rows import Border, WorkingRows
from attsvm.tokens import Bool, Float

LOOSE = 0.1
"""Distance from the boundary, relative to the solution's size, of the first slacks and multipliers."""

LEAST = 1e-13
"""Complementarity, relative to the objective, below which systems only lose digits."""

FAR = 1e-6
"""Complementarity, relative to the objective, above which a linear program's gap is not looked at."""

BOUNDARY = 0.995
"""Share of the way to the boundary that a step may go."""


@dataclass(frozen=True)
class Step:
    """A Newton direction: of the multipliers (k,), the slacks (k,), W (d, e), and the ball's own."""

    multipliers: Float
    slack: Float
    W: Float
    own: tuple[Float, ...] = ()


class Newton:
    """The linear system of one iteration, with  ratio = s/λ, 0 for ties, and the border of the ball."""

    def __init__(self, run: Run) -> None:
        self.work, self.multipliers, self.slack = run.work, run.multipliers, run.slack
        self.V = run.ball.weights(run.M)
        self.border = run.ball.border(run.work, self.V)
        self.inverse = self.work.open / self.multipliers
        self.ratio = self.slack * self.inverse
        self.residual = self.slack * self.work.open + run.bound - run.margins
        self.solve = self.work.newton(self.V, self.ratio, self.border)

    def direction(
        self, offset: Float, target: float, before: Step | None
    ) -> tuple[Float, Float, Float, float]:
        """dλ, ds, y and t that meet the rows when  dW = y + offset,  y = V ∘ dM + U t,  and λ s = target."""
        product = target - self.multipliers * self.slack
        if before is not None:
            product -= before.multipliers * before.slack
        pull = product * self.inverse
        right = self.residual - self.work.margins(offset) + pull
        change, y, t = self.solve(right, before is not None)
        return change, pull - self.ratio * change, y, t


class Ball(Protocol):
    """The part that depends on the norm: W (d, e), and slacks and multipliers of its corners.

    corners: how many complementary pairs it has; 0 for a smooth ball.
    """

    W: Float
    corners: int

    @property
    def least(self) -> float:
        """Complementarity that a step may aim at, relative to the objective."""
        ...

    def products(self, step: Step | None, primal: float, dual: float) -> float:
        """Sum of the products of its pairs, after a step."""
        ...

    def weights(self, M: Float) -> Float:
        """V (d, e): the linear response of W to M."""
        ...

    def border(self, work: WorkingRows, V: Float) -> Border | None:
        """The unknown, if any, that the ball has besides W."""
        ...

    def direction(self, M: Float, newton: Newton, target: float, before: Step | None) -> Step:
        """Newton direction to complementarity `target`, with second-order terms of `before`."""
        ...

    def longest(self, step: Step) -> tuple[float, float]:
        """Longest primal and dual steps that stay inside."""
        ...

    def move(self, step: Step, primal: float, dual: float) -> None:
        """Take the step."""
        ...

    def absorb(self, M: Float) -> None:
        """Follow a change of M by new rows, as far as positive slacks allow.

        Left to Newton's method, the mismatch would shrink no faster than V grows.
        """
        ...

    def rescale(self, M: Float) -> tuple[float, float]:
        """Divide W by the first factor returned; the caller divides λ by the second."""
        ...


Start = Callable[[Float, Float], Ball]
"""The state of a ball at a first W and M, both of norm about one."""


class Run:
    """One interior point under way: the ball's W, multipliers and slacks of the working rows.

    Starts from any W with positive margins and any multipliers that are not all zero.
    """

    def __init__(self, work: WorkingRows, norm: Norm, ball: Start, W: Float, multipliers: Float) -> None:
        self.work, self.norm, self.dual_p = work, norm, norm.dual.p
        self.size = length(W, norm.p)
        W, self.bound = W / self.size, work.bound / self.size
        multipliers = multipliers / length(work.combine(multipliers), self.dual_p)
        centre = LOOSE * float(multipliers @ self.bound) / work.k
        slack = np.maximum(work.margins(W) - self.bound, LOOSE * float(self.bound.max()))
        self.slack = np.where(work.tied, 1.0, slack)
        self.multipliers = np.where(work.tied, multipliers, np.maximum(multipliers, centre / slack))
        self.M = work.combine(self.multipliers)
        self.ball = ball(W, self.M)
        self.margins = work.margins(self.ball.W)

    @property
    def W(self) -> Float:
        """The weight in the units of the rows."""
        return self.ball.W * self.size

    def join(self, work: WorkingRows, old: Bool) -> None:
        """Go on with more rows; old (k,) marks the former ones among them.

        A new row starts on the central path, at its own margin or as far inside as it is outside.
        """
        mu = self._mu(None, 0.0, 0.0)
        self.work, self.bound = work, work.bound / self.size
        self.margins = work.margins(self.ball.W)
        slack = np.maximum(np.abs(self.margins - self.bound), np.sqrt(mu) * float(self.bound.max()))
        multipliers = mu / slack
        slack[old], multipliers[old] = self.slack, self.multipliers
        self.slack, self.multipliers = slack, multipliers
        self.M = work.combine(multipliers)
        self.ball.absorb(self.M)

    def gap(self) -> float:
        """The relative duality gap over the working rows, 1 while a margin is missing.

        Far from the end of a linear program complementarity stands for it, which costs nothing.
        """
        if self.ball.corners:
            rough = self._pairs * self._mu(None, 0.0, 0.0) / float(self.multipliers @ self.bound)
            if not rough < FAR:
                return 1.0
        counted = self.bound > 0
        least = float((self.margins[counted] / self.bound[counted]).min())
        if not least > 0:
            return 1.0
        lower = float(self.multipliers @ self.bound) / length(self.M, self.dual_p)
        upper = length(self.ball.W, self.norm.p) / least
        # Rows without a bound have nothing to scale by: their violation counts as it is.
        off = np.where(self.work.tied, np.abs(self.margins), -self.margins)[~counted]
        return max(1.0 - lower / upper, float(off.max(initial=0.0)) / float(self.bound.max()))

    def step(self) -> None:
        """One predictor-corrector step."""
        newton = Newton(self)
        mu = self._mu(None, 0.0, 0.0)
        ahead = self.ball.direction(self.M, newton, 0.0, None)
        reached = self._mu(ahead, *self._longest(ahead, 1.0))
        # Complementarity must not run ahead of feasibility, nor below what the ball allows.
        short = float(np.abs(self.multipliers) @ np.abs(newton.residual))
        least = max(short, self.ball.least * float(self.multipliers @ self.bound)) / self._pairs
        target = min(mu, max(mu * (reached / mu) ** 3, least))
        step = self.ball.direction(self.M, newton, target, ahead)
        self._move(step, *self._longest(step, BOUNDARY))

    def _mu(self, step: Step | None, primal: float, dual: float) -> float:
        """Mean product of the complementary pairs after a step."""
        multipliers, slack = self.multipliers, self.slack
        if step is not None:
            multipliers, slack = multipliers + dual * step.multipliers, slack + primal * step.slack
        total = float((multipliers * slack) @ self.work.open) + self.ball.products(step, primal, dual)
        return total / self._pairs

    @property
    def _pairs(self) -> float:
        return self.work.inequalities + self.ball.corners

    def _longest(self, step: Step, share: float) -> tuple[float, float]:
        primal, dual = self.ball.longest(step)
        primal = min(primal, reach(self.slack, step.slack))
        dual = min(dual, reach(self.multipliers, step.multipliers * self.work.open))
        if not self.ball.corners:  # a curved ball ties W to M: one length for both
            primal = dual = min(primal, dual)
        return min(1.0, share * primal), min(1.0, share * dual)

    def _move(self, step: Step, primal: float, dual: float) -> None:
        self.multipliers = self.multipliers + dual * step.multipliers
        self.slack = self.slack + primal * step.slack
        self.ball.move(step, primal, dual)
        self.M = self.work.combine(self.multipliers)
        size, steep = self.ball.rescale(self.M)
        self.size *= size
        self.bound = self.work.bound / self.size
        self.slack = np.where(self.work.tied, 1.0, self.slack / size)
        self.multipliers, self.M = self.multipliers / steep, self.M / steep
        self.margins = self.work.margins(self.ball.W)


def length(x: Float, p: float) -> float:
    """‖x‖_p, p in [1, ∞], of all entries: `Entrywise(p).value` without its generality, for every step."""
    size = np.abs(x)
    largest = float(size.max())
    if math.isinf(p) or largest == 0:
        return largest
    return largest * float(((size / largest) ** p).sum()) ** (1 / p)


def reach(x: Float, change: Float) -> float:
    """Largest a with x + a·change ≥ 0."""
    worst = float((-change / x).max(initial=0.0))
    return 1.0 / worst if worst > 0 else np.inf
