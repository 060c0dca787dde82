"""The ridge objective of many probes on standardised tokens: value, gradient, and Gauss–Newton matrices.

All probes are evaluated in one read of the tokens, many tokens by `compiled_pass`, which computes the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, get_blas_funcs

from attsvm.numbers import Array, Float, Index, Values
from attsvm.numbers.threads import in_threads, single_thread
from attsvm.probe.data.backends import Backend, Host, backend_of, total
from attsvm.probe.data.store import TokenStore, raise_not_finite
from attsvm.probe.fitting.attention import Weights, attend, log_loss, token_coefficients
from attsvm.probe.fitting.tolerances import TOLERANCES


class Standard(NamedTuple):
    """mean (d,) and scale (d,): standardised tokens are (x − mean) / scale."""

    mean: Float
    scale: Float


def standardise(store: TokenStore, importance: Float) -> Standard:
    """Mean and standard deviation of every feature, each token weighted as its sequence (n,).

    Raises ValueError where a number is NaN or infinite.
    """
    backend = backend_of(store.rows)
    first = np.asarray(store.numpy(slice(0, 1)), np.float64)[0]
    if not np.isfinite(first).all():
        raise_not_finite(store, slice(0, 1))
    with backend.scope(), np.errstate(invalid="ignore", over="ignore"):
        spans = store.spans(backend.block // 8)
        origin = backend.operand(first)  # relative to the first token, a constant feature is exactly 0
        size = _sizes(backend, backend.centred(store.read(spans[0]), origin))
        weight, mean, squares = 0.0, np.zeros(store.width), np.zeros(store.width)
        for span in spans:
            w, m, s = _moments(backend, store, span, importance[span], origin, size)
            step = m - mean  # Chan et al. 1983: no difference of large squares
            squares = squares + s + step**2 * (weight * w / (weight + w))
            mean, weight = mean + step * (w / (weight + w)), weight + w
        # What blocks subtract is rounded as their tokens are; the weights for tokens must know that number.
        centre = np.asarray(backend.numpy(backend.operand(first + mean * size)), np.float64)
    spread = np.sqrt(squares / weight) * size
    scale = np.where(spread > 1e-12 * np.abs(first), spread, np.maximum(np.abs(first), size))
    return Standard(centre, scale)


def _sizes(backend: Backend, x: Array) -> Float:
    """Largest absolute value of every feature in a block (d,). Squares of unscaled numbers may overflow."""
    size = backend.numpy(backend.widened(backend.xp.amax(abs(x), 0)))
    return np.where((size > 0) & np.isfinite(size), size, 1.0)


def _moments(
    backend: Backend, store: TokenStore, span: slice, importance: Float, origin: Array, size: Float
) -> tuple[float, Float, Float]:
    """Weight, mean and weighted squares about the mean of (x − origin) / size over a block."""
    weights = np.repeat(importance, store.lengths[span])
    total = float(weights.sum())
    x = backend.centred(store.read(span), origin) * backend.operand(1 / size)
    w = backend.operand(weights / total)
    mean = w @ x
    squares = w @ (x - mean) ** 2
    moments = [backend.numpy(backend.widened(moment)) for moment in (mean, squares)]
    if not np.isfinite(moments).all():
        raise_not_finite(store, span)
    return total, moments[0], total * moments[1]


@dataclass(frozen=True, eq=False)
class Probes:
    """The K probes that are fitted together: each array (K,) has one entry per probe.

    concept: index of the targets; fold: index of the training weights; prompt_ridge, head_ridge.
    """

    concept: Index
    fold: Index
    prompt_ridge: Float
    head_ridge: Float

    def __len__(self) -> int:
        return len(self.concept)

    def take(self, index: Index | slice) -> Probes:
        return Probes(*(array[index] for array in vars(self).values()))

    @classmethod
    def joined(cls, groups: Sequence[Probes]) -> Probes:
        """The probes of several groups, one group after the other."""
        return cls(*map(np.concatenate, zip(*(vars(group).values() for group in groups), strict=True)))


class BlockSums(NamedTuple):
    """Sums over a block: gradients by the matrix (K·c, d) and intercept (K, k), losses and held_out (K,)."""

    matrix_gradient: Array
    loss: Array
    held_out: Array
    intercept_gradient: Array


class Evaluation(NamedTuple):
    """value (K,), gradient (K, D) on the backend, held_out (K,): log loss on held-out sequences.

    curvature(index): factors of Gauss–Newton matrices at the same points; at most curvature_limit of them
    fit in memory.
    """

    value: Float
    gradient: Array
    held_out: Float
    curvature: Callable[[Index], list[Array]] | None = None
    curvature_limit: int = 0


@dataclass(frozen=True, eq=False)
class Objective:
    """Weighted log loss plus two ridges, of K probes at once, each with one prompt.

        Σ_i ω_i ℓ(y_i, score_i) + prompt_ridge ‖p‖²/2 + head_ridge ‖v‖²/2   on standardised tokens

    targets (concepts, k, n): one-hot classes, or numbers in [0, 1] where k = 1.
    training, held_out (folds, n): weights ω; each row sums to one or to zero. Row 0 trains on everything.
    fold_share (folds,): share of the importance of all held-out sequences that each fold tests.
    tied: the prompt is the head (k = 1).
    """

    store: TokenStore
    standard: Standard
    targets: Float
    training: Float
    held_out: Float
    fold_share: Float
    tied: bool = False

    @classmethod
    def of(
        cls, store: TokenStore, targets: Float, importance: Float, splits: Values, tied: bool = False
    ) -> Objective:
        """Fold 0 trains on everything, fold f where splits[f − 1] is 1; it is tested where that is −1.

        splits (folds, n). The tokens are standardised here, over all sequences.
        """
        with_all = np.vstack([np.ones((1, len(store)), splits.dtype), splits])
        training, held_out = ((with_all == role) * importance for role in (1, -1))
        fold_share = held_out.sum(1)
        training /= training.sum(1, keepdims=True)
        held_out /= np.where(fold_share > 0, fold_share, 1.0)[:, None]
        standard, targets = standardise(store, importance), np.ascontiguousarray(targets, np.float64)
        fold_share /= max(fold_share.sum(), 1e-300)
        return cls(store, standard, targets, training, held_out, fold_share, tied)

    def weights_at(self, point: Float) -> Weights:
        """A point (D,) as weights on standardised tokens."""
        d, k = self.store.width, self.k
        matrix = point[: d * (1 + k)].reshape(1 + k, d).T
        return Weights(matrix[:, :1], matrix[:, None, 1:], point[d * (1 + k) :])

    def weights_for_tokens(self, point: Float) -> Weights:
        """A point (D,) as weights for tokens as they come: the standardisation is folded into the weights."""
        prompts, head, intercept, _ = self.weights_at(point)
        mean, scale = self.standard
        return Weights(prompts / scale[:, None], head / scale[:, None, None], intercept).about(-mean)

    def tie(self, backend: Backend, points: Array) -> Array:
        """Points or gradients (…, D) projected on those whose prompts are their heads; all if untied."""
        if not self.tied:
            return points
        m = self.counts[0]
        mean = (points[..., :m] + points[..., m : 2 * m]) / 2
        return backend.xp.concatenate([mean, mean, points[..., 2 * m :]], -1)

    @property
    def k(self) -> int:
        return int(self.targets.shape[1])

    @property
    def counts(self) -> list[int]:
        """How many numbers of a probe belong to its prompt, its heads and its intercepts."""
        d, k = self.store.width, self.k
        return [d, d * k, k]

    @property
    def size(self) -> int:
        """D, the numbers of one probe."""
        return sum(self.counts)


class ProbeBatch(NamedTuple):
    """K probes in one pass over the tokens, which computes (x − centre) matrix.

    centre (d,), matrix (d, K·c) with c = 1 + k, on tokens that are not standardised; intercept (K, k).
    """

    objective: Objective
    backend: Backend
    probes: Probes
    centre: Array
    matrix: Array
    intercept: Array

    @classmethod
    def at(cls, objective: Objective, backend: Backend, probes: Probes, points: Array) -> ProbeBatch:
        """The probes at points (K, D), an array of the backend."""
        standard, d = objective.standard, objective.store.width
        m = objective.size - objective.k
        matrix = backend.narrowed(points[:, :m].reshape(-1, d) / backend.put(standard.scale)).T
        return cls(objective, backend, probes, backend.operand(standard.mean), matrix, points[:, m:])


# ---------------------------------------------------------------------- values and gradients


def evaluate(objective: Objective, backend: Backend, points: Array, probes: Probes) -> Evaluation:
    """Value and gradient of K probes at points (K, D), an array of the backend."""
    store, k = objective.store, objective.k
    batch = ProbeBatch.at(objective, backend, probes, points)
    compiled = isinstance(backend, Host) and store.numbers > backend.block
    work = partial(compiled_block_sums if compiled else block_sums, batch)
    sums = total(backend.map_blocks(work, store.spans(backend.block)))
    shape = len(probes), 1 + k, store.width
    vectors = points[:, :-k].reshape(shape)
    ridges = np.stack([probes.prompt_ridge, probes.head_ridge], 1)[:, np.repeat([0, 1], [1, k])]
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
    output = attend(backend, segments, products, batch.intercept, 1)
    targets = backend.put(objective.targets[:, :, span][probes.concept])
    losses, gradient = log_loss(backend.xp, output.scores, targets)
    training = backend.put(objective.training[:, span][probes.fold])
    held_out = backend.put(objective.held_out[:, span][probes.fold])
    gradient = gradient * training[:, None]
    coefficients = token_coefficients(backend.xp, segments, output, gradient)
    by_matrix = backend.weighted_sums(coefficients.reshape(batch.matrix.shape[1], -1), x)
    return BlockSums(by_matrix, (losses * training).sum(-1), (losses * held_out).sum(-1), gradient.sum(-1))


def compiled_block_sums(batch: ProbeBatch, span: slice) -> BlockSums:
    """The sums over a span of sequences, as `block_sums` computes them, for many tokens on the host."""
    (d, width), (K, k) = batch.matrix.shape, batch.intercept.shape
    sums = BlockSums(np.zeros((width, d)), np.zeros(K), np.zeros(K), np.zeros((K, k)))
    _run_compiled(batch, span, (*sums, np.empty((0, width, d), batch.backend.dtype), np.empty((0, K, k))))
    by_probe = np.empty_like(sums.matrix_gradient)
    by_probe[_column_order(K, k)] = sums.matrix_gradient
    return sums._replace(matrix_gradient=by_probe)


def score_derivatives(batch: ProbeBatch, span: slice) -> list[Float]:
    """√ω √L J (b·k, D) of every probe, by matrix and intercept: J' ω L J is its Gauss–Newton matrix.

    ω: training weights; L: the curvature of the loss by the scores; J: the derivatives of the scores.
    """
    (d, width), (K, k) = batch.matrix.shape, batch.intercept.shape
    b = k * len(batch.objective.store.lengths[span])
    rows, by_intercept = np.empty((b, width, d), batch.backend.dtype), np.empty((b, K, k))
    _run_compiled(
        batch, span, (np.empty((0, d)), np.empty(0), np.empty(0), np.empty((0, k)), rows, by_intercept)
    )
    columns = np.argsort(_column_order(K, k)).reshape(K, -1)
    by_matrix = (rows[:, columns[q]].reshape(b, -1) for q in range(K))
    return [np.hstack([r, by_intercept[:, q]], dtype=rows.dtype) for q, r in enumerate(by_matrix)]


def _column_order(K: int, k: int) -> Index:
    """Index of every column of the pass, the prompts of all probes first, among the K·c of the probes."""
    return np.arange(K * (1 + k)).reshape(K, 1 + k).T.ravel()


def _run_compiled(batch: ProbeBatch, span: slice, sums: tuple[Array, ...]) -> None:
    """The pass, which adds to `sums`, in the order of `attending_pass`."""
    # Loaded here: numba takes long to import, and few tokens do not need it.
    from attsvm.numbers.compiled import BRAIN, HALF
    from attsvm.probe.fitting.compiled_pass import attending_pass

    objective, backend, probes = batch.objective, batch.backend, batch.probes
    assert isinstance(backend, Host)
    (d, width), (K, k) = batch.matrix.shape, batch.intercept.shape
    raw, starts = objective.store.plain(span)
    lengths = objective.store.lengths[span]
    longest, columns = int(lengths.max()), _column_order(K, k)
    r = max(backend.cached // d, longest)
    narrow: list[tuple[int, int]] = [(r, d), (r, width), (r, width), (width, d)]
    double: list[tuple[int, int]] = [(longest, K), (longest, K), (6 + k, K), (K, k), (K, k)]
    memory: list[Float] = [np.empty(shape, backend.dtype) for shape in narrow] + [np.empty(s) for s in double]
    attending_pass(
        raw,
        BRAIN if backend.brain else HALF,
        (starts, lengths, span.start),
        tuple(map(np.ascontiguousarray, (batch.centre, batch.matrix[:, columns], batch.intercept))),
        (objective.targets, objective.training, objective.held_out),
        (probes.concept, probes.fold),
        tuple(memory),
        sums,
    )


# ---------------------------------------------------------------------- curvature


def affordable_matrices(objective: Objective) -> int:
    """How many probes' matrices fit in memory; 0 where one costs more than the evaluations that it saves."""
    D, k, store = objective.size, objective.k, objective.store
    evaluation = 2 * (1 + k) * store.numbers
    affordable = D**2 * (k * len(store) + D) <= TOLERANCES.matrix_cost * evaluation
    return TOLERANCES.matrix_numbers // D**2 if affordable else 0


def gauss_newton(batch: ProbeBatch) -> list[Float]:
    """Cholesky factors of J' L J + ridges, one for each probe; on the host.

    J: derivatives of the scores; L: curvature of the loss by the scores. The curvature of the scores
    themselves is left out; L-BFGS learns it.
    """
    objective, probes = batch.objective, batch.probes
    matrices = _score_matrices(batch)
    scale = np.tile(objective.standard.scale, 1 + objective.k)
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
    K, D, dtype = len(batch.probes), batch.objective.size, batch.backend.dtype
    matrices: list[Float] = [np.zeros((D, D), dtype, order="F") for _ in range(K)]
    syrk = get_blas_funcs("syrk", dtype=dtype)
    step = max(1, TOLERANCES.row_numbers // (K * batch.objective.k * D))
    for block in batch.objective.store.spans(8 * batch.backend.block):
        for first in range(block.start, block.stop, step):
            with single_thread():
                rows = score_derivatives(batch, slice(first, min(first + step, block.stop)))

            def add(q: int, rows: list[Float] = rows) -> None:
                syrk(1.0, rows[q].T, beta=1.0, c=matrices[q], overwrite_c=True, lower=True)

            in_threads(add, range(K))
    return matrices
