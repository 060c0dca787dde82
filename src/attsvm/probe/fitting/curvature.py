"""The Gauss–Newton matrix of a probe: what a search knows of the curvature near the optimum, at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, get_blas_funcs

from attsvm.numbers import Float
from attsvm.numbers.threads import in_threads, single_thread
from attsvm.probe.data.arithmetic import Host
from attsvm.probe.fitting.compiled_pass import derivatives
from attsvm.probe.fitting.objective import Columns, Objective, Probes

ROOM, ROWS, WORTH = 1 << 25, 1 << 23, 50
"""Numbers of all matrices together, and of derivatives at a time (128 and 32 MB in float32); multiplications
for a matrix, as a multiple of those of an evaluation, up to which it pays."""


def affordable(objective: Objective) -> int:
    """Of how many probes the matrices fit; 0 where one costs more than the evaluations that it saves."""
    D, k, store = objective.size, objective.k, objective.store
    work = 2 * objective.h * (1 + k) * store.numbers
    return ROOM // D**2 if D**2 * (k * len(store) + D) <= WORTH * work else 0


def gauss_newton(objective: Objective, where: Host, points: Float, probes: Probes) -> list[Float]:
    """Cholesky factors of J' L J + ridges of an objective at points (K, D), one for each.

    J: the derivatives of the scores; L: the curvature of the loss by the scores. What it leaves out is the
    curvature of the scores themselves, which the search then learns.
    """
    matrices, scale = _squares(objective, where, points, probes)

    def factor(q: int) -> Float:
        matrix, ridges = matrices[q], (probes.prompt_ridge[q], probes.head_ridge[q], 0.0)
        matrix /= scale[:, None] * scale
        diagonal = np.diagonal(matrix) + np.repeat(ridges, objective.counts)
        diagonal += len(matrix) * np.finfo(matrix.dtype).eps * diagonal.max()  # what rounding may have taken
        matrix[np.diag_indices(len(matrix))] = diagonal
        try:
            factored: Float = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)[0]
            return factored
        except LinAlgError:
            return np.diag(np.sqrt(diagonal))

    return in_threads(factor, range(len(probes)))


def _squares(objective: Objective, where: Host, points: Float, probes: Probes) -> tuple[list[Float], Float]:
    """The lower triangles of J' L J on tokens as given, one (D, D) for each probe; their units (D,)."""
    store, mean, spread = objective.store, *objective.standard
    K, D, d, c, k = len(probes), objective.size, store.width, objective.h * (1 + objective.k), objective.k
    across = where.factor((points[:, : c * d].reshape(K * c, d) / spread).T)
    columns = Columns(where.factor(mean), across, points[:, c * d :])
    matrices: list[Float] = [np.zeros((D, D), where.dtype, order="F") for _ in range(K)]
    syrk, step = get_blas_funcs("syrk", dtype=where.dtype), max(1, ROWS // (K * k * D))
    for part in store.spans(8 * where.part):
        for first in range(part.start, part.stop, step):
            span = slice(first, min(first + step, part.stop))
            with single_thread():
                rows = derivatives(objective, where, probes, columns, span)

            def add(q: int, rows: list[Float] = rows) -> None:
                syrk(1.0, rows[q].T, beta=1.0, c=matrices[q], overwrite_c=True, lower=True)

            in_threads(add, range(K))
    return matrices, np.concatenate([np.tile(spread, c), np.ones(k)]).astype(where.dtype)


def newton_steps(factors: Sequence[Float | None], vectors: Float) -> Float:
    """H⁻¹ v of every function that has a factor; the others (None) keep v; vectors (K, D)."""
    found = vectors.copy()
    with single_thread():
        for own, factor in zip(found, factors, strict=True):
            if factor is not None:
                trsv = get_blas_funcs("trsv", [factor])  # four times as fast as potrs with one vector
                half = trsv(factor, own.astype(factor.dtype), lower=True)
                own[:] = trsv(factor, half, lower=True, trans=1, overwrite_x=True)
    return found
