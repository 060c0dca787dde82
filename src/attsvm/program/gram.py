"""Compiled solvers for few rows, on their Gram matrix K = A Aᵀ (rows of length one).

    min ½ λᵀ K λ − bᵀ λ,   λ_j ≥ 0 (free where the row is an equality),   margins g = K λ

`pivot` is fast and needs independent rows; `dual_active_set` ends on every input, and finds the
ray that proves that no weight exists. Both are plain loops: below some hundred rows a call to
LAPACK costs more than its arithmetic.
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
def _size(lam):  # type: ignore[no-untyped-def]
    total = 0.0
    for j in range(len(lam)):
        total += abs(lam[j])
    return total


@compiled
def _forward(L, x, k):  # type: ignore[no-untyped-def]
    """x ← L⁻¹ x on the first k entries."""
    for a in range(k):
        x[a] = (x[a] - dot_row(L, a, x, a)) / L[a, a]


@compiled
def _backward(L, x, k):  # type: ignore[no-untyped-def]
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


@compiled
def _drop(L, rows, k, at):  # type: ignore[no-untyped-def]
    """Remove row `at` from the factor of k rows by Givens rotations."""
    for a in range(at, k - 1):
        rows[a] = rows[a + 1]
        for c in range(a + 2):
            L[a, c] = L[a + 1, c]
    for a in range(at, k - 1):
        x, y = L[a, a], L[a, a + 1]
        r = np.hypot(x, y)
        cos, sin = x / r, y / r
        for q in range(a, k - 1):
            u, v = L[q, a], L[q, a + 1]
            L[q, a] = cos * u + sin * v
            L[q, a + 1] = cos * v - sin * u


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
    _forward(L, space.step, k)
    _backward(L, space.step, k)
    clear(space.margin)
    for a in range(k):
        lam[rows[a]] = space.step[a]
        add_row(space.margin, space.step[a], K, rows[a], len(lam))
    return True


@compiled
def _count_wrong(problem, lam, space):  # type: ignore[no-untyped-def]
    """Mark the passive rows with λ < 0 and the others with too small a margin; return their number."""
    rounding = ROUNDING * _size(lam)
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


# ---------------------------------------------------------------------- dual active set


@compiled
def _direction(problem, j, k, space):  # type: ignore[no-untyped-def]
    """r = K_SS⁻¹ K_Sj into `space.step`, the new factor row into L[k]; the squared distance of row j."""
    K, L = problem.gram, space.factor
    for a in range(k):
        space.step[a] = K[space.rows[a], j]
    _forward(L, space.step, k)
    for a in range(k):
        L[k, a] = space.step[a]
    distance = K[j, j] - dot_rows(L, k, k, k)
    _backward(L, space.step, k)
    return distance


@compiled
def _first_to_vanish(problem, lam, k, space):  # type: ignore[no-untyped-def]
    """Longest step that keeps λ_S ≥ 0, and the position that stops it (−1: none)."""
    longest, at = np.inf, -1
    for a in range(k):
        j = space.rows[a]
        if space.step[a] > 0.0 and not problem.free[j]:
            ratio = lam[j] / space.step[a]
            if ratio < longest:
                longest, at = ratio, a
    return longest, at


@compiled
def _move(problem, lam, j, t, k, space):  # type: ignore[no-untyped-def]
    """λ_j += t, λ_S −= t r, and the margins with them."""
    lam[j] += t
    add_row(space.margin, t, problem.gram, j, len(lam))
    for a in range(k):
        change = -t * space.step[a]
        lam[space.rows[a]] += change
        add_row(space.margin, change, problem.gram, space.rows[a], len(lam))


@compiled
def _most_violated(problem, lam, space):  # type: ignore[no-untyped-def]
    worst, j = ROUNDING * max(_size(lam), 1.0), -1
    for q in range(len(lam)):
        short = problem.bound[q] - space.margin[q]
        if short > worst and not space.passive[q]:
            worst, j = short, q
    return j


@compiled
def _enter_equalities(problem, m, space):  # type: ignore[no-untyped-def]
    """Factor the independent equality rows; they stay in the set for ever. Returns their number."""
    k = np.int64(0)
    for j in range(m):
        if problem.free[j]:
            distance = _direction(problem, j, k, space)
            if distance > DEPENDENT:
                space.factor[k, k] = np.sqrt(distance)
                space.rows[k] = j
                k += 1
                space.passive[j] = True
    return k


@compiled
def dual_active_set(problem, lam, space):  # type: ignore[no-untyped-def]
    """Dual active set on a Gram matrix: SOLVED, or INFEASIBLE with λ the ray K λ ≈ 0, b·λ > 0.

    A row enters at the rate 1 while the active rows S follow at −r = −K_SS⁻¹ K_Sj; the first λ
    to vanish leaves. A row in the span of S that lets nobody leave is a contradiction.
    Reference: Goldfarb and Idnani 1983, "A numerically stable dual method".
    """
    m = len(lam)
    clear(lam)
    clear(space.margin)
    clear(space.passive)
    k = _enter_equalities(problem, m, space)
    j = -1
    for _ in range(60 * m + 100):
        if j < 0:
            j = _most_violated(problem, lam, space)
            if j < 0:
                return SOLVED
        distance = _direction(problem, j, k, space)
        longest, at = _first_to_vanish(problem, lam, k, space)
        outside = distance > DEPENDENT
        full = (problem.bound[j] - space.margin[j]) / distance if outside else np.inf
        if not outside and at < 0:
            return _ray(lam, j, k, space)
        t = max(min(full, longest), 0.0)
        _move(problem, lam, j, t, k, space)
        if full <= longest:
            space.factor[k, k] = np.sqrt(distance)
            space.rows[k] = j
            space.passive[j] = True
            k, j = k + 1, -1
        else:
            gone = space.rows[at]
            lam[gone], space.passive[gone] = 0.0, False
            _drop(space.factor, space.rows, k, at)
            k -= 1
    return UNRESOLVED


@compiled
def _ray(lam, j, k, space):  # type: ignore[no-untyped-def]
    """λ = 1 on row j, −r on the active rows; what is only rounding is left out of the proof."""
    clear(lam)
    lam[j] = 1.0
    largest = 1.0
    for a in range(k):
        largest = max(largest, abs(space.step[a]))
    for a in range(k):
        if abs(space.step[a]) > 1e-14 * largest:
            lam[space.rows[a]] = -space.step[a]
    return INFEASIBLE
