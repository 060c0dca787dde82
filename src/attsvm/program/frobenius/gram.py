"""Few rows by their Gram matrix K = A Aᵀ (rows of length one): compiled block pivoting.

    min ½ λᵀ K λ − bᵀ λ,   λ_j ≥ 0 (free where the row is an equality),   margins g = K λ

Plain loops: below some hundred rows a call to LAPACK costs more than its arithmetic. `pivot` needs
independent rows; `gram_dual.dual_active_set` is slower, ends on every input, and proves that there
is no weight where there is none. Rows of length zero without a bound may stand among the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.program.compiled import compiled, inner
from attsvm.tokens import Bool, Float

DEPENDENT = 1e-10
"""Squared distance of a unit row from the span of others below which a Gram matrix cannot see it."""

ROUNDING = 1e-13
"""Relative error of a margin g = K λ that may pass for zero."""


class Quadratic(NamedTuple):
    """Dual programs of several runs: gram (r, m, m), bound (r, m), free (r, m): the equality rows.

    like (r, n, n): factors of the Gram matrix not yet applied, one per pair of blocks of m/n rows.
    passive (r, m): the rows that may have a multiplier. Pivoting writes gram and passive.
    """

    gram: Float
    like: Float
    bound: Float
    free: Bool
    passive: Bool


class Space(NamedTuple):
    """Memory of one run of m rows."""

    factor: Float  # (m, m) lower Cholesky factor of the passive rows
    rows: NDArray[np.int64]  # (m,) rows of the factor, in order
    step: Float  # (m,)
    margin: Float  # (m,)


def space(m: int) -> Space:
    return Space(np.empty((m, m)), np.empty(m, np.int64), np.empty(m), np.empty(m))


@compiled
def pivot(problem: Quadratic, lam: Float, settled: Bool, space: Space) -> None:
    """Block principal pivoting: exchange all rows on the wrong side at once, until none is.

    lam (r, m) out; settled (r,) out: False when rows depend on each other or the exchanges do not end.
    Reference: Júdice and Pires 1994, "A block principal pivoting algorithm".
    """
    for run in range(len(settled)):
        _start(problem, run, space)
        best, patience = lam.shape[1] + 1, 3
        settled[run] = False
        for _ in range(30):
            if not _passive_solution(problem, run, lam, space):
                break
            wrong = _exchange(problem, run, lam, space)
            if wrong == 0:
                settled[run] = True
                break
            if wrong < best:
                best, patience = wrong, 3
            elif patience > 0:
                patience -= 1
            else:
                break


# A view of a row would count a reference, which costs more than the row: name rows by number.


@inner
def _start(problem, run, space):  # type: ignore[no-untyped-def]
    """Complete the Gram matrix. Passive: equalities, and rows that λ = b serves less than average."""
    K, bound, margin = problem.gram, problem.bound, space.margin
    m, n = K.shape[1], problem.like.shape[1]
    served, asked = 0.0, 0.0
    for a in range(m):
        total = 0.0
        for j in range(n):
            factor = problem.like[run, a * n // m, j]
            for b in range(j * m // n, (j + 1) * m // n):
                K[run, a, b] *= factor
                total += K[run, a, b] * bound[run, b]
        margin[a] = total
        served += total
        asked += bound[run, a]
    for a in range(m):
        less = margin[a] * asked < bound[run, a] * served
        problem.passive[run, a] = less or problem.free[run, a]


@inner
def _passive_solution(problem, run, lam, space):  # type: ignore[no-untyped-def]
    """λ on the passive rows from K_FF λ_F = b_F, zero elsewhere; False when K_FF is singular.

    One sweep factors K_FF row by row and solves L y = b on the way.
    """
    K, L, rows, y, margin = problem.gram, space.factor, space.rows, space.step, space.margin
    m, k = lam.shape[1], 0
    for j in range(m):
        lam[run, j], margin[j] = 0.0, 0.0
        if not problem.passive[run, j]:
            continue
        rest, value = K[run, j, j], problem.bound[run, j]
        for c in range(k):
            total = K[run, j, rows[c]]
            for q in range(c):
                total -= L[k, q] * L[c, q]
            L[k, c] = total / L[c, c]
            rest -= L[k, c] * L[k, c]
            value -= L[k, c] * y[c]
        if not rest > DEPENDENT:
            return False
        L[k, k] = np.sqrt(rest)
        y[k], rows[k] = value / L[k, k], j
        k += 1
    for a in range(k - 1, -1, -1):
        value, row = y[a] / L[a, a], rows[a]  # read once: an array might overlap with the one written
        lam[run, row] = value
        for c in range(a):
            y[c] -= value * L[a, c]
        for j in range(m):
            margin[j] += value * K[run, row, j]
    return True


@inner
def _exchange(problem, run, lam, space):  # type: ignore[no-untyped-def]
    """Move passive rows with λ < 0 to the others, and others with too small a margin to them; how many."""
    total, count = 0.0, 0
    for j in range(lam.shape[1]):
        total += abs(lam[run, j])
    for j in range(lam.shape[1]):
        if problem.passive[run, j]:
            wrong = lam[run, j] < 0.0 and not problem.free[run, j]
        else:
            wrong = space.margin[j] < problem.bound[run, j] - ROUNDING * total
        if wrong:
            problem.passive[run, j] = not problem.passive[run, j]
            count += 1
    return count
