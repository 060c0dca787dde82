"""The objective of many probes in one read of the tokens: value, gradient, and Gauss–Newton matrices."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, get_blas_funcs

from attsvm.numbers import Array, Float, Index
from attsvm.numbers.threads import in_threads, single_thread
from attsvm.probe.data.backends import Backend, Host, total
from attsvm.probe.fitting.attention import attend, log_loss, token_coefficients
from attsvm.probe.fitting.objective import BlockSums, Evaluation, Objective, ProbeBatch, Probes

MATRIX_NUMBERS, ROW_NUMBERS, MATRIX_COST = 1 << 25, 1 << 23, 50
"""Numbers of all matrices together, and of derivatives at a time (128 and 32 MB in float32). A matrix may
cost this many times the multiplications of an evaluation."""


def evaluate(objective: Objective, backend: Backend, points: Array, probes: Probes) -> Evaluation:
    """Value and gradient of K probes at points (K, D), an array of the backend."""
    store, h, k = objective.store, objective.h, objective.k
    batch = ProbeBatch.at(objective, backend, probes, points)
    compiled = isinstance(backend, Host) and store.numbers > backend.block
    work = partial(block_sums, batch)
    if compiled:  # loaded here: numba takes long to import, and few tokens do not need it
        from attsvm.probe.fitting.compiled_pass import compiled_block_sums

        work = partial(compiled_block_sums, batch)
    sums = total(backend.map_blocks(work, store.spans(backend.block)))
    shape = len(probes), h * (1 + k), store.width
    vectors = points[:, :-k].reshape(shape)
    ridges = np.stack([probes.prompt_ridge, probes.head_ridge], 1)[:, np.repeat([0, 1], [h, h * k])]
    shrink = backend.put(ridges)[:, :, None] * vectors
    value = sums.loss + (shrink * vectors).sum((1, 2)) / 2
    gradient = sums.matrix_gradient.reshape(shape) / backend.put(objective.standard.scale) + shrink
    gradient = backend.xp.concatenate([gradient.reshape(len(probes), -1), sums.intercept_gradient], 1)
    gradient = objective.tie(backend, gradient)
    evaluation = Evaluation(backend.numpy(value), gradient, backend.numpy(sums.held_out))
    if not compiled or objective.tied:
        return evaluation

    def curvature(index: Index) -> list[Array]:
        return gauss_newton(ProbeBatch.at(objective, backend, probes.take(index), points[index]))

    return evaluation._replace(curvature=curvature, curvature_limit=affordable_matrices(objective))


def block_sums(batch: ProbeBatch, span: slice) -> BlockSums:
    """The sums over a span of sequences, on any backend; `compiled_block_sums` computes the same."""
    objective, backend, probes = batch.objective, batch.backend, batch.probes
    x, products = backend.products(objective.store.read(span), batch.centre, batch.matrix)
    segments = backend.segments(objective.store.lengths[span])
    output = attend(backend, segments, products, batch.intercept, objective.h)
    targets = backend.put(objective.targets[:, :, span][probes.concept])
    losses, gradient = log_loss(backend.xp, output.scores, targets)
    training = backend.put(objective.training[:, span][probes.fold])
    held_out = backend.put(objective.held_out[:, span][probes.fold])
    gradient = gradient * training[:, None]
    coefficients = token_coefficients(backend.xp, segments, output, gradient)
    by_matrix = backend.weighted_sums(coefficients.reshape(batch.matrix.shape[1], -1), x)
    return BlockSums(by_matrix, (losses * training).sum(-1), (losses * held_out).sum(-1), gradient.sum(-1))


# ---------------------------------------------------------------------- curvature


def affordable_matrices(objective: Objective) -> int:
    """How many probes' matrices fit in memory; 0 where one costs more than the evaluations that it saves."""
    D, k, store = objective.size, objective.k, objective.store
    evaluation = 2 * objective.h * (1 + k) * store.numbers
    affordable = D**2 * (k * len(store) + D) <= MATRIX_COST * evaluation
    return MATRIX_NUMBERS // D**2 if affordable else 0


def gauss_newton(batch: ProbeBatch) -> list[Float]:
    """Cholesky factors of J' L J + ridges, one for each probe; on the host.

    J: derivatives of the scores; L: curvature of the loss by the scores. The curvature of the scores
    themselves is left out; L-BFGS learns it.
    """
    objective, probes = batch.objective, batch.probes
    matrices = _score_matrices(batch)
    scale = np.tile(objective.standard.scale, objective.h * (1 + objective.k))
    scale = np.append(scale, np.ones(objective.k)).astype(matrices[0].dtype)

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


def _score_matrices(batch: ProbeBatch) -> list[Float]:
    """Lower triangles of J' L J on tokens that are not standardised, (D, D) for each probe."""
    from attsvm.probe.fitting.compiled_pass import score_derivatives

    K, D, dtype = len(batch.probes), batch.objective.size, batch.backend.dtype
    matrices: list[Float] = [np.zeros((D, D), dtype, order="F") for _ in range(K)]
    syrk, step = get_blas_funcs("syrk", dtype=dtype), max(1, ROW_NUMBERS // (K * batch.objective.k * D))
    for block in batch.objective.store.spans(8 * batch.backend.block):
        for first in range(block.start, block.stop, step):
            with single_thread():
                rows = score_derivatives(batch, slice(first, min(first + step, block.stop)))

            def add(q: int, rows: list[Float] = rows) -> None:
                syrk(1.0, rows[q].T, beta=1.0, c=matrices[q], overwrite_c=True, lower=True)

            in_threads(add, range(K))
    return matrices
