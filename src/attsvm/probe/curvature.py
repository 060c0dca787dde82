"""The Gauss–Newton matrix of a probe: what a search knows of the curvature near the optimum, at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.sparse import csr_array

from attsvm.tokens import Float

ROOM, WORTH = 1 << 23, 400
"""Numbers of all matrices together (64 MB); multiplications for them per number of the tokens."""


class Curvature:
    """Cholesky factors of K matrices (D, D)."""

    def __init__(self, factors: list[Any]) -> None:
        self.factors = factors

    def solve(self, vectors: Float) -> Float:
        """H⁻¹ v of every function (K, D)."""
        return np.stack([cho_solve(own, v) for own, v in zip(self.factors, vectors, strict=True)])

    def take(self, which: NDArray[np.intp]) -> Curvature:
        return Curvature([self.factors[i] for i in which])


def worthwhile(o: Any, K: int) -> bool:
    """Whether matrices of K probes fit, and cost no more than some evaluations."""
    D = o.size
    return bool(K * D**2 <= ROOM and K * D**2 * (o.k * len(o.store) + D) <= WORTH * o.store.numbers)


def gauss_newton(o: Any, where: Any, points: Float, probes: Any) -> Curvature:
    """J' L J + ridges of an `Objective` at points (K, D).

    J: the derivatives of the scores; L: the curvature of the loss by the scores. What it leaves out is the
    curvature of the scores themselves, which the search then learns.
    """
    D, d, c = o.size, o.store.width, o.h * (1 + o.k)
    matrices = np.zeros((len(probes), D, D))
    scale = np.concatenate([np.tile(o.standard.scale, c), np.ones(o.k)])
    columns = (points[:, : c * d].reshape(-1, c, d) / o.standard.scale).reshape(-1, d).T
    centre, across = where.factor(o.standard.mean), where.factor(columns)
    for span in o.store.spans(where.part):
        x, products = where.forward(o.store.read(span), centre, across)
        for q, own in enumerate(np.split(products, len(probes), axis=1)):
            rows = _derivatives(o, where, span, x, own, points[q, c * d :])
            rows *= np.sqrt(np.repeat(o.training[probes.fold[q], span], o.k))[:, None]
            matrices[q] += rows.T @ rows
    for matrix, prompt, head in zip(matrices, probes.prompt_ridge, probes.head_ridge, strict=True):
        matrix /= scale[:, None] * scale
        ridges = np.repeat([prompt, head, 0.0], [d * o.h, d * o.h * o.k, o.k])
        matrix[np.diag_indices(D)] += ridges + 1e-10
    return Curvature([cho_factor(matrix, lower=True, overwrite_a=True) for matrix in matrices])


def _derivatives(o: Any, where: Any, span: slice, x: Any, products: Any, intercept: Float) -> Any:
    """√L J of a block, (b·k, D), of one probe whose products are (m, c)."""
    segments, h, k, d = where.segments(o.store.lengths[span]), o.h, o.k, o.store.width
    seen = o.reading(where, segments, products, intercept[None])
    attention, token_scores = seen.attention[0], seen.token_scores[0]
    root = _root(seen.scores[0])
    b, ends = len(segments.lengths), np.append(segments.starts, len(x))
    rows = np.zeros((b, k, o.size), x.dtype)

    def summed(weights: Float) -> Any:
        return csr_array((where.narrowed(weights), np.arange(len(x)), ends), (b, len(x))) @ x

    for head in range(h):
        pooled = summed(attention[head])
        for j in range(k):
            a, g = attention[head], token_scores[head, j]
            turned = summed(a * (g - segments.spread(segments.total(a * g))))
            place = slice(d * (h + head * k + j), d * (h + head * k + j + 1))
            for i in range(k):
                rows[:, i, head * d : (head + 1) * d] += root[i, j][:, None].astype(x.dtype) * turned
                rows[:, i, place] = root[i, j][:, None].astype(x.dtype) * pooled
    rows[:, :, -k:] = root.transpose(2, 0, 1)
    return rows.reshape(b * k, -1)


def _root(scores: Float) -> Float:
    """R (k, k, b) with R'R the curvature of the log loss by the scores (k, b)."""
    if len(scores) == 1:
        small = np.exp(-abs(scores))
        return (np.sqrt(small) / (1 + small))[None]
    chance = np.exp(scores - scores.max(0))
    chance /= chance.sum(0)
    return np.sqrt(chance)[:, None] * (np.eye(len(scores))[:, :, None] - chance)
