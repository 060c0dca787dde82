"""The Gauss–Newton matrix of a probe: what a search knows of the curvature near the optimum, at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, get_blas_funcs

from attsvm.numbers import Float
from attsvm.numbers.threads import in_threads, single_thread
from attsvm.probe.fitting.compiled_pass import derivatives

ROOM, ROWS, WORTH = 1 << 25, 1 << 23, 50
"""Numbers of all matrices together, and of derivatives at a time (128 and 32 MB in float32); multiplications
for a matrix, as a multiple of those of an evaluation, up to which it pays."""


def affordable(o: Any) -> int:
    """Of how many probes the matrices fit; 0 where one costs more than the evaluations that it saves."""
    D, work = o.size, 2 * o.h * (1 + o.k) * o.store.numbers
    return ROOM // D**2 if D**2 * (o.k * len(o.store) + D) <= WORTH * work else 0


def gauss_newton(o: Any, where: Any, points: Float, probes: Any) -> list[Any]:
    """Cholesky factors of J' L J + ridges of an `Objective` at points (K, D), one for each.

    J: the derivatives of the scores; L: the curvature of the loss by the scores. What it leaves out is the
    curvature of the scores themselves, which the search then learns.
    """
    K, D, d, c, k = len(probes), o.size, o.store.width, o.h * (1 + o.k), o.k
    scale = np.concatenate([np.tile(o.standard.scale, c), np.ones(k)]).astype(where.dtype)
    columns = (points[:, : c * d].reshape(K * c, d) / o.standard.scale).T
    weights = where.factor(o.standard.mean), where.factor(columns), points[:, c * d :]
    matrices = [np.zeros((D, D), where.dtype, order="F") for _ in range(K)]  # their lower triangles
    syrk = get_blas_funcs("syrk", dtype=where.dtype)
    step = max(1, ROWS // (K * k * D))
    spans = [
        (part, first)
        for part in o.store.spans(8 * where.part)
        for first in range(part.start, part.stop, step)
    ]
    for part, first in spans:
        with single_thread():
            rows = derivatives(o, where, probes, slice(first, min(first + step, part.stop)), weights)

        def add(q: int, rows: list[Any] = rows) -> None:
            syrk(1.0, rows[q].T, beta=1.0, c=matrices[q], overwrite_c=True, lower=True)

        in_threads(add, range(K))

    def factor(q: int) -> Any:
        matrix, ridges = matrices[q], (probes.prompt_ridge[q], probes.head_ridge[q], 0.0)
        matrix /= scale[:, None] * scale
        diagonal = np.diagonal(matrix) + np.repeat(ridges, [d * o.h, d * o.h * k, k])
        diagonal += D * np.finfo(matrix.dtype).eps * diagonal.max()  # what rounding may have taken
        matrix[np.diag_indices(D)] = diagonal
        try:
            return cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)[0]
        except LinAlgError:
            return np.diag(np.sqrt(diagonal))

    return in_threads(factor, range(K))


def solve(factors: list[Any], vectors: Float) -> Float:
    """H⁻¹ v of every function that has a factor; the others (None) keep v; vectors (K, D)."""
    found = vectors.copy()
    with single_thread():
        for own, factor in zip(found, factors, strict=True):
            if factor is not None:
                trsv = get_blas_funcs("trsv", [factor])  # four times as fast as potrs with one vector
                half = trsv(factor, own.astype(factor.dtype), lower=True)
                own[:] = trsv(factor, half, lower=True, trans=1, overwrite_x=True)
    return found
