"""Unit balls by their self-concordant barriers: what a central path must know to stay inside.

    box       ‖x‖_∞ < 1     −Σ log(1 − x_i²)
    round     ‖x‖₂ < 1      −log(1 − ‖x‖²)
    power     ‖x‖_q < 1     −Σ log(u_i^(2/q) − x_i²) − Σ (1 − 1/q) log u_i − log(1 − Σ u_i),   u_i > |x_i|^q
    operator  ‖X‖_op < 1    −log det Z,   Z = [[1, X], [Xᵀ, 1]]
    trace     ‖X‖_* < 1     −log det Z − log(1 − ½ tr P − ½ tr Q),   Z = [[P, X], [Xᵀ, Q]]
    dual max  γ₂*(X) < 1    the same with P and Q diagonal

A point is flat: the D entries x, and behind them the heights, unknowns of the barrier's own (u, or P and Q).
Reference: Nesterov and Nemirovskii 1994, "Interior-point polynomial algorithms in convex programming";
Chares 2009, "Cones and interior-point algorithms for structured convex optimization" (the power cone).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dpotrs

from attsvm.norms import Norm, capabilities_of
from attsvm.numbers import Float
from attsvm.numbers.doubled import Doubled, cholesky_in_place, solve_in_place, stacked

LOG_2 = (0.6931471805599453, 2.3190468138462996e-17)
"""log 2 as the sum of two numbers."""

SERIES = [Doubled(1.0) / float(math.factorial(k)) for k in range(9, 0, -1)]
"""1/9! … 1/1!."""

Numbers = Any
"""A NumPy array of float64, or a `Doubled`."""


class Ball(Protocol):
    """parameter: ν, the barrier's part of the gap ν μ; heights(x): some that go with an x of norm below ½."""

    @property
    def parameter(self) -> float: ...
    def heights(self, x: Float) -> Float: ...
    def inside(self, x: Numbers) -> bool: ...
    def gradient(self, x: Numbers) -> Numbers: ...
    def hessian(self, x: Numbers) -> Numbers: ...


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
        return _diagonal(2.0 * over * (1.0 + 2.0 * x * x * over))


@dataclass(frozen=True)
class Round:
    """‖x‖₂ < 1."""

    D: int
    parameter: float = 2.0

    def heights(self, x: Float) -> Float:
        return np.zeros(0)

    def inside(self, x: Numbers) -> bool:
        return bool(high(self._room(x)) > 0)

    def _room(self, x: Numbers) -> Numbers:
        return 1.0 - (x * x).sum()

    def gradient(self, x: Numbers) -> Numbers:
        return 2.0 * x / self._room(x)

    def hessian(self, x: Numbers) -> Numbers:
        g = self.gradient(x)
        return g[:, None] * g + _diagonal(like(x, np.full(self.D, 2.0)) / self._room(x))


@dataclass(frozen=True)
class Bowl:
    """½‖x‖² < t, the height: not a ball, but what ½‖W‖² needs in its place.  −log(2 t − ‖x‖²)"""

    D: int
    first: float
    parameter: float = 2.0

    def heights(self, x: Float) -> Float:
        """Where the path has it at the first μ."""
        return np.array([0.5 * (x @ x) + self.first])

    def inside(self, x: Numbers) -> bool:
        return bool(high(self._room(x)) > 0)

    def _room(self, x: Numbers) -> Numbers:
        return 2.0 * x[self.D] - (x[: self.D] * x[: self.D]).sum()

    def gradient(self, x: Numbers) -> Numbers:
        return joined([2.0 * x[: self.D], like(x, np.full(1, -2.0))]) / self._room(x)

    def hessian(self, x: Numbers) -> Numbers:
        g = self.gradient(x)
        flat = np.append(np.full(self.D, 2.0), 0.0)
        return g[:, None] * g + _diagonal(like(x, flat) / self._room(x))


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
        corner = _diagonal(of_u) + 1.0 / (slack * slack)
        upper = joined([_diagonal(of_x), _diagonal(mixed)], 1)
        return joined([upper, joined([_diagonal(mixed), corner], 1)])


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


def _diagonal(values: Numbers) -> Numbers:
    out = like(values, np.zeros((len(values), len(values))))
    index = np.arange(len(values))
    out[index, index] = values
    return out


# ---------------------------------------------------------------------- float64 or doubled


def high(x: Numbers) -> Float:
    """The numbers rounded to float64."""
    return x.hi if isinstance(x, Doubled) else x


def power(x: Numbers, exponent: float) -> Numbers:
    """x^exponent for x > 0."""
    if exponent == 2:
        return x * x
    return _exp(_log(x) * exponent) if isinstance(x, Doubled) else x**exponent


def joined(arrays: list[Numbers], axis: int = 0) -> Numbers:
    """The arrays joined along an axis."""
    return stacked(arrays, axis) if isinstance(arrays[0], Doubled) else np.concatenate(arrays, axis)


def like(x: Numbers, array: Float) -> Numbers:
    """An array as the same kind of numbers as x."""
    return Doubled(array) if isinstance(x, Doubled) else np.array(array, np.float64)


def solve_positive(matrix: Numbers, right: Numbers) -> Numbers:
    """A⁻¹ B for a positive definite A (N, N), by its Cholesky factor; B (N,) or (N, k). Else LinAlgError."""
    if not isinstance(matrix, Doubled):
        factor, info = dpotrf(matrix, lower=1)
        if info:
            raise np.linalg.LinAlgError("the matrix is not positive definite")
        return dpotrs(factor, right, lower=1)[0]
    factor, out = matrix.copy(), (right if right.ndim == 2 else right[:, None]).copy()
    if not cholesky_in_place(factor.hi, factor.lo):
        raise np.linalg.LinAlgError("the matrix is not positive definite")
    solve_in_place(factor.hi, factor.lo, out.hi, out.lo)
    return out if right.ndim == 2 else out[:, 0]


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
