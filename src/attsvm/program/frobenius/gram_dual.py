"""Few rows by their Gram matrix: a compiled dual active set, which ends on every input.

It finds the ray that proves that no weight exists. See `gram.py` for the program. Rows of length zero
without a bound may stand among the others.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.program.compiled import compiled, inner
from attsvm.program.frobenius.gram import DEPENDENT, ROUNDING
from attsvm.tokens import Bool, Float

SOLVED, INFEASIBLE, UNRESOLVED = 0, 1, 2


class Quadratic(NamedTuple):
    """Dual programs of several runs: gram (r, m, m), bound (r, m), free (r, m): the equality rows.

    passive (r, m), written: the rows that may have a multiplier.
    """

    gram: Float
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
def dual_active_set(problem: Quadratic, lam: Float, status: NDArray[np.int64], space: Space) -> None:
    """Dual active set on Gram matrices: SOLVED, or INFEASIBLE with λ the ray K λ ≈ 0, b·λ > 0.

    A row enters at the rate 1 while the active rows S follow at −r = −K_SS⁻¹ K_Sj; the first λ
    to vanish leaves. A row in the span of S that lets nobody leave is a contradiction.
    lam (r, m) and status (r,) out.
    Reference: Goldfarb and Idnani 1983, "A numerically stable dual method".
    """
    for run in range(len(status)):
        status[run] = _solve(problem, run, lam, space)


@inner
def _solve(problem, run, lam, space):  # type: ignore[no-untyped-def]
    k = _enter_equalities(problem, run, lam, space)
    bound, passive, j = problem.bound, problem.passive, -1
    for _ in range(60 * lam.shape[1] + 100):
        if j < 0:
            j = _most_violated(problem, run, lam, space)
            if j < 0:
                return SOLVED
        distance = _direction(problem, run, j, k, space)
        longest, at = _first_to_vanish(problem, run, lam, k, space)
        outside = distance > DEPENDENT
        full = (bound[run, j] - space.margin[j]) / distance if outside else np.inf
        if not outside and at < 0:
            return _ray(run, lam, j, k, space)
        _move(problem, run, lam, j, max(min(full, longest), 0.0), k, space)
        if full <= longest:
            space.factor[k, k] = np.sqrt(distance)
            space.rows[k] = j
            passive[run, j] = True
            k, j = k + 1, -1
        else:
            gone = space.rows[at]
            lam[run, gone], passive[run, gone] = 0.0, False
            _drop(space.factor, space.rows, k, at)
            k -= 1
    return UNRESOLVED


@inner
def _enter_equalities(problem, run, lam, space):  # type: ignore[no-untyped-def]
    """Start from zero; factor the independent equality rows, which stay for ever. Returns their number."""
    k = np.int64(0)  # the literal 0 would compile every callee twice
    for j in range(lam.shape[1]):
        lam[run, j], space.margin[j], problem.passive[run, j] = 0.0, 0.0, False
    for j in range(lam.shape[1]):
        if problem.free[run, j]:
            distance = _direction(problem, run, j, k, space)
            if distance > DEPENDENT:
                space.factor[k, k] = np.sqrt(distance)
                space.rows[k] = j
                k += 1
                problem.passive[run, j] = True
    return k


@inner
def _most_violated(problem, run, lam, space):  # type: ignore[no-untyped-def]
    total, j = 0.0, -1
    for q in range(lam.shape[1]):
        total += abs(lam[run, q])
    worst = ROUNDING * max(total, 1.0)
    for q in range(lam.shape[1]):
        short = problem.bound[run, q] - space.margin[q]
        if short > worst and not problem.passive[run, q]:
            worst, j = short, q
    return j


@inner
def _direction(problem, run, j, k, space):  # type: ignore[no-untyped-def]
    """r = K_SS⁻¹ K_Sj into `space.step`, the new factor row into L[k]; the squared distance of row j."""
    K, L, step = problem.gram, space.factor, space.step
    distance = K[run, j, j]
    for a in range(k):
        total = K[run, space.rows[a], j]
        for c in range(a):
            total -= L[a, c] * L[k, c]
        L[k, a] = total / L[a, a]
        step[a] = L[k, a]
        distance -= L[k, a] * L[k, a]
    for a in range(k - 1, -1, -1):
        value = step[a] / L[a, a]
        step[a] = value
        for c in range(a):
            step[c] -= value * L[a, c]
    return distance


@inner
def _first_to_vanish(problem, run, lam, k, space):  # type: ignore[no-untyped-def]
    """Longest step that keeps λ_S ≥ 0, and the position that stops it (−1: none)."""
    longest, at = np.inf, -1
    for a in range(k):
        j = space.rows[a]
        if space.step[a] > 0.0 and not problem.free[run, j]:
            ratio = lam[run, j] / space.step[a]
            if ratio < longest:
                longest, at = ratio, a
    return longest, at


@inner
def _move(problem, run, lam, j, t, k, space):  # type: ignore[no-untyped-def]
    """λ_j += t, λ_S −= t r, and the margins with them."""
    K, margin = problem.gram, space.margin
    lam[run, j] += t
    for q in range(lam.shape[1]):
        margin[q] += t * K[run, j, q]
    for a in range(k):
        change, i = -t * space.step[a], space.rows[a]
        lam[run, i] += change
        for q in range(lam.shape[1]):
            margin[q] += change * K[run, i, q]


@inner
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


@inner
def _ray(run, lam, j, k, space):  # type: ignore[no-untyped-def]
    """λ = 1 on row j, −r on the active rows; what is only rounding is left out of the proof."""
    for q in range(lam.shape[1]):
        lam[run, q] = 0.0
    lam[run, j] = 1.0
    largest = 1.0
    for a in range(k):
        largest = max(largest, abs(space.step[a]))
    for a in range(k):
        if abs(space.step[a]) > 1e-14 * largest:
            lam[run, space.rows[a]] = -space.step[a]
    return INFEASIBLE
