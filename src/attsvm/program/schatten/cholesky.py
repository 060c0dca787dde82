"""Cholesky factors of small matrices in plain loops: there a call to LAPACK costs more than its work."""

from __future__ import annotations

import numpy as np

from attsvm.numbers.compiled import compiled


@compiled
def factor(matrix, lower):  # type: ignore[no-untyped-def]
    """The lower factor of a matrix given by its lower triangle, maybe in its place; whether there is one."""
    for i in range(len(matrix)):
        for j in range(i + 1):
            total = matrix[i, j]
            for l in range(j):
                total -= lower[i, l] * lower[j, l]
            if j < i:
                lower[i, j] = total / lower[j, j]
            elif total > 0.0:
                lower[i, i] = np.sqrt(total)
            else:
                return False
    return True


@compiled
def substitute(lower, x):  # type: ignore[no-untyped-def]
    """x := (L Lᵀ)⁻¹ x."""
    for i in range(len(x)):
        total = x[i]
        for l in range(i):
            total -= lower[i, l] * x[l]
        x[i] = total / lower[i, i]
    for i in range(len(x) - 1, -1, -1):
        x[i] /= lower[i, i]
        for l in range(i):
            x[l] -= lower[i, l] * x[i]
