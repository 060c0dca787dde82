"""A primal-dual interior point for  min N(W)  s.t. rows, for every entrywise norm, on a working set.

The unit ball of the norm is the only part that varies: it relates W to the dual matrix M = Σ λ_j A_j
and its linearisation is diagonal, dW = V ∘ dM + …, so that every norm shares the Newton matrix
A diag(V) Aᵀ + diag(s/λ).
Reference: Mehrotra 1992, "On the implementation of a primal-dual interior point method".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from attsvm.norms import Norm
from attsvm.program.working_rows import Solve, WorkingRows
from attsvm.tokens import Float

STEPS = 120
"""Newton steps after which the best point so far is returned."""

BOUNDARY = 0.995
"""Share of the way to the boundary that a step may go."""


@dataclass(frozen=True)
class Step:
    """A Newton direction: of the multipliers (k,), the slacks (k,), W (d, e), and the ball's own."""

    multipliers: Float
    slack: Float
    W: Float
    own: tuple[Float, ...] = ()


class Ball(Protocol):
    """The part of the interior point that depends on the norm.

    W (d, e): the weight, with the ball's own slacks and multipliers if it has corners.
    """

    W: Float

    @property
    def corners(self) -> int:
        """How many complementary pairs the ball has; 0 for a smooth one."""
        ...

    def products(self, step: Step | None, primal: float, dual: float) -> float:
        """Sum of the products of these pairs, after a step."""
        ...

    @property
    def centring(self) -> float:
        """Least centring that the ball asks for, in [0, 1)."""
        ...

    def weights(self, M: Float) -> Float:
        """V (d, e): the linear response of W to M."""
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

    def rescale(self, M: Float) -> tuple[float, float]:
        """Divide W by the first factor returned; the caller divides λ by the second."""
        ...


Start = Callable[[Float, Float, float], Ball]


@dataclass(frozen=True)
class Newton:
    """The linear system of one iteration: rows, their residual and complementarity."""

    work: WorkingRows
    solve: Solve
    residual: Float
    multipliers: Float
    slack: Float

    def direction(self, offset: Float, target: float, before: Step | None) -> tuple[Float, Float]:
        """dλ and ds for  dW = V ∘ dM + offset."""
        product = target - self.multipliers * self.slack
        if before is not None:
            product = product - before.multipliers * before.slack
        tied = self.work.tied
        pull = np.where(tied, 0.0, product / self.multipliers)
        change = self.solve(self.residual - self.work.margins(offset) + pull)
        return change, np.where(tied, 0.0, pull - self.slack / self.multipliers * change)


@dataclass
class Point:
    """Where an interior point stands: W, multipliers (k,) and the certified gap over its rows."""

    W: Float
    multipliers: Float
    gap: float = np.inf


def interior_point(
    work: WorkingRows, norm: Norm, ball: Start, start: Point, tolerance: float
) -> Point:
    """Solve the working rows to a relative gap, from any start with positive margins.

    ball(W, M, gap): the unit ball's state at a start whose relative gap is about gap.
    """
    run = _Run(work, norm, ball, start)
    best, stalled = run.point(), 0
    for _ in range(STEPS):
        try:
            run.step()
        except np.linalg.LinAlgError:
            break
        now = run.point()
        stalled = stalled + 1 if not now.gap < best.gap else 0
        best = best if stalled else now
        if best.gap < tolerance or stalled > 25:
            break
    return best


class _Run:
    """The state of one interior point: the ball's W, multipliers, slacks and the scaled bound."""

    def __init__(
        self, work: WorkingRows, norm: Norm, ball: Start, start: Point
    ) -> None:
        loose = min(start.gap, 0.1)
        size = float(norm.value(start.W))
        W, self.bound = start.W / size, work.bound / size
        steep = float(norm.dual.value(work.combine(start.multipliers)))
        multipliers = start.multipliers / steep
        scale = float(np.abs(self.bound).max())
        centre = loose * float(multipliers @ self.bound) / work.k
        slack = np.maximum(work.margins(W) - self.bound, loose * scale)
        self.slack = np.where(work.tied, 1.0, slack)
        self.multipliers = np.where(work.tied, multipliers, np.maximum(multipliers, centre / slack))
        self.work, self.norm = work, norm
        self.M = work.combine(self.multipliers)
        self.ball = ball(W, self.M, start.gap)
        self.margins = work.margins(self.ball.W)

    def point(self) -> Point:
        """The current point with its gap; infinite while a margin is missing."""
        lower = float(self.multipliers @ self.bound) / float(self.norm.dual.value(self.M))
        counted = self.bound > 0
        least = float((self.margins[counted] / self.bound[counted]).min())
        W = self.ball.W
        upper = float(self.norm.value(W)) / least if least > 0 else np.inf
        # Rows without a bound have nothing to scale by: their violation counts as it is.
        scale = float(self.bound.max())
        off = np.where(self.work.tied, np.abs(self.margins), -self.margins)[~counted]
        gap = max(1.0 - lower / upper, float(off.max(initial=0.0)) / scale)
        return Point(W, self.multipliers, gap)

    def step(self) -> None:
        """One predictor-corrector step."""
        V = self.ball.weights(self.M)
        theta = np.where(self.work.tied, 0.0, self.slack / self.multipliers)
        residual = np.where(self.work.tied, 0.0, self.slack) + self.bound - self.margins
        solve = self.work.newton(V, theta)
        newton = Newton(self.work, solve, residual, self.multipliers, self.slack)
        mu = self._mu(None, 0.0, 0.0)
        ahead = self.ball.direction(self.M, newton, 0.0, None)
        reached = self._mu(ahead, *self._longest(ahead, 1.0))
        centring = min(1.0, max((reached / mu) ** 3, self.ball.centring))
        step = self.ball.direction(self.M, newton, centring * mu, ahead)
        self._move(step, *self._longest(step, BOUNDARY))

    def _mu(self, step: Step | None, primal: float, dual: float) -> float:
        """Mean product of the complementary pairs after a step."""
        multipliers, slack = self.multipliers, self.slack
        if step is not None:
            multipliers, slack = multipliers + dual * step.multipliers, slack + primal * step.slack
        inequality = ~self.work.tied
        total = float(multipliers[inequality] @ slack[inequality]) + self.ball.products(step, primal, dual)
        return total / (int(inequality.sum()) + self.ball.corners)

    def _longest(self, step: Step, share: float) -> tuple[float, float]:
        primal, dual = self.ball.longest(step)
        free = self.work.tied
        primal = min(primal, reach(self.slack, step.slack))
        dual = min(dual, reach(np.where(free, 1.0, self.multipliers), np.where(free, 0.0, step.multipliers)))
        if not self.ball.corners:  # a curved ball ties W to M: one length for both
            primal = dual = min(primal, dual)
        return min(1.0, share * primal), min(1.0, share * dual)

    def _move(self, step: Step, primal: float, dual: float) -> None:
        self.multipliers = self.multipliers + dual * step.multipliers
        self.slack = self.slack + primal * step.slack
        self.ball.move(step, primal, dual)
        self.M = self.work.combine(self.multipliers)
        size, steep = self.ball.rescale(self.M)
        if (size, steep) != (1.0, 1.0):
            self.bound = self.bound / size
            self.slack = np.where(self.work.tied, 1.0, self.slack / size)
            self.multipliers = self.multipliers / steep
            self.M = self.M / steep
        self.margins = self.work.margins(self.ball.W)


def reach(x: Float, change: Float) -> float:
    """Largest a with x + a·change ≥ 0."""
    worst = float((-change / x).max(initial=0.0))
    return 1.0 / worst if worst > 0 else np.inf
