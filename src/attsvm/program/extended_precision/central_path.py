"""The central path of a small convex program, in float64 as long as that has digits, then in doubled numbers.

    max gᵀy  with  X y in a ball,  L y + h > 0:    y(μ) maximises  gᵀy/μ − barrier(X y) + Σ log (L y + h)

At y(μ) the value is within ν μ of the best one, and W = μ ∇barrier(X y) is the dual point,
Xᵀ W = g + Lᵀ μ/(L y + h).
Damped Newton steps stay in the interior, whatever the conditioning, as long as the numbers have digits.
Reference: Nesterov and Nemirovskii 1994, "Interior-point polynomial algorithms in convex programming".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from attsvm.numbers import Float
from attsvm.numbers.doubled import Doubled
from attsvm.program.extended_precision.balls import Ball, Numbers, high, solve_positive

SHRINK, SLOWEST = 0.05, 0.5
"""Factor of μ between two points of the path: at first, and at last, where numbers run out of digits."""

CENTRED = 0.1
"""Newton decrement at which a point counts as on the path."""

STEPS, ALL, POLISH = 100, 600, 6
"""Newton steps towards one point, in all, and at the end, where the dual point becomes exact."""

FIRST = 1e15
"""The first μ, where values are below 1e13."""

COARSE = 1e-4
"""Relative gap down to which float64 serves."""


@dataclass(frozen=True)
class Problem:
    """gain g (N,), X (D, N), the ball, L (m, N) and h (m,)."""

    gain: Numbers
    X: Numbers
    ball: Ball
    L: Numbers
    h: Numbers

    def rounded(self) -> Problem:
        """The same in float64."""
        return Problem(high(self.gain), high(self.X), self.ball, high(self.L), high(self.h))

    @property
    def parameter(self) -> float:
        return self.ball.parameter + len(self.h)

    def value(self, y: Numbers) -> float:
        return float(high((self.gain * y).sum()))

    def room(self, y: Numbers) -> Numbers:
        return self.L @ y + self.h

    def inside(self, y: Numbers) -> bool:
        return bool((high(self.room(y)) > 0).all()) and self.ball.inside(self.X @ y)

    def slope(self, y: Numbers, mu: float) -> Numbers:
        """Gradient of what y(μ) minimises."""
        return self.X.T @ self.ball.gradient(self.X @ y) - self.gain / mu - self.L.T @ (1.0 / self.room(y))

    def newton(self, y: Numbers, mu: float) -> tuple[Numbers, float]:
        """The Newton step at y towards y(μ), and its decrement."""
        slope = self.slope(y, mu)
        step = -solve_positive(self.curvature(y)[0], slope)
        return step, math.sqrt(max(-float(high((slope * step).sum())), 0.0))

    def curvature(self, y: Numbers) -> tuple[Numbers, Numbers]:
        """The Hessian of what y(μ) minimises (N, N), and the ball's own, applied to X (D, N)."""
        bent, scaled = self.ball.hessian(self.X @ y) @ self.X, self.L / self.room(y)[:, None]
        return self.X.T @ bent + scaled.T @ scaled, bent


@dataclass(frozen=True)
class Point:
    """y(μ), its dual point W = μ ∇barrier(X y), its value, and by how much the best one may be larger."""

    y: Doubled
    W: Doubled
    value: float
    gap: float


def follow(program: Problem, y: Float, goal: float, first: float = FIRST) -> Point | None:
    """The point with a gap of at most goal times its value, or the last one on the way there.

    y: an interior point; first: a μ so large that gains do not matter. None where values grow beyond it.
    """
    coarse, mu = descend(program.rounded(), y, first, max(goal, COARSE), first)
    if program.value(Doubled(coarse)) > first:
        return None
    fine, mu = descend(program, Doubled(coarse), mu, goal, first)
    fine, W = _polished(program, fine, mu)
    return Point(fine, W, program.value(fine), program.parameter * mu)


def _polished(program: Problem, y: Doubled, mu: float) -> tuple[Doubled, Doubled]:
    """y(μ) and W with  Xᵀ W = g + Lᵀ μ/(L y + h)  to the last digits.

    Near the boundary μ ∇barrier(X y) loses digits. So W moves by the linear part of that relation, and the
    residual is computed from W.
    """
    W = program.ball.gradient(program.X @ y) * mu
    for _ in range(POLISH):
        residual = program.X.T @ W - program.gain - program.L.T @ (mu / program.room(y))
        try:
            matrix, bent = program.curvature(y)
            step = solve_positive(matrix, residual / mu)
        except np.linalg.LinAlgError:
            break
        if not program.inside(y - step):
            break
        y, W = y - step, W - (bent @ step) * mu
    return y, W


def descend(program: Problem, y: Numbers, mu: float, goal: float, most: float) -> tuple[Numbers, float]:
    """Follow the path until the goal is reached or the numbers run out of digits: y(μ) and μ."""
    point, shrink, remaining = (y, mu), SHRINK, ALL
    while remaining > 0:
        centred, steps = _centre(program, point[0], mu, most)
        remaining -= steps + 1
        if centred is not None and program.value(centred) > most:
            return centred, mu
        if centred is not None:
            point = centred, mu
            if program.parameter * mu <= goal * program.value(centred):
                break
        elif shrink > SLOWEST:
            break
        else:
            shrink = shrink**0.4
        mu = point[1] * shrink
    return point


def _centre(program: Problem, y: Numbers, mu: float, most: float) -> tuple[Numbers | None, int]:
    """y(μ), or None where Newton's method stops short of it; and the steps it took.

    A y whose value exceeds `most` ends the search: there is no y(μ), or none of use.
    """
    best = np.inf
    for count in range(STEPS):
        try:
            step, decrement = program.newton(y, mu)
        except np.linalg.LinAlgError:
            return None, count
        if decrement < CENTRED:
            y = y + step
            return (y, count) if program.inside(y) else (None, count)
        # In the region of quadratic convergence a decrement that does not shrink is rounding.
        if not np.isfinite(decrement) or (best < 0.3 and decrement > 0.9 * best):
            return None, count
        best = min(best, decrement)
        moved = _move(program, y, mu, step, decrement)
        if moved is None or program.value(moved) > most:
            return moved, count
        y = moved
    return None, STEPS


def _move(program: Problem, y: Numbers, mu: float, step: Numbers, decrement: float) -> Numbers | None:
    """The end of a line search along a Newton step, or the damped step; None where rounding spoils both."""
    safe, length, best = 1 / (1 + decrement), 1.0, None
    while length >= safe / 2:
        trial = y + step * length
        if program.inside(trial):
            uphill = float(high((program.slope(trial, mu) * step).sum())) / decrement**2
            if uphill <= 0.5:
                best = trial
                if length < 1 or uphill > -0.5 or length > 1e6:
                    return best
                length *= 4  # still steep: the unknowns may have far to go
                continue
        if best is not None:
            return best
        length /= 2
    trial = y + step * safe
    return trial if program.inside(trial) else None
