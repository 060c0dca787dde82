"""Many small matrix problems at once, by their Gram matrices K = A Aᵀ (rows of length one): block pivoting.

    min ½ λᵀ K λ − bᵀ λ,   λ_j ≥ 0 (free where the row is an equality),   margins g = K λ

Plain compiled loops: below some hundred rows a call to LAPACK costs more than its arithmetic. One loop solves
all runs, in memory that stays in the cache: with NumPy, threads would wait for each other. Runs that it
cannot solve go to `dense`, which is slower, ends on every input, and proves that there is no weight.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import compiled, inner, read_only
from attsvm.program.answer import Answer
from attsvm.program.bounds import relative_gap
from attsvm.program.constraints import TINY, Constraints
from attsvm.program.frobenius.dense import solve_runs_dense

GAP = 1e-11
"""Relative gap up to which an answer of the Gram matrix is taken."""

DEPENDENT = 1e-10
"""Squared distance of a unit row from the span of others below which a Gram matrix cannot see it."""

ROUNDING = 1e-13
"""Relative error of a margin g = K λ that may pass for zero."""


def solve_runs_by_gram(program: Constraints) -> Answer:
    """Answers of all runs: block pivoting, checked; where that is not enough, the dual active set."""
    query, size, like = queries_of(program)
    arrays = (program.anchor, program.active, program.tied, program.required)
    problems = Problems(read_only(program.keys), query, size, like, *map(read_only, arrays))
    runs = len(program.keys)
    W, multipliers = np.zeros((runs, program.d, program.e)), np.zeros(program.active.shape)
    separable, gap = np.ones(runs, bool), np.empty(runs)
    exchanged = Exchanged(W, multipliers.reshape(runs, -1), gap)
    pivot(problems, exchanged, workspace(program.n * (program.T - 1), program.d))
    remaining = np.flatnonzero(gap > GAP)
    if remaining.size:
        exact = solve_runs_dense(program.subset(remaining))
        W[remaining], multipliers[remaining] = exact.W, exact.multipliers
        separable[remaining], gap[remaining] = exact.separable, exact.gap
    return Answer(W, multipliers, separable, gap)


def queries_of(program: Constraints) -> tuple[Float, Float, Float]:
    """The queries at length one (r, n, e), their lengths (r, n), and their Gram matrices (r, n, n)."""
    size = np.sqrt(np.einsum("rne,rne->rn", program.queries, program.queries))
    unit = program.queries / np.where(size > 0, size, 1.0)[..., None]
    return unit, size, np.matmul(unit, unit.swapaxes(1, 2))


# ---------------------------------------------------------------------- compiled


class Problems(NamedTuple):
    """Constraints of all runs as plain arrays, the runs axis first; see `Constraints`.

    query (r, n, e): at length one, ẑ = z/|z|; size (r, n): |z|; like (r, n, n): ẑ_iᵀ ẑ_j.
    """

    keys: Float
    query: Float
    size: Float
    like: Float
    anchor: NDArray[np.intp]
    active: Bool
    tied: Bool
    required: Float


class Workspace(NamedTuple):
    """Memory for one run of at most m rows of length one; rows of length zero are omitted.

    All runs use the same memory, one after the other.
    delta (d, m): δ/|δ|; gram (m, m); name (m,): i T + t; example (m,): i; length (m,): |δ| |z|; bound (m,).
    free (m,): equalities; passive (m,): the rows that may have a multiplier lam (m,), of which `entered` (m,)
    have just become so; margin (m,): K λ.
    factor (m, m): lower Cholesky factor of the passive rows, listed in order (m,); step (m,).
    """

    delta: Float
    gram: Float
    name: NDArray[np.int64]
    example: NDArray[np.int64]
    length: Float
    bound: Float
    free: Bool
    passive: Bool
    entered: Bool
    lam: Float
    margin: Float
    factor: Float
    order: NDArray[np.int64]
    step: Float


def workspace(m: int, d: int) -> Workspace:
    length, bound, lam, margin, step = np.empty((5, m))
    name, example, order = np.empty((3, m), np.int64)
    free, passive, entered = np.empty((3, m), bool)
    gram, factor = np.empty((2, m, m))
    rows = np.empty((d, m)), gram, name, example, length, bound
    return Workspace(*rows, free, passive, entered, lam, margin, factor, order, step)


class Exchanged(NamedTuple):
    """Results of the exchanges; W and multipliers are zero at first.

    W (r, d, e), at the required margins; multipliers (r, n T): λ of the rows at their own lengths, with
        |Σ λ_j A_j| = 1.
    gap (r,): the relative gap, or the largest error of a row without a bound; ∞ where exchanges do not end or
        rows depend on each other.
    """

    W: Float
    multipliers: Float
    gap: Float


@compiled
def pivot(problems: Problems, exchanged: Exchanged, s: Workspace) -> None:
    """Block principal pivoting: exchange all rows on the wrong side at once, until none is.

    Reference: Júdice and Pires 1994, "A block principal pivoting algorithm".
    """
    d, e = exchanged.W.shape[1:]
    for run in range(len(exchanged.W)):
        exchanged.gap[run] = np.inf
        m = _rows(problems, run, s)
        best, patience, wrong = m, 3, m
        while wrong > 0 and patience >= 0:
            wrong = _exchange(s, m)
            if wrong < best:
                best, patience = wrong, 4
            patience -= 1
        if wrong != 0:
            continue
        lower, least, short = 0.0, np.inf, 0.0
        for a in range(m):
            lam, bound, margin = s.lam[a], s.bound[a], s.margin[a]
            exchanged.multipliers[run, s.name[a]] = lam / s.length[a]
            lower += bound * lam
            error = abs(margin) if s.free[a] else -margin
            if bound > 0.0:
                if margin < least * bound:
                    least = margin / bound
            elif error > short:
                short = error
            if lam != 0.0:
                for c in range(d):
                    entry = lam * s.delta[c, a]
                    for q in range(e):
                        exchanged.W[run, c, q] += entry * problems.query[run, s.example[a], q]
        if least == np.inf and lower == 0.0:  # no row requires a margin: λ and W are zero
            exchanged.gap[run] = 0.0
            continue
        square = 0.0
        for c in range(d):
            for q in range(e):
                square += exchanged.W[run, c, q] * exchanged.W[run, c, q]
        size = np.sqrt(square)
        if not (size > 0.0 and 0.0 < least < np.inf):
            continue
        exchanged.gap[run] = relative_gap(lower / size, least, size, short / size)
        for c in range(d):
            for q in range(e):
                exchanged.W[run, c, q] /= least
        for a in range(m):
            exchanged.multipliers[run, s.name[a]] /= size


# A view of a row would count a reference, which costs more than the row: name rows by number. For the same
# reason the two loops below are not cut into smaller functions.


@inner
def _rows(problems, run, s):  # type: ignore[no-untyped-def]
    """Write the rows and their Gram matrix; −1 when one of length zero requires a margin, else their number.

    Passive at first: equalities, and rows that λ = b serves less than average.
    """
    n, T, d = problems.keys.shape[1:]
    m, required, served = 0, 0.0, 0.0
    for name in range(n * T):
        i, t = name // T, name % T
        if not problems.active[run, i, t]:
            continue
        square, first = 0.0, problems.anchor[run, i]
        for c in range(d):
            s.delta[c, m] = problems.keys[run, i, first, c] - problems.keys[run, i, t, c]
            square += s.delta[c, m] * s.delta[c, m]
        span, tied = np.sqrt(square), problems.tied[run, i, t]
        length, bound = span * problems.size[run, i], 0.0 if tied else problems.required[run, i]
        if length > TINY:
            for c in range(d):
                s.delta[c, m] /= span
            s.name[m], s.example[m], s.free[m] = name, i, tied
            s.length[m], s.bound[m] = length, bound / length
            required += s.bound[m]
            m += 1
        elif bound > 0.0:
            return -1
    for a in range(m):
        for b in range(a + 1):
            s.gram[a, b] = 0.0
        for c in range(d):
            entry = s.delta[c, a]
            for b in range(a + 1):
                s.gram[a, b] += entry * s.delta[c, b]
        for b in range(a + 1):
            s.gram[a, b] *= problems.like[run, s.example[a], s.example[b]]
            s.gram[b, a] = s.gram[a, b]
    for a in range(m):
        total = 0.0
        for b in range(m):
            total += s.gram[a, b] * s.bound[b]
        s.margin[a] = total
        served += total
    for a in range(m):
        s.entered[a] = False
        s.passive[a] = s.free[a] or s.margin[a] * required < s.bound[a] * served
    return m


@inner
def _exchange(s, m):  # type: ignore[no-untyped-def]
    """Solve K_FF λ_F = b_F on the passive rows F, then exchange the rows on the wrong side; their number.

    Wrong: λ_F < 0, or too small a margin outside F. One sweep factors K_FF row by row and solves L y = b on
    the way. A row that depends on those before it leaves F: copies of a token have one margin. Equalities
    come first, then the rows that have just entered: of two rows that are nearly equal, the one that fell
    short stays.
    """
    L, y, order, k, count = s.factor, s.step, s.order, 0, 0
    for place in range(3):
        for j in range(m):
            if s.passive[j] and place == (0 if s.free[j] else 1 if s.entered[j] else 2):
                order[count] = j
                count += 1
    for j in range(m):
        s.lam[j], s.margin[j] = 0.0, 0.0
    for place in range(count):
        j = order[place]
        square, value = s.gram[j, j], s.bound[j]
        for c in range(k):
            total = s.gram[j, order[c]]
            for q in range(c):
                total -= L[k, q] * L[c, q]
            total /= L[c, c]
            L[k, c] = total
            square -= total * total
            value -= total * y[c]
        if not square > DEPENDENT:
            s.passive[j] = False
            continue
        L[k, k] = np.sqrt(square)
        y[k], order[k] = value / L[k, k], j
        k += 1
    size, count = 0.0, 0
    for a in range(k - 1, -1, -1):
        value, row = y[a] / L[a, a], order[a]  # read once: an array might overlap with the one written
        s.lam[row] = value
        size += abs(value)
        for c in range(a):
            y[c] -= value * L[a, c]
        for j in range(m):
            s.margin[j] += value * s.gram[row, j]
    for j in range(m):
        wrong = s.lam[j] < 0.0 and not s.free[j]
        if not s.passive[j]:
            short = abs(s.margin[j]) if s.free[j] else s.bound[j] - s.margin[j]
            wrong = short > ROUNDING * size
        s.entered[j] = wrong and not s.passive[j]
        if wrong:
            s.passive[j] = not s.passive[j]
            count += 1
    return count
