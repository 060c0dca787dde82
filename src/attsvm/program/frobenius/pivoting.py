"""Frobenius, the usual engine: proximal block pivoting with direct or conjugate-gradient solves.

Up to about ten rows per unknown; memory is linear in the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import qr, solve_triangular

from attsvm.norms import frobenius
from attsvm.numbers import Bool, Float
from attsvm.numbers.linear import Cholesky
from attsvm.numbers.threads import single_thread
from attsvm.program.bounds import gap
from attsvm.program.frobenius import contradiction
from attsvm.program.frobenius.packed import Packed
from attsvm.program.rows import Candidate, Rows, Span
from attsvm.program.working_set import Algorithm, Stage, nearest

DIRECT = 300
"""Passive rows up to which a Cholesky factor is faster than conjugate gradients."""

SLOW = 0.7
"""Passive rows per unknown from which conjugate gradients need so many steps that a factor is faster."""

PROX = 1e-9
"""Weight of the proximal term: large enough to factor dependent rows, small against independent ones."""

CAP = 0.9
"""Passive rows per unknown: more of them would depend on each other."""

GROWTH = 0.5
"""How much the passive set may grow in one exchange at first, relative to what stays in it."""

STEPS = 250
"""Conjugate-gradient steps after which the rows are too dependent for this method."""

LARGEST_FACTOR = 4000
"""Passive rows up to which a Cholesky factor is the way out when conjugate gradients fail."""

ROUNDS, PATIENCE = 60, 12
"""Exchanges in all, and without a new least number of wrong rows."""

GOOD = 1e-11
"""Relative gap at which to stop."""

EXACT = 1e-13
"""Relative residual of the last solve."""

ENOUGH, CLOSED = 1e-10, 1e-9
"""Relative gap above which a resumed pivoting has failed; and below which no other algorithm is tried."""

Table = Callable[[Rows], list[Algorithm]]
"""The algorithms to try on some rows, fastest first."""


def start(rows: Rows) -> Bool:
    """A first passive set: the hardest fifth of each example for the weight Σ b_j A_j."""
    bounded = rows.bound > 0
    margins = rows.margins(rows.combine(rows.bound))
    ratio = np.where(bounded, margins / np.where(bounded, rows.bound, 1.0), np.inf)
    each = len(rows) // len(rows.queries) + 1
    room = int(CAP / 2 * rows.d * rows.e) // len(rows.queries)
    order, rank = np.lexsort((ratio, rows.owner)), np.empty(len(rows), np.intp)
    rank[order] = np.arange(len(rows)) - rows.starts[rows.owner]
    return rows.tied | (bounded & (rank < max(1, min(each // 5, room))))


def solve_by_pivoting(rows: Rows, passive: Bool | None = None, lam: Float | None = None) -> Candidate | None:
    """Exchange the rows on the wrong side, until none is.

        (K_FF + ε) λ_F = b_F + ε λ_F,previous      wrong: λ_F < 0, or margin < b outside F

    rows: the largest bound is one; passive, lam (k,): rows and multipliers to start from. None when the
    exchanges do not settle: then another method is needed. When no weight exists λ grows without bound,
    and a proof is sought where it does.
    Reference: Júdice and Pires 1994; the matrix K = (Δ Δᵀ) ∘ (Z Zᵀ) is never formed beyond F.
    """
    tolerance = 1e-2 if lam is None else 1e-6
    lam = np.zeros(len(rows)) if lam is None else lam
    passive = start(rows) if passive is None else passive
    growth, reached = Growth(), None
    for _ in range(ROUNDS):
        lam, converged = _solve_passive(rows, passive, lam, tolerance)
        W = rows.combine(lam)
        if contradiction.steepness(rows, lam, W) < contradiction.STEEP:
            return contradiction.ray(rows, lam) or reached
        if not converged:
            return reached
        short = rows.bound - rows.margins(W)
        wrong = _wrong(rows, passive, lam, short)
        count, size = int(wrong.sum()), int(passive.sum())
        if count == 0 and (tolerance <= EXACT or _is_direct(rows, size)):
            state = Candidate(W, lam, gap(rows, frobenius, W, lam))
            if state.gap <= GOOD:
                return state
            if reached is not None and state.gap > 0.1 * reached.gap:
                return _refined(rows, passive, min(state, reached, key=lambda candidate: candidate.gap))
            reached = state
        if not growth.goes_on(count):
            return reached
        tolerance = _tolerance(count, size)
        most = growth.most(int((passive & ~wrong).sum()), rows.d * rows.e)
        passive = _exchange(passive, wrong, short, most)
        lam = np.where(passive, np.where(rows.tied, lam, np.maximum(lam, 0.0)), 0.0)
    return reached


@dataclass
class Growth:
    """How far the passive set may grow: less after every exchange that does not help.

    An unbounded exchange overshoots the final set, and beyond the number of unknowns when rows are
    many; with little growth the exchanges turn into single steps of a dual active set, which ends.
    """

    best: float = np.inf
    patience: int = PATIENCE
    growth: float = GROWTH

    def goes_on(self, wrong: int) -> bool:
        """Record the number of rows on the wrong side; False when patience is at its end."""
        if wrong < self.best:
            self.best, self.patience = wrong, PATIENCE
        elif wrong > 0:
            self.patience, self.growth = self.patience - 1, 0.7 * self.growth
        return self.patience >= 0

    def most(self, staying: int, unknowns: int) -> int:
        """Rows that the next passive set may have, where so many stay in it."""
        return min(int((1 + self.growth) * staying) + 3, int(CAP * unknowns))


def _wrong(rows: Rows, passive: Bool, lam: Float, short: Float) -> Bool:
    """Passive rows that pull the wrong way, and other rows that miss their bound."""
    rounding = EXACT * max(1.0, float(np.abs(lam).max()))
    return np.where(passive, (lam < 0) & ~rows.tied, short > rounding)


def _exchange(passive: Bool, wrong: Bool, short: Float, most: int) -> Bool:
    """Let the wrong rows change sides; when too many would enter, only those that lack most."""
    staying, entering = passive & ~wrong, wrong & ~passive
    room = max(most - int(staying.sum()), 1)
    if entering.sum() > room:
        entering &= short >= np.partition(short[entering], -room)[-room]
    return staying | entering


def _tolerance(wrong: int, passive: int) -> float:
    """How exact the next solve must be: coarse while many rows are on the wrong side."""
    if wrong == 0:
        return EXACT
    return 1e-2 if wrong > 0.2 * passive else 1e-4 if wrong > 0.02 * passive else 1e-8


# ---------------------------------------------------------------------- the passive rows


def _is_direct(rows: Rows, count: int) -> bool:
    """Vectors share one query: their matrix is no sum over examples that iterations could use."""
    crowded = count > SLOW * rows.d * rows.e and count <= LARGEST_FACTOR
    return count <= DIRECT or crowded or rows.e == 1


def _solve_passive(rows: Rows, passive: Bool, lam: Float, tolerance: float) -> tuple[Float, bool]:
    """λ with (K_FF + ε) λ_F = b_F + ε λ_F,previous, and whether it converged."""
    F = np.flatnonzero(passive)
    passive_rows, x, converged, out = rows.some(F), lam[F], False, np.zeros(len(lam))
    if not _is_direct(rows, len(F)):
        x, converged = _iterated(passive_rows, x, tolerance)
    if not converged and (len(F) <= LARGEST_FACTOR or rows.e == 1):
        x, converged = _direct(passive_rows, lam[F])
    out[F] = x
    return out, converged


def _direct(rows: Rows, x: Float) -> tuple[Float, bool]:
    """λ by a Cholesky factor, and whether there is one: three proximal steps, of which two only refine."""
    K = rows.gram
    try:
        factor = Cholesky(K.copy, PROX, ridges=(0.0,))
    except np.linalg.LinAlgError:
        return x, False
    for _ in range(3):
        x = x + factor.solve(rows.bound - K @ x)
    return x, True


def _iterated(rows: Rows, x: Float, tolerance: float) -> tuple[Float, bool]:
    """λ by conjugate gradients from x, and whether they converged; the residual is relative."""
    packed = Packed.of(rows)
    right = rows.bound + PROX * x
    # Margins count relative to their own bound, and bounds may differ by many orders.
    smallest = float(right[right > 0].min(initial=1.0))
    goal = tolerance * min(float(np.linalg.norm(right)), smallest * np.sqrt(len(right)))
    solution, converged = packed.solve(PROX, packed.pack(right), packed.pack(x), goal, STEPS, ridge=1e-6)
    return solution[packed.used], converged


def _refined(rows: Rows, passive: Bool, state: Candidate) -> Candidate:
    """The same active rows by a QR factor, where the Gram matrix has lost too many digits."""
    if passive.sum() * state.W.size > contradiction.DENSE:
        return state
    Q, R = qr(rows.some(passive).dense.T, mode="economic", check_finite=False)
    size = np.abs(np.diagonal(R))
    if size.min() <= 1e-14 * size.max():
        return state
    y = solve_triangular(R, rows.bound[passive], trans=1)
    W, lam = (Q @ y).reshape(state.W.shape), np.zeros(passive.shape)
    lam[passive] = solve_triangular(R, y)
    better = Candidate(W, lam, gap(rows, frobenius, W, lam))
    return better if better.gap < state.gap else state


# ---------------------------------------------------------------------- the engine


class Pivoted:
    """Block pivoting from the multipliers of the previous pool; where that fails, the other algorithms.

    Where none is exact, the same in the coordinates that the rows span, if those are fewer.
    """

    def __init__(self, algorithms: Table) -> None:
        self.algorithms = algorithms
        self.previous: Float | None = None

    def __call__(self, rows: Rows) -> Stage:
        unit = float(rows.bound.max(initial=0.0))
        if unit == 0:
            return Stage(Candidate(np.zeros((rows.d, rows.e)), np.zeros(len(rows)), 0.0))
        with single_thread():
            candidate = self._solve(replace(rows, bound=rows.bound / unit))
        if not candidate.separable:
            return Stage(candidate)
        self.previous = rows.spread(candidate.multipliers / rows.length)
        W = candidate.W * unit
        needed = rows.tied | (candidate.multipliers != 0)
        return Stage(replace(candidate, W=W), retained=nearest(rows, W, needed))

    def _solve(self, rows: Rows) -> Candidate:
        candidate = self._resumed(rows)
        if candidate is None or candidate.gap > ENOUGH:
            candidate = best_of(self.algorithms, rows)
        if candidate.gap <= CLOSED:
            return candidate
        span = Span.exactly(rows.delta, rows.queries)
        if span.shape == (rows.d, rows.e):
            return candidate
        fewer = best_of(self.algorithms, rows.within(span))
        return replace(fewer, W=span.expand(fewer.W))

    def _resumed(self, rows: Rows) -> Candidate | None:
        """From the multipliers of the previous pool, which have an unknown common factor."""
        if self.previous is None:
            return None
        lam = rows.pick(self.previous) * rows.length
        W = rows.combine(lam)
        square = float(np.vdot(W, W))
        if not square > 0:
            return None
        lam *= float(lam @ rows.bound) / square
        return solve_by_pivoting(rows, (lam > 0) | rows.tied, lam)


def best_of(algorithms: Table, rows: Rows) -> Candidate:
    """The best candidate of the algorithms; the largest bound of the rows is one."""
    best = contradiction.opposite_rows(rows)
    for algorithm in algorithms(rows):
        if best is not None and best.gap <= CLOSED:
            break
        candidate = algorithm(rows)
        if candidate is not None and (best is None or candidate.gap < best.gap):
            best = candidate
    # Nothing converged: W = 0 certifies nothing.
    return best or Candidate(np.zeros((rows.d, rows.e)), np.zeros(len(rows)))
