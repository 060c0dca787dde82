"""Few rows by their Gram matrix K = A Aᵀ (rows of length one): compiled block pivoting.

    min ½ λᵀ K λ − bᵀ λ,   λ_j ≥ 0 (free where the row is an equality),   margins g = K λ

Plain loops: below some hundred rows a call to LAPACK costs more than its arithmetic. `pivot` needs
independent rows; `gram_dual.dual_active_set` is slower, ends on every input, and proves that there
is no weight where there is none.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from attsvm.tokens import Bool, Float

# Sums may be reordered so that they vectorise; Python's check of every division would prevent it.
compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})

SOLVED, INFEASIBLE, UNRESOLVED = 0, 1, 2

DEPENDENT = 1e-10
"""Squared distance of a unit row from the span of others below which a Gram matrix cannot see it."""

ROUNDING = 1e-13
"""Relative error of a margin g = K λ that may pass for zero."""


class Quadratic(NamedTuple):
    """A dual program: gram (m, m), bound (m,), free (m,): the equality rows.

    The arrays may be larger than m: the number of rows is the length of λ, so that a batch can
    reuse contiguous memory.
    """

    gram: Float
    bound: Float
    free: Bool


class Space(NamedTuple):
    """Reused memory for up to m rows."""

    factor: Float  # (m, m) lower Cholesky factor of the passive rows
    rows: NDArray[np.int64]  # (m,) rows of the factor, in order
    step: Float  # (m,)
    margin: Float  # (m,)
    passive: Bool  # (m,)
    wrong: Bool  # (m,)


@compiled
def space(m):  # type: ignore[no-untyped-def]
    return Space(
        np.empty((m, m)),
        np.empty(m, np.int64),
        np.empty(m),
        np.empty(m),
        np.empty(m, np.bool_),
        np.empty(m, np.bool_),
    )


# ---------------------------------------------------------------------- vectors and triangles


@compiled
def clear(x):  # type: ignore[no-untyped-def]
    for a in range(len(x)):
        x[a] = 0


# A view of a row would count a reference, which costs more than the row: name rows by number.


@compiled
def add_row(out, factor, X, a, count):  # type: ignore[no-untyped-def]
    """out += factor X_a on the first entries."""
    for q in range(count):
        out[q] += factor * X[a, q]


@compiled
def dot_row(X, a, y, count):  # type: ignore[no-untyped-def]
    """X_a·y of the first entries."""
    total = 0.0
    for q in range(count):
        total += X[a, q] * y[q]
    return total


@compiled
def dot_rows(X, a, b, count):  # type: ignore[no-untyped-def]
    """X_a·X_b of the first entries."""
    total = 0.0
    for q in range(count):
        total += X[a, q] * X[b, q]
    return total


@compiled
def total_size(lam):  # type: ignore[no-untyped-def]
    total = 0.0
    for j in range(len(lam)):
        total += abs(lam[j])
    return total


@compiled
def forward(L, x, k):  # type: ignore[no-untyped-def]
    """x ← L⁻¹ x on the first k entries."""
    for a in range(k):
        x[a] = (x[a] - dot_row(L, a, x, a)) / L[a, a]


@compiled
def backward(L, x, k):  # type: ignore[no-untyped-def]
    """x ← L⁻ᵀ x on the first k entries."""
    for a in range(k - 1, -1, -1):
        x[a] /= L[a, a]
        add_row(x, -x[a], L, a, a)


@compiled
def _cholesky(L, k):  # type: ignore[no-untyped-def]
    """Factor the lower triangle in place; False when a row depends on earlier ones."""
    for a in range(k):
        for c in range(a):
            L[a, c] = (L[a, c] - dot_rows(L, a, c, c)) / L[c, c]
        pivot = L[a, a] - dot_rows(L, a, a, a)
        if not pivot > DEPENDENT:
            return False
        L[a, a] = np.sqrt(pivot)
    return True


# ---------------------------------------------------------------------- block pivoting


@compiled
def _passive_solution(problem, lam, space):  # type: ignore[no-untyped-def]
    """λ on the passive rows from K_FF λ_F = b_F, zero elsewhere; False when K_FF is singular."""
    K, L, rows = problem.gram, space.factor, space.rows
    k = np.int64(0)  # the literal 0 would compile every callee twice
    for j in range(len(lam)):
        lam[j] = 0.0
        if space.passive[j]:
            rows[k] = j
            space.step[k] = problem.bound[j]
            for c in range(k + 1):
                L[k, c] = K[j, rows[c]]
            k += 1
    if not _cholesky(L, k):
        return False
    forward(L, space.step, k)
    backward(L, space.step, k)
    clear(space.margin)
    for a in range(k):
        lam[rows[a]] = space.step[a]
        add_row(space.margin, space.step[a], K, rows[a], len(lam))
    return True


@compiled
def _count_wrong(problem, lam, space):  # type: ignore[no-untyped-def]
    """Mark the passive rows with λ < 0 and the others with too small a margin; return their number."""
    rounding = ROUNDING * total_size(lam)
    count = 0
    for j in range(len(lam)):
        if space.passive[j]:
            bad = lam[j] < 0.0 and not problem.free[j]
        else:
            bad = space.margin[j] < problem.bound[j] - rounding
        space.wrong[j] = bad
        count += bad
    return count


@compiled
def pivot(problem, lam, space):  # type: ignore[no-untyped-def]
    """Block principal pivoting: exchange all rows on the wrong side at once, until none is.

    Starts from `space.passive`. Returns False when rows depend on each other or the exchanges
    do not settle. Reference: Júdice and Pires 1994, "A block principal pivoting algorithm".
    """
    m = len(lam)
    best, patience = m + 1, 3
    for _ in range(30):
        if not _passive_solution(problem, lam, space):
            return False
        wrong = _count_wrong(problem, lam, space)
        if wrong == 0:
            return True
        if wrong < best:
            best, patience = wrong, 3
        elif patience > 0:
            patience -= 1
        else:
            return False
        for j in range(m):
            space.passive[j] ^= space.wrong[j]
    return False
