"""Linear systems of the engines: Cholesky factors of nearly singular matrices, and conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from attsvm.numbers import Float

RIDGES = (0.0, 1e-15, 1e-13, 1e-11, 1e-9, 1e-7)
"""Parts of the diagonal that are added to it in turn: dependent rows make a matrix singular."""


def with_ridge(factored: Callable[[float], Any], ridges: Sequence[float] = RIDGES) -> Any:
    """What is found with the first ridge for which something is; LinAlgError where nothing is."""
    for ridge in ridges:
        found = factored(ridge)
        if found is not None:
            return found
    raise np.linalg.LinAlgError("the matrix is not positive definite")


class Cholesky:
    """Factor of build() + diag(added), of which build gives the lower triangle, best in Fortran order.

    A ridge, each entry relative to itself because they span many orders, is raised until the factor
    exists; the caller's refinement undoes it. A matrix is built again rather than kept: it is large.
    Raises LinAlgError where there is no factor.
    """

    def __init__(
        self, build: Callable[[], Float], added: Float | float | None = None, ridges: Sequence[float] = RIDGES
    ) -> None:
        def factored(ridge: float) -> Float | None:
            # LAPACK works in place on Fortran order, and there on the lower triangle up to 1.7 times faster.
            matrix = build()
            self.lower = int(matrix.flags.f_contiguous)
            matrix = matrix if self.lower else matrix.T
            if added is not None or ridge:
                diagonal = np.einsum("ii->i", matrix)
                diagonal += 0.0 if added is None else added
                diagonal *= 1 + ridge
            factor, failed = dpotrf(matrix, lower=self.lower, clean=0, overwrite_a=1)
            return None if failed else factor

        self.factor = with_ridge(factored, ridges)

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
    """x with |right − times(x)| ≤ goal, from the x given, and whether it was reached in so many steps."""
    residual = right - times(x) if x.any() else right
    direction, previous = np.zeros_like(right), 1.0
    for _ in range(steps):
        if np.linalg.norm(residual) <= goal:
            return x, True
        better = precondition(residual)
        power = float(np.vdot(residual, better))
        direction = better + (power / previous) * direction
        image = times(direction)
        step = power / float(np.vdot(direction, image))
        x, residual, previous = x + step * direction, residual - step * image, power
    return x, bool(np.linalg.norm(residual) <= goal)
