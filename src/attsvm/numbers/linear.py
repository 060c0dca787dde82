"""Linear systems: Cholesky factors of nearly singular matrices, and conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from attsvm.numbers import Float

RIDGES = (0.0, 1e-15, 1e-13, 1e-11, 1e-9, 1e-7)
"""Shares of the diagonal that are added to it, in this order, until the matrix has a Cholesky factor."""


def with_ridge(factorise: Callable[[float], Any], ridges: Sequence[float] = RIDGES) -> Any:
    """The factor for the first ridge for which there is one. Raises LinAlgError if there is none."""
    for ridge in ridges:
        factor = factorise(ridge)
        if factor is not None:
            return factor
    raise np.linalg.LinAlgError("the matrix is not positive definite")


class Cholesky:
    """Factor of build() + diag(added); build returns the lower triangle, fastest in Fortran order.

    Dependent rows make the matrix singular. Therefore a ridge, relative to each entry of the diagonal, is
    raised until the factor exists; the caller's refinement corrects for it. The matrix is large, and is built
    again for each ridge rather than copied. Raises LinAlgError if there is no factor.
    """

    def __init__(
        self, build: Callable[[], Float], added: Float | float | None = None, ridges: Sequence[float] = RIDGES
    ) -> None:
        def factorise(ridge: float) -> Float | None:
            # LAPACK works in place on Fortran order; on its lower triangle it is up to 1.7 times faster.
            matrix = build()
            self.lower = int(matrix.flags.f_contiguous)
            matrix = matrix if self.lower else matrix.T
            if added is not None or ridge:
                diagonal = np.einsum("ii->i", matrix)
                diagonal += 0.0 if added is None else added
                diagonal *= 1 + ridge
            factor, failed = dpotrf(matrix, lower=self.lower, clean=0, overwrite_a=1)
            return None if failed else factor

        self.factor = with_ridge(factorise, ridges)

    def solve(self, right: Float) -> Float:
        return np.asarray(dpotrs(self.factor, right, lower=self.lower)[0])


def conjugate_gradients(
    times: Callable[[Float], Float],
    precondition: Callable[[Float], Float],
    right: Float,
    x: Float,
    goal: float,
    steps: int,
) -> tuple[Float, bool]:
    """x with |right − times(x)| ≤ goal, and whether `steps` steps from the initial x reach it."""
    residual = right - times(x) if x.any() else right
    direction, previous = np.zeros_like(right), 1.0
    for _ in range(steps):
        if np.linalg.norm(residual) <= goal:
            return x, True
        preconditioned = precondition(residual)
        power = float(np.vdot(residual, preconditioned))
        direction = preconditioned + (power / previous) * direction
        image = times(direction)
        step = power / float(np.vdot(direction, image))
        x, residual, previous = x + step * direction, residual - step * image, power
    return x, bool(np.linalg.norm(residual) <= goal)
