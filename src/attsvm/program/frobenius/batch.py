"""Many small matrix problems at once: the rows of all runs in NumPy, their Gram matrices in loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.frobenius.contradiction import RESIDUAL
from attsvm.program.frobenius.gram import Quadratic, pivot, space
from attsvm.program.frobenius.unit_rows import TINY
from attsvm.tokens import Bool, Float

LARGEST = 256
"""Rows up to which loops on the Gram matrix beat calls to LAPACK."""

GAP = 1e-11
"""Relative gap up to which an answer of the Gram matrix is taken."""


class UnitRows(NamedTuple):
    """The rows of r runs at length one, δ/|δ| times z/|z|; zero where there is no row.

    token (r, n, T−1): all tokens but the anchor. delta (r, n, T−1, d), query (r, n, e).
    length (r, n, T−1): |δ| |z|, one where there is no row. bound: largest one. free: equalities.
    hopeless (r, n, T−1): rows of length zero that ask for a margin.
    """

    token: NDArray[np.intp]
    delta: Float
    query: Float
    length: Float
    bound: Float
    free: Bool
    hopeless: Bool

    @classmethod
    def of(cls, rows: Constraints) -> UnitRows:
        start = np.arange(0, rows.active.size, rows.T).reshape(rows.anchor.shape)
        others = np.arange(rows.T - 1)
        token = others + (others >= rows.anchor[..., None])
        place, flat = start[..., None] + token, rows.keys.reshape(-1, rows.d)
        delta = flat.take(start + rows.anchor, 0)[..., None, :] - flat.take(place, 0)
        span, size = _norm(delta), _norm(rows.queries)
        length = span * size[..., None]
        active, tied = rows.active.take(place), rows.tied.take(place)
        asked = np.where(active > tied, rows.required[..., None], 0.0)
        live = active & (length > TINY)
        length = np.where(live, length, 1.0)
        delta *= (live / np.where(live, span, 1.0))[..., None]
        query = rows.queries / np.where(size > 0, size, 1.0)[..., None]
        bound = np.where(live, asked, 0.0) / length
        largest = bound.max((1, 2), keepdims=True, initial=0.0)
        bound /= np.where(largest > 0, largest, 1.0)
        return cls(token, delta, query, length, bound, live & tied, (asked > 0) > live)

    def some(self, which: NDArray[np.intp]) -> UnitRows:
        """Some of the runs."""
        return UnitRows(*(part[which] for part in self))

    def gram(self) -> Float:
        """K = (ΔΔᵀ)∘(ZZᵀ) of every run (r, m, m), with m = n (T − 1)."""
        runs, n, others, d = self.delta.shape
        flat = self.delta.reshape(runs, n * others, d)
        like = np.matmul(self.query, self.query.swapaxes(1, 2))
        K = np.matmul(flat, flat.swapaxes(1, 2)).reshape(runs, n, others, n, others)
        K *= like[:, :, None, :, None]
        return K.reshape(runs, n * others, n * others)

    def combine(self, lam: Float) -> Float:
        """Σ λ_j A_j: (r, n, T−1) → (r, d, e)."""
        sides = np.einsum("rntd,rnt->rnd", self.delta, lam)
        return np.asarray(np.matmul(sides.swapaxes(1, 2), self.query))

    def margins(self, W: Float) -> Float:
        """⟨A_j, W⟩: (r, d, e) → (r, n, T−1)."""
        directions = np.matmul(self.query, W.swapaxes(1, 2))
        return np.asarray(np.einsum("rntd,rnd->rnt", self.delta, directions))


def suits(rows: Constraints) -> bool:
    """Whether the problems are small enough for loops on their Gram matrices."""
    return rows.n * (rows.T - 1) <= LARGEST


def solve(rows: Constraints) -> tuple[Answer, Bool]:
    """Answers of all runs, and which of them are final; the others need a slower, exact method.

    Block pivoting, then the dual active set where that was not enough; both are checked on the rows.
    """
    unit = UnitRows.of(rows)
    problem = _problem(unit)
    W, lam, final = _pivoted(unit, problem)
    separable = np.ones(len(lam), bool)
    left = np.flatnonzero(~final)
    if left.size:
        some = Quadratic(*(part[left] for part in problem))
        W[left], lam[left], final[left], separable[left] = _exactly(unit.some(left), some)
    hopeless = unit.hopeless.any((1, 2))
    if hopeless.any():  # a row of length zero that asks for a margin is its own contradiction
        W[hopeless], lam[hopeless] = 0.0, _first_of_each(unit.hopeless[hopeless])
        final |= hopeless
        separable &= ~hopeless
    multipliers = np.zeros(rows.active.shape)
    np.put_along_axis(multipliers, unit.token, lam / unit.length, -1)
    return Answer(W, multipliers, separable), final


def _problem(unit: UnitRows) -> Quadratic:
    """The dual programs, and for a start the rows that λ = b serves less than average."""
    K = unit.gram()
    bound, free = unit.bound.reshape(K.shape[:2]), unit.free.reshape(K.shape[:2])
    served = np.matmul(K, bound[..., None])[..., 0]
    passive = served * bound.sum(1)[:, None] < bound * served.sum(1)[:, None]
    return Quadratic(K, bound, free, passive | free)


def _pivoted(unit: UnitRows, problem: Quadratic) -> tuple[Float, Float, Bool]:
    """W, λ and which runs are solved, by block pivoting."""
    lam, settled = np.empty(problem.bound.shape), np.empty(len(problem.bound), bool)
    pivot(problem, lam, settled, space(lam.shape[1]))
    asks = unit.bound.any((1, 2))
    lam = np.where((settled & asks)[:, None], lam, 0.0).reshape(unit.bound.shape)
    W = unit.combine(lam)
    return W, lam, ~asks | (settled & _are_optimal(unit, lam, W))


def _exactly(unit: UnitRows, problem: Quadratic) -> tuple[Float, Float, Bool, Bool]:
    """W, λ, which runs are decided and which of them have a W, by the dual active set."""
    from attsvm.program.frobenius.gram_dual import INFEASIBLE, SOLVED, dual_active_set

    lam, status = np.empty(problem.bound.shape), np.empty(len(problem.bound), np.int64)
    dual_active_set(problem, lam, status, space(lam.shape[1]))
    lam = lam.reshape(unit.bound.shape)
    W = unit.combine(lam)
    weight = np.where(unit.bound > 0, lam, 0.0).sum((1, 2))
    ray = (status == INFEASIBLE) & (_flat_norm(W) <= RESIDUAL * weight)
    solved = (status == SOLVED) & _are_optimal(unit, lam, W)
    return np.where(ray[:, None, None], 0.0, W), lam, ray | solved, status != INFEASIBLE


def _are_optimal(unit: UnitRows, lam: Float, W: Float) -> Bool:
    """Whether the gap between b·λ/|W| and |W|/(least margin) is at most GAP, from the rows themselves."""
    size, margins = _flat_norm(W), unit.margins(W)
    counted = unit.bound > 0
    least = np.where(counted, margins / np.where(counted, unit.bound, 1.0), np.inf).min((1, 2))
    short = np.where(unit.free, np.abs(margins), np.where(counted, 0.0, -margins)).max((1, 2))
    lower = (unit.bound * lam).sum((1, 2))
    square = np.where(size > 0, size, 1.0) ** 2
    with np.errstate(invalid="ignore", over="ignore"):
        closed = 1.0 - lower / square * least <= GAP
    return (size > 0) & (least > 0) & (short <= GAP * size) & closed


def _first_of_each(marked: Bool) -> Float:
    """One in the first marked place of each run, zero elsewhere: (r, n, T−1)."""
    flat = marked.reshape(len(marked), -1)
    return (np.arange(flat.shape[1]) == flat.argmax(1)[:, None]).astype(float).reshape(marked.shape)


def _norm(x: Float) -> Float:
    """Length along the last axis; an entry whose square underflows counts as zero."""
    return np.asarray(np.sqrt(np.einsum("...d,...d->...", x, x)))


def _flat_norm(W: Float) -> Float:
    """Frobenius norm of every matrix: (r, d, e) → (r,)."""
    return _norm(W.reshape(len(W), -1))
