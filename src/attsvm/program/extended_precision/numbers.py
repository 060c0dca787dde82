"""What the central path needs of its numbers, float64 or doubled: the same code computes with both."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from attsvm.numbers import Float
from attsvm.numbers.doubled import Doubled, cholesky_in_place, solve_in_place, stacked

Numbers = Any
"""A NumPy array of float64, or a `Doubled`."""


def high(x: Numbers) -> Float:
    """The numbers rounded to float64."""
    return x.hi if isinstance(x, Doubled) else x


def root(x: Numbers) -> Numbers:
    return x.sqrt() if isinstance(x, Doubled) else np.sqrt(x)


def power(x: Numbers, exponent: float) -> Numbers:
    """x^exponent for x > 0."""
    if exponent == 2:
        return x * x
    return _exp(_log(x) * exponent) if isinstance(x, Doubled) else x**exponent


def joined(parts: list[Numbers], axis: int = 0) -> Numbers:
    """The parts one after the other along an axis."""
    return stacked(parts, axis) if isinstance(parts[0], Doubled) else np.concatenate(parts, axis)


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


LOG_2 = (0.6931471805599453, 2.3190468138462996e-17)
SERIES = [Doubled(1.0) / float(math.factorial(k)) for k in range(9, 0, -1)]
"""1/9! … 1/1!."""


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
