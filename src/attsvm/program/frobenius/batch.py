"""Many small matrix problems at once: a compiled loop over all runs, and their verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.frobenius.gram import Found, Problems, memory, pivot
from attsvm.program.frobenius.unit_rows import RESIDUAL, TINY
from attsvm.tokens import Bool, Float

LARGEST = 256
"""Rows up to which loops on the Gram matrix beat calls to LAPACK."""

GAP = 1e-11
"""Relative gap up to which an answer of the Gram matrix is taken."""


def suits(rows: Constraints) -> bool:
    """Whether the problems are small enough for loops on their Gram matrices."""
    return rows.n * (rows.T - 1) <= LARGEST


def solve(rows: Constraints) -> tuple[Answer, Bool]:
    """Answers of all runs, and which of them are final; the others need a slower, exact method.

    Block pivoting, then the dual active set where that was not enough; both are checked.
    """
    queries = _queries(rows)
    parts = (rows.anchor, rows.active, rows.tied, rows.required)
    problems = Problems(_read_only(rows.keys), *queries, *map(_read_only, parts))
    runs = len(rows.keys)
    W, measure = np.zeros((runs, rows.d, rows.e)), np.zeros((runs, 3))
    multipliers = np.zeros(rows.active.shape)
    found = Found(W, multipliers.reshape(runs, -1), measure)
    pivot(problems, found, memory(rows.n * (rows.T - 1), rows.d))
    size = _sizes(W)
    final, separable = _are_optimal(measure, size), np.ones(runs, bool)
    if final.all():
        W /= measure[:, 1, None, None]
        multipliers /= np.where(size > 0, size, 1.0)[:, None, None]
        return Answer(W, multipliers, separable, scaled=True, gap=GAP), final
    left = np.flatnonzero(~final)
    W[left], multipliers[left], final[left], separable[left] = _exactly(rows.part(left), queries[2][left])
    return Answer(W, multipliers, separable), final


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """One type for compiled code, whether or not the caller may write to the array."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _queries(rows: Constraints) -> tuple[Float, Float, Float]:
    """The queries at length one (r, n, e), their lengths (r, n), and their Gram matrices (r, n, n)."""
    size = np.sqrt(np.einsum("rne,rne->rn", rows.queries, rows.queries))
    unit = rows.queries / np.where(size > 0, size, 1.0)[..., None]
    return unit, size, np.matmul(unit, unit.swapaxes(1, 2))


def _sizes(W: Float) -> Float:
    """Frobenius norms: (r, d, e) → (r,)."""
    return np.asarray(np.sqrt(np.einsum("rde,rde->r", W, W)))


def _are_optimal(measure: Float, size: Float) -> Bool:
    """Whether the gap between b·λ/|W| and |W|/(least margin) is at most GAP.

    measure (r, 3): see `gram.Found`; size (r,): |W|.
    """
    lower, least, short = measure.T
    with np.errstate(all="ignore"):  # no row asks for a margin: the gap is NaN, λ and W are zero
        closed = (least > 0) & (1.0 - lower / size * least / size <= GAP)
    return (closed | ((least == np.inf) & (lower == 0))) & (short <= GAP * size)


def _exactly(rows: Constraints, like: Float) -> tuple[Float, Float, Bool, Bool]:
    """W, λ, which of the runs are decided and which have a W, by the dual active set."""
    from attsvm.program.frobenius import gram_dual as dual

    gram, bound, free, length = _gram(rows, like)
    lam: Float = np.empty(bound.shape)
    status = np.empty(len(bound), np.int64)
    problem = dual.Quadratic(gram, bound, free, np.empty_like(free))
    dual.dual_active_set(problem, lam, status, dual.space(lam.shape[1]))
    lam[status == dual.UNRESOLVED] = 0.0
    # A zero row that asks for a margin is its own contradiction; of one that is only short the Gram
    # matrix knows nothing.
    lost = (rows.bound.reshape(bound.shape) > 0) & (bound == 0)
    real = rows.all_differences.any(-1) & np.asarray(rows.queries.any(-1))[..., None]
    hopeless = lost & ~real.reshape(bound.shape)
    lam[(lost & ~hopeless).any(1)], status[(lost & ~hopeless).any(1)] = 0.0, dual.UNRESOLVED
    alone = hopeless.any(1)
    lam[alone] = np.arange(lam.shape[1]) == hopeless[alone].argmax(1)[:, None]
    status[alone] = dual.INFEASIBLE
    multipliers = (lam / length).reshape(rows.active.shape)
    W = rows.combine(multipliers)
    weight = np.where((bound > 0) | hopeless, lam, 0.0).sum(1)
    ray = (status == dual.INFEASIBLE) & (_sizes(W) <= RESIDUAL * weight)
    margins = np.matmul(gram, lam[..., None])[..., 0]
    least = np.divide(margins, bound, out=np.full(bound.shape, np.inf), where=bound > 0).min(1)
    short = np.where(free, np.abs(margins), -margins).max(1, initial=0.0, where=bound == 0)
    measure = np.stack([(bound * lam).sum(1), least, short], axis=1)
    decided = ray | ((status == dual.SOLVED) & _are_optimal(measure, _sizes(W)))
    W[ray] = 0.0
    return W, multipliers, decided, status != dual.INFEASIBLE


def _gram(rows: Constraints, like: Float) -> tuple[Float, Float, Bool, Float]:
    """Gram matrices (r, m, m) of all m = n T rows at length one, bounds, equalities and lengths (r, m).

    Rows that do not exist or have length zero are zero, with length one and without a bound.
    """
    delta, flat = rows.all_differences, (len(like), rows.n * rows.T)
    span = np.sqrt(np.einsum("rntd,rntd->rnt", delta, delta))
    length = span * np.linalg.norm(rows.queries, axis=-1)[..., None]
    live = rows.active & (length > TINY)
    length = np.where(live, length, 1.0)
    unit = (delta * (live / np.where(live, span, 1.0))[..., None]).reshape(*flat, rows.d)
    gram = np.matmul(unit, unit.swapaxes(1, 2)) * like.repeat(rows.T, 1).repeat(rows.T, 2)
    bound = (np.where(live, rows.bound, 0.0) / length).reshape(flat)
    bound /= np.maximum(bound.max(1, keepdims=True), TINY)
    return gram, bound, (rows.tied & live).reshape(flat), length.reshape(flat)
