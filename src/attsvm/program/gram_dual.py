"""Few rows by their Gram matrix: a compiled dual active set, which ends on every input.

It finds the ray that proves that no weight exists. See `gram.py` for the program and its memory.
"""

from __future__ import annotations

import numpy as np

from attsvm.program.gram import (
    DEPENDENT,
    INFEASIBLE,
    ROUNDING,
    SOLVED,
    UNRESOLVED,
    add_row,
    backward,
    clear,
    compiled,
    dot_rows,
    forward,
    total_size,
)


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


@compiled
def _direction(problem, j, k, space):  # type: ignore[no-untyped-def]
    """r = K_SS⁻¹ K_Sj into `space.step`, the new factor row into L[k]; the squared distance of row j."""
    K, L = problem.gram, space.factor
    for a in range(k):
        space.step[a] = K[space.rows[a], j]
    forward(L, space.step, k)
    for a in range(k):
        L[k, a] = space.step[a]
    distance = K[j, j] - dot_rows(L, k, k, k)
    backward(L, space.step, k)
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
    worst, j = ROUNDING * max(total_size(lam), 1.0), -1
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
