"""The round ball and the bowl by their self-concordant barriers: a central path stays inside.

    round     ‖x‖₂ < 1      −log(1 − ‖x‖²)
    bowl      ½‖x‖² < t     −log(2 t − ‖x‖²)

A point is flat: the D entries x, and behind them the heights, unknowns of the barrier's own (t).
Reference: Nesterov and Nemirovskii 1994, "Interior-point polynomial algorithms in convex programming".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from attsvm.numbers import Float
from attsvm.numbers.doubled import Doubled, cholesky_in_place, solve_in_place, stacked

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
        return g[:, None] * g + diagonal(like(x, np.full(self.D, 2.0)) / self._room(x))


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
        return g[:, None] * g + diagonal(like(x, flat) / self._room(x))


def diagonal(values: Numbers) -> Numbers:
    """The matrix with these numbers on its diagonal."""
    out = like(values, np.zeros((len(values), len(values))))
    index = np.arange(len(values))
    out[index, index] = values
    return out


# ---------------------------------------------------------------------- float64 or doubled


def high(x: Numbers) -> Float:
    """The numbers rounded to float64."""
    return x.hi if isinstance(x, Doubled) else x


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
