"""The central path of a small convex program, in float64 as long as that has digits, then in doubled numbers.

    max gᵀy  with  X y in a ball,  L y + h > 0:    y(μ) maximises  gᵀy/μ − barrier(X y) + Σ log (L y + h)

At y(μ) the value is within ν μ of the best one, and W = μ ∇barrier(X y) is the dual point,
Xᵀ W = g + Lᵀ μ/(L y + h).
Damped Newton steps never leave the interior, whatever the conditioning, as long as the numbers have digits.
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
class Program:
    """gain g (N,), X (D, N), the ball, L (m, N) and h (m,)."""

    gain: Numbers
    X: Numbers
    ball: Ball
    L: Numbers
    h: Numbers

    def rounded(self) -> Program:
        """The same in float64."""
        return Program(high(self.gain), high(self.X), self.ball, high(self.L), high(self.h))

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


def follow(program: Program, y: Float, goal: float, first: float = FIRST) -> Point | None:
    """The point with a gap of at most goal times its value, or the last one on the way there.

    y: an interior point; first: a μ so large that gains do not matter. None where values grow beyond it.
    """
    coarse, mu = _descend(program.rounded(), y, first, max(goal, COARSE), first)
    if program.value(Doubled(coarse)) > first:
        return None
    fine, mu = _descend(program, Doubled(coarse), mu, goal, first)
    fine, W = _polished(program, fine, mu)
    return Point(fine, W, program.value(fine), program.parameter * mu)


def _polished(program: Program, y: Doubled, mu: float) -> tuple[Doubled, Doubled]:
    """y(μ) and W with  Xᵀ W = g + Lᵀ μ/(L y + h)  to the last digits.

    Near the boundary μ ∇barrier(X y) loses as many digits as the room there is small; so W moves on its own,
    by the linear part of that relation, and what is left over is measured with W itself.
    """
    W = program.ball.gradient(program.X @ y) * mu
    for _ in range(POLISH):
        rest = program.X.T @ W - program.gain - program.L.T @ (mu / program.room(y))
        try:
            matrix, bent = program.curvature(y)
            step = solve_positive(matrix, rest / mu)
        except np.linalg.LinAlgError:
            break
        if not program.inside(y - step):
            break
        y, W = y - step, W - (bent @ step) * mu
    return y, W


def _descend(program: Program, y: Numbers, mu: float, goal: float, most: float) -> tuple[Numbers, float]:
    """Along the path as far as these numbers, or the goal, go: y(μ) and μ."""
    here, shrink, left = (y, mu), SHRINK, ALL
    while left > 0:
        found, used = _centre(program, here[0], mu, most)
        left -= used + 1
        if found is not None and program.value(found) > most:
            return found, mu
        if found is not None:
            here = found, mu
            if program.parameter * mu <= goal * program.value(found):
                break
        elif shrink > SLOWEST:
            break
        else:
            shrink = shrink**0.4
        mu = here[1] * shrink
    return here


def _centre(program: Program, y: Numbers, mu: float, most: float) -> tuple[Numbers | None, int]:
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


def _move(program: Program, y: Numbers, mu: float, step: Numbers, decrement: float) -> Numbers | None:
    """Along a Newton step: as far as it goes down, at least as far as it must."""
    safe, tried, best = 1 / (1 + decrement), 1.0, None
    while tried >= safe / 2:
        there = y + step * tried
        if program.inside(there):
            uphill = float(high((program.slope(there, mu) * step).sum())) / decrement**2
            if uphill <= 0.5:
                best = there
                if tried < 1 or uphill > -0.5 or tried > 1e6:
                    return best
                tried *= 4  # still steep: the unknowns may have far to go
                continue
        if best is not None:
            return best
        tried /= 2
    there = y + step * safe
    return there if program.inside(there) else None
