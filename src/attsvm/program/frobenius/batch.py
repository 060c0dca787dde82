"""Many small matrix problems at once: a few compiled loops over all runs, and their verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.frobenius.batch_rows import Small, UnitRows, compare, fill
from attsvm.program.frobenius.contradiction import RESIDUAL
from attsvm.program.frobenius.gram import Quadratic, pivot, space
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

    Block pivoting, then the dual active set where that was not enough; both are checked on the rows.
    """
    data = Small(*(_read_only(getattr(rows, name)) for name in Small._fields))
    unit = UnitRows.empty(data)
    fill(data, unit)
    problem = _problem(unit)
    lam: Float = np.empty(unit.bound.shape)
    final = np.empty(len(lam), bool)
    pivot(problem, lam, final, space(lam.shape[1]))
    lam[~final] = 0.0  # what did not settle may be anything
    W = _weights(unit, lam)
    final &= _are_optimal(unit, lam, W)
    separable = np.ones(len(lam), bool)
    if not final.all():
        left = np.flatnonzero(~final)
        W[left], lam[left], final[left], separable[left] = _exactly(unit, problem, left)
    multipliers = np.zeros(rows.active.shape)
    multipliers[np.arange(rows.T) != rows.anchor[..., None]] = (lam / unit.length).ravel()
    return Answer(W, multipliers, separable), final


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """One type for compiled code, whether or not the caller may write to the array."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _problem(unit: UnitRows) -> Quadratic:
    """The dual programs; K = (ΔΔᵀ)∘(ZZᵀ) in its two factors."""
    across = np.ascontiguousarray(unit.delta.swapaxes(1, 2))
    like = np.matmul(unit.query, unit.query.swapaxes(1, 2))
    return Quadratic(np.matmul(unit.delta, across), like, unit.bound, unit.free, np.empty_like(unit.free))


def _weights(unit: UnitRows, lam: Float) -> Float:
    """W = Σ λ_j A_j: (r, m) → (r, d, e)."""
    runs, n, d = len(lam), unit.query.shape[1], unit.delta.shape[2]
    sides = np.einsum("rnod,rno->rdn", unit.delta.reshape(runs, n, -1, d), lam.reshape(runs, n, -1))
    return np.asarray(np.matmul(sides, unit.query))


def _sizes(W: Float) -> Float:
    """Frobenius norms: (r, d, e) → (r,)."""
    return np.asarray(np.sqrt(np.einsum("rde,rde->r", W, W)))


def _are_optimal(unit: UnitRows, lam: Float, W: Float) -> Bool:
    """Whether the gap between b·λ/|W| and |W|/(least margin) is at most GAP, from the rows themselves."""
    found = np.empty((len(W), 3))
    compare(unit, lam, np.matmul(unit.query, W.swapaxes(1, 2)), found)
    size, (lower, least, short) = _sizes(W), found.T
    with np.errstate(all="ignore"):  # no row asks for a margin: the gap is NaN, λ and W are zero
        closed = (least > 0) & (1.0 - lower / size * least / size <= GAP)
    return (closed | ((least == np.inf) & (lower == 0))) & (short <= GAP * size)


def _exactly(unit: UnitRows, problem: Quadratic, left: NDArray[np.intp]) -> tuple[Float, Float, Bool, Bool]:
    """W, λ, which of the runs left are decided and which have a W, by the dual active set."""
    from attsvm.program.frobenius.gram_dual import INFEASIBLE, SOLVED, UNRESOLVED, dual_active_set

    unit = UnitRows._make(part[left] for part in unit)
    problem = Quadratic._make(part[left] for part in problem)
    lam: Float = np.empty(unit.bound.shape)
    status = np.empty(len(left), np.int64)
    dual_active_set(problem, lam, status, space(lam.shape[1]))
    lam[status == UNRESOLVED] = 0.0
    hopeless = unit.bound < 0  # a row of length zero that asks for a margin is its own contradiction
    alone = hopeless.any(1)
    lam[alone] = np.arange(lam.shape[1]) == hopeless[alone].argmax(1)[:, None]
    status[alone] = INFEASIBLE
    W = _weights(unit, lam)
    weight = np.where(unit.bound != 0, lam, 0.0).sum(1)
    ray = (status == INFEASIBLE) & (_sizes(W) <= RESIDUAL * weight)
    decided = ray | ((status == SOLVED) & _are_optimal(unit, lam, W))
    W[ray] = 0.0
    return W, lam, decided, status != INFEASIBLE
