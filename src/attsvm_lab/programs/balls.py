"""Unit balls of other norms by their self-concordant barriers: what a central path must know to stay inside.

    box       ‖x‖_∞ < 1     −Σ log(1 − x_i²)
    power     ‖x‖_q < 1     −Σ log(u_i^(2/q) − x_i²) − Σ (1 − 1/q) log u_i − log(1 − Σ u_i),   u_i > |x_i|^q
    operator  ‖X‖_op < 1    −log det Z,   Z = [[1, X], [Xᵀ, 1]]
    trace     ‖X‖_* < 1     −log det Z − log(1 − ½ tr P − ½ tr Q),   Z = [[P, X], [Xᵀ, Q]]

The heights of a point are u, or P and Q. The round ball is in `attsvm.program.extended_precision.balls`.
Reference: Nesterov and Nemirovskii 1994, "Interior-point polynomial algorithms in convex programming";
Chares 2009, "Cones and interior-point algorithms for structured convex optimization" (the power cone).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attsvm.norms import Norm, capabilities_of
from attsvm.numbers import Float
from attsvm.numbers.doubled import Doubled
from attsvm.program.extended_precision.balls import (
    Ball,
    Numbers,
    Round,
    diagonal,
    high,
    joined,
    like,
    solve_positive,
)

LOG_2 = (0.6931471805599453, 2.3190468138462996e-17)
"""log 2 as the sum of two numbers."""

SERIES = [Doubled(1.0) / float(math.factorial(k)) for k in range(9, 0, -1)]
"""1/9! … 1/1!."""


def unit_ball(norm: Norm, shape: tuple[int, int]) -> Ball:
    """The ball of matrices of a shape with a norm below one.

    Schatten(p) with 1 < p < ∞ has none here: it would need singular values in doubled numbers. It gets the
    round ball, and so does a norm that acts on something else: W then has the margins, but is not the
    shortest.
    """
    D, traits = shape[0] * shape[1], capabilities_of(norm)
    if traits.acts_on == "singular values" and norm.p in (1, math.inf):
        return SingularValues(*shape, trace=norm.p == 1)
    if traits.acts_on != "entries" or traits.euclidean:
        return Round(D)
    return Box(D) if math.isinf(norm.p) else Power(D, norm.p)


@dataclass(frozen=True)
class Box:
    """‖x‖_∞ < 1, D entries."""

    D: int

    @property
    def parameter(self) -> float:
        return 2.0 * self.D

    def heights(self, x: Float) -> Float:
        return np.zeros(0)

    def inside(self, x: Numbers) -> bool:
        return bool((np.abs(high(x)) < 1).all())

    def gradient(self, x: Numbers) -> Numbers:
        return 2.0 * x / ((1.0 - x) * (1.0 + x))

    def hessian(self, x: Numbers) -> Numbers:
        over = 1.0 / ((1.0 - x) * (1.0 + x))
        return diagonal(2.0 * over * (1.0 + 2.0 * x * x * over))


@dataclass(frozen=True)
class Power:
    """Σ |x_i|^q < 1, q ≥ 1, for D entries x, with heights u_i > |x_i|^q."""

    D: int
    q: float

    @property
    def parameter(self) -> float:
        return 3.0 * self.D + 1.0

    def heights(self, x: Float) -> Float:
        least = np.abs(x) ** self.q
        return np.asarray(least + 0.9 * (1 - least.sum()) / self.D)

    def _terms(self, x: Numbers) -> tuple[Numbers, Numbers, Numbers, Numbers]:
        """x, u, u^(2/q) − x² and 1 − Σ u."""
        x, u = x[: self.D], x[self.D :]
        return x, u, power(u, 2 / self.q) - x * x, 1.0 - u.sum()

    def inside(self, x: Numbers) -> bool:
        if not (high(x)[self.D :] > 0).all():
            return False
        _, _, room, slack = self._terms(x)
        return bool((high(room) > 0).all() and high(slack) > 0)

    def gradient(self, x: Numbers) -> Numbers:
        x, u, room, slack = self._terms(x)
        slope = (room + x * x) / u * (2 / self.q)
        return joined([2.0 * x / room, 1.0 / slack - slope / room - (1 - 1 / self.q) / u])

    def hessian(self, x: Numbers) -> Numbers:
        x, u, room, slack = self._terms(x)
        a = 2 / self.q
        slope = (room + x * x) / u * a
        of_x = (2.0 + 4.0 * x * x / room) / room
        mixed = -2.0 * x * slope / (room * room)
        of_u = (slope * slope / room - slope / u * (a - 1)) / room + (1 - 1 / self.q) / (u * u)
        corner = diagonal(of_u) + 1.0 / (slack * slack)
        upper = joined([diagonal(of_x), diagonal(mixed)], 1)
        return joined([upper, joined([diagonal(mixed), corner], 1)])


@dataclass(frozen=True)
class SingularValues:
    """Largest singular value of X (d, e) below one; or, trace, their sum, with P and Q as heights."""

    d: int
    e: int
    trace: bool = False

    @property
    def parameter(self) -> float:
        return float(self.d + self.e + self.trace)

    @cached_property
    def places(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Row and column in Z of every number of a point."""
        d, e = self.d, self.e
        rows, columns = np.repeat(np.arange(d), e), d + np.tile(np.arange(e), d)
        if self.trace:
            (a, b), (c, f) = self._corner(d), self._corner(e)
            rows, columns = np.concatenate([rows, a, d + c]), np.concatenate([columns, b, d + f])
        return rows, columns

    def _corner(self, size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The places of the heights in P, or in Q."""
        return np.tril_indices(size)

    @cached_property
    def on_diagonal(self) -> Float:
        """1.0 for the numbers on the diagonal of Z."""
        return np.equal(*self.places).astype(np.float64)

    def heights(self, x: Float) -> Float:
        if not self.trace:
            return np.zeros(0)
        U, sigma, Vt = np.linalg.svd(x.reshape(self.d, self.e), full_matrices=False)
        slack = 0.9 * (1 - sigma.sum()) / (self.d + self.e)
        P, Q = (U * sigma) @ U.T, (Vt.T * sigma) @ Vt
        P, Q = P + 2 * slack * np.eye(self.d), Q + 2 * slack * np.eye(self.e)
        return np.concatenate([P[np.tril_indices(self.d)], Q[np.tril_indices(self.e)]])

    def inside(self, x: Numbers) -> bool:
        try:
            self._inverse(x)
        except np.linalg.LinAlgError:
            return False
        return not self.trace or bool(high(self._slack(x)) > 0)

    def _inverse(self, x: Numbers) -> Numbers:
        Z, (a, b) = like(x, np.eye(self.d + self.e)), self.places
        Z[a, b] = x
        Z[b, a] = x
        return solve_positive(Z, like(x, np.eye(self.d + self.e)))

    def _slack(self, x: Numbers) -> Numbers:
        """1 − ½ tr P − ½ tr Q."""
        return 1.0 - (x * self.on_diagonal).sum() * 0.5

    def gradient(self, x: Numbers) -> Numbers:
        a, b = self.places
        out = self._inverse(x)[a, b] * (self.on_diagonal - 2.0)
        return out + self.on_diagonal / self._slack(x) * 0.5 if self.trace else out

    def hessian(self, x: Numbers) -> Numbers:
        """⟨E_i, U E_j U⟩ for the inverse U of Z and the unit matrices E of its numbers."""
        U, (a, b) = self._inverse(x), self.places
        share = 1.0 - 0.5 * self.on_diagonal
        both = U[a[:, None], a] * U[b[:, None], b] + U[a[:, None], b] * U[b[:, None], a]
        out = both * (2.0 * np.outer(share, share))
        if not self.trace:
            return out
        slack = self._slack(x)
        return out + np.outer(self.on_diagonal, self.on_diagonal) / (slack * slack) * 0.25


def power(x: Numbers, exponent: float) -> Numbers:
    """x^exponent for x > 0."""
    if exponent == 2:
        return x * x
    return _exp(_log(x) * exponent) if isinstance(x, Doubled) else x**exponent


def _exp(x: Doubled) -> Doubled:
    """eˣ by the series of x/512 less a multiple of log 2, squared nine times."""
    count = np.round(x.hi / LOG_2[0])
    small = (x - Doubled(*LOG_2) * count) * 2.0**-9
    total = Doubled(0.0)
    for coefficient in SERIES:
        total = (total + coefficient) * small
    for _ in range(9):
        total = total * 2.0 + total * total  # (1 + t)² − 1
    total = total + 1.0
    return Doubled(np.ldexp(total.hi, count.astype(int)), np.ldexp(total.lo, count.astype(int)))


def _log(x: Doubled) -> Doubled:
    """One step of Newton's method from the rounded logarithm."""
    first = Doubled(np.log(x.hi))
    return first + (x * _exp(-first) - 1.0)
