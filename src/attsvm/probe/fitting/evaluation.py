"""The objective of many probes in one read of the tokens: value, gradient, and Gauss–Newton matrices."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, get_blas_funcs

from attsvm.numbers import Array, Float, Index
from attsvm.numbers.threads import in_threads, single_thread
from attsvm.probe.data.backends import Backend, Host, total
from attsvm.probe.fitting.attention import attend, log_loss, token_coefficients
from attsvm.probe.fitting.objective import BlockSums, Evaluation, Objective, Probes, Projection

MATRIX_NUMBERS, ROW_NUMBERS, MATRIX_COST = 1 << 25, 1 << 23, 50
"""Numbers of all matrices together, and of derivatives at a time (128 and 32 MB in float32). A matrix may
cost this many times the multiplications of an evaluation."""


def evaluate(objective: Objective, backend: Backend, points: Array, probes: Probes) -> Evaluation:
    """Value and gradient of K probes at points (K, D), an array of the backend."""
    store, standard, K, d = objective.store, objective.standard, len(probes), objective.store.width
    h, k = objective.h, objective.k
    c, scale = h * (1 + k), backend.put(standard.scale)
    vectors, intercept = points[:, : c * d].reshape(K, c, d), points[:, c * d :]
    matrix = backend.narrowed(vectors / scale).reshape(K * c, d).T
    projection = Projection(backend.operand(standard.mean), matrix, intercept)

    compiled = backend if isinstance(backend, Host) and store.numbers > backend.block else None
    if compiled is None:
        block = partial(block_sums, objective, backend, probes, projection)
    else:  # loaded here: numba takes long to import, and few tokens do not need it
        from attsvm.probe.fitting.compiled_pass import compiled_block_sums

        block = partial(compiled_block_sums, objective, compiled, probes, projection)
    sums = total(backend.map_blocks(block, store.spans(backend.block)))
    ridges = np.stack([probes.prompt_ridge, probes.head_ridge], 1)[:, np.repeat([0, 1], [h, h * k])]
    shrink = backend.put(ridges)[:, :, None] * vectors
    value = sums.loss + (shrink * vectors).sum((1, 2)) / 2
    gradient = (sums.matrix_gradient.reshape(K, c, d) / scale + shrink).reshape(K, c * d)
    gradient = objective.tie(backend, backend.xp.concatenate([gradient, sums.intercept_gradient], 1))
    evaluation = Evaluation(backend.numpy(value), gradient, backend.numpy(sums.held_out))
    if compiled is None or objective.tied:
        return evaluation

    def curvature(index: Index) -> list[Array]:
        return gauss_newton(objective, compiled, points[index], probes.take(index))

    return evaluation._replace(curvature=curvature, curvature_limit=affordable_matrices(objective))


def block_sums(
    objective: Objective, backend: Backend, probes: Probes, projection: Projection, span: slice
) -> BlockSums:
    """The sums over a span of sequences, on any backend; `compiled_block_sums` computes the same."""
    x, products = backend.products(objective.store.read(span), projection.centre, projection.matrix)
    segments = backend.segments(objective.store.lengths[span])
    output = attend(backend, segments, products, projection.intercept, objective.h)
    targets = backend.put(objective.targets[:, :, span][probes.concept])
    losses, gradient = log_loss(backend.xp, output.scores, targets)
    weights = objective.training, objective.held_out
    training, held_out = (backend.put(of_folds[:, span][probes.fold]) for of_folds in weights)
    gradient = gradient * training[:, None]
    coefficients = token_coefficients(backend.xp, segments, output, gradient)
    by_matrix = backend.weighted_sums(coefficients.reshape(projection.matrix.shape[1], -1), x)
    return BlockSums(by_matrix, (losses * training).sum(-1), (losses * held_out).sum(-1), gradient.sum(-1))


# ---------------------------------------------------------------------- curvature


def affordable_matrices(objective: Objective) -> int:
    """How many probes' matrices fit in memory; 0 where one costs more than the evaluations that it saves."""
    D, k, store = objective.size, objective.k, objective.store
    evaluation = 2 * objective.h * (1 + k) * store.numbers
    affordable = D**2 * (k * len(store) + D) <= MATRIX_COST * evaluation
    return MATRIX_NUMBERS // D**2 if affordable else 0


def gauss_newton(objective: Objective, backend: Host, points: Float, probes: Probes) -> list[Float]:
    """Cholesky factors of J' L J + ridges of an objective at points (K, D), one for each.

    J: derivatives of the scores; L: curvature of the loss by the scores. The curvature of the scores
    themselves is left out; L-BFGS learns it.
    """
    matrices, scale = _score_matrices(objective, backend, points, probes)

    def factor(q: int) -> Float:
        matrix, ridges = matrices[q], (probes.prompt_ridge[q], probes.head_ridge[q], 0.0)
        matrix /= scale[:, None] * scale
        diagonal = np.diagonal(matrix) + np.repeat(ridges, objective.counts)
        diagonal += len(matrix) * np.finfo(matrix.dtype).eps * diagonal.max()  # bounds the rounding error
        matrix[np.diag_indices(len(matrix))] = diagonal
        try:
            factored: Float = cho_factor(matrix, lower=True, overwrite_a=True, check_finite=False)[0]
            return factored
        except LinAlgError:
            return np.diag(np.sqrt(diagonal))

    return in_threads(factor, range(len(probes)))


def _score_matrices(
    objective: Objective, backend: Host, points: Float, probes: Probes
) -> tuple[list[Float], Float]:
    """Lower triangles of J' L J on unscaled tokens, (D, D) for each probe; the units of the entries (D,)."""
    from attsvm.probe.fitting.compiled_pass import score_derivatives

    store, mean, spread = objective.store, *objective.standard
    K, D, d, c, k = len(probes), objective.size, store.width, objective.h * (1 + objective.k), objective.k
    matrix = backend.operand((points[:, : c * d].reshape(K * c, d) / spread).T)
    projection = Projection(backend.operand(mean), matrix, points[:, c * d :])
    matrices: list[Float] = [np.zeros((D, D), backend.dtype, order="F") for _ in range(K)]
    syrk, step = get_blas_funcs("syrk", dtype=backend.dtype), max(1, ROW_NUMBERS // (K * k * D))
    for block in store.spans(8 * backend.block):
        for first in range(block.start, block.stop, step):
            span = slice(first, min(first + step, block.stop))
            with single_thread():
                rows = score_derivatives(objective, backend, probes, projection, span)

            def add(q: int, rows: list[Float] = rows) -> None:
                syrk(1.0, rows[q].T, beta=1.0, c=matrices[q], overwrite_c=True, lower=True)

            in_threads(add, range(K))
    return matrices, np.concatenate([np.tile(spread, c), np.ones(k)]).astype(backend.dtype)
