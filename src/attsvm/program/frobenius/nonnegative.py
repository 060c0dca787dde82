"""Nonnegative quadratic programs of a Gram matrix, many at once.

    min ½ λᵀ G λ − bᵀ λ,   λ ≥ 0:        G λ ≥ b,   λᵀ (G λ − b) = 0

Block pivoting in one compiled loop. Where the exchanges do not end, as between vectors that depend on each
other, the dual active set solves the same problem in vectors whose Gram matrix is G.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import compiled, inner
from attsvm.program.frobenius.dense import solve_rows

DEPENDENT = 1e-10
"""Squared distance of a unit vector from the span of others below which a Gram matrix cannot see it."""

ROUNDING = 1e-13
"""Relative error of a product G λ that may pass for zero."""

ROUNDS, PATIENCE = 40, 8
"""Exchanges in all; and without a new least number of wrong rows, after which one row at a time changes."""

LARGEST = 1e4
"""Σ λ_j, per bound, from which rounding in G λ shows, and block pivoting alone does not settle a problem."""

PROX, STEPS = 1e-11, 100
"""Weight of the proximal term: large enough to tell dependent rows apart; and proximal steps at most."""

RELAXED = 1e-12
"""Share by which bounds of dependent rows are relaxed, so that rounding contradicts none of them."""

ENOUGH = 1e-10
"""Largest move of a proximal step, per size of λ, after which no further one is taken."""


def solve_nonnegative(
    gram: Float,
    bound: Float,
    owner: NDArray[np.int64],
    factor: Callable[[int], Float],
    reached: Float | None = None,
) -> Float:
    """λ (p, m) of every problem; where none is bounded, λ ≥ 0 with G λ = 0 and bᵀλ > 0.

    gram (g, m, m): semidefinite, its diagonal one, or zero for a zero vector; bound (p, m); owner (p,): the
    matrix of each problem. factor(i): vectors (m, k) whose Gram matrix is gram[i].
    reached (p,): |u|_G where b = −G u for some u, so that the point −u meets every row, and only rounding can
    make a problem unbounded.
    """
    exchanges = Exchanges.of(gram, bound, owner)
    exchanges.settle()
    rows: Float = np.empty((0, 0))
    previous = -1
    for p in np.flatnonzero(~exchanges.done):
        if owner[p] != previous:
            previous = int(owner[p])
            rows = factor(previous)
        problem: Float = exchanges.bound[p]
        if reached is not None:
            problem = problem - RELAXED * reached[p] / exchanges.unit[p]
        point = solve_rows(rows, problem)
        lam: Float = point.multipliers
        if reached is not None and not point.separable:
            lam = _by_proximal_steps(rows, problem)
        exchanges.lam[p] = np.maximum(lam, 0.0)
    return exchanges.lam * exchanges.unit


def _by_proximal_steps(rows: Float, bound: Float) -> Float:
    """λ by the dual active set on rows that do not depend on each other, step by step.

    min ½ λᵀ G λ − bᵀ λ + ½ ε |λ − λ_previous|²,   λ ≥ 0
    """
    apart = np.concatenate([rows, np.sqrt(PROX) * np.eye(len(rows))], axis=1)
    lam: Float = np.zeros(len(bound))
    for _ in range(STEPS):
        previous, lam = lam, solve_rows(apart, bound + PROX * lam).multipliers
        if np.abs(lam - previous).max() <= ENOUGH * np.abs(lam).max(initial=1.0):
            break
    return lam


class Exchanges(NamedTuple):
    """Problems, and where their exchanges stand. unit (p, 1): the largest bound, by which bounds are divided.

    real (g, m): vectors that are not zero; passive (p, m): rows that may have a multiplier; lam (p, m); done
    (p,): whether no row is on the wrong side.
    """

    gram: Float
    owner: NDArray[np.int64]
    bound: Float
    unit: Float
    real: Bool
    passive: Bool
    lam: Float
    done: Bool

    @classmethod
    def of(cls, gram: Float, bound: Float, owner: NDArray[np.int64]) -> Exchanges:
        unit = np.abs(bound).max(-1, keepdims=True)
        unit = np.where(unit > 0, unit, 1.0)
        bound = bound / unit
        real = np.einsum("gjj->gj", gram) > 0
        passive = real[owner] & _first_passive(gram, bound, owner)
        return cls(gram, owner, bound, unit, real, passive, np.zeros(bound.shape), np.zeros(len(bound), bool))

    def settle(self) -> None:
        """Exchange rows until none is on the wrong side."""
        m = self.bound.shape[1]
        memory = np.empty((m, m)), np.empty(m, np.int64), *np.empty((2, m))
        arrays = self.gram, self.owner, self.bound, self.real
        pivot(*arrays, self.passive, self.lam, self.done, *memory)


def _first_passive(gram: Float, bound: Float, owner: NDArray[np.int64]) -> Bool:
    """Rows with a positive bound; where all are positive, those that λ = b serves less than average."""
    wanting = bound > 0
    positive = wanting.all(-1)
    if positive.any():
        served = np.einsum("pij,pj->pi", gram[owner[positive]], bound[positive])
        average = served.sum(-1, keepdims=True) / bound[positive].sum(-1, keepdims=True)
        wanting[positive] = served < average * bound[positive]
    return wanting


# ---------------------------------------------------------------------- compiled


@compiled
def pivot(gram, owner, bound, real, passive, lam, done, factor, order, margin, step):  # type: ignore[no-untyped-def]
    """Block principal pivoting on every problem; see `Exchanges`. factor (m, m), others (m,): memory.

    Reference: Júdice and Pires 1994, "A block principal pivoting algorithm": one row at a time, the last one
    that is wrong, ends on every positive definite matrix, given the time.
    """
    count, m = bound.shape
    for p in range(count):
        best, patience, g = m + 1, PATIENCE, owner[p]
        for _ in range(ROUNDS):
            k = _factorise(gram, g, passive, p, factor, order)
            size = _solve(gram, g, bound, p, lam, k, factor, order, margin, step)
            wrong, last = 0, -1
            for j in range(m):
                if _is_wrong(passive[p, j], real[g, j], lam[p, j], bound[p, j] - margin[j], size):
                    wrong, last = wrong + 1, j
            if wrong == 0:
                _refine(bound, p, lam, k, factor, order, margin, step)
                done[p] = size <= LARGEST
                break
            if wrong < best:
                best, patience = wrong, PATIENCE
            patience -= 1
            if patience < 0:
                passive[p, last] = not passive[p, last]
                continue
            for j in range(m):
                if _is_wrong(passive[p, j], real[g, j], lam[p, j], bound[p, j] - margin[j], size):
                    passive[p, j] = not passive[p, j]


@inner
def _is_wrong(passive, real, lam, short, size):  # type: ignore[no-untyped-def]
    """Whether a passive row pulls the wrong way, or another one misses its bound. Zero rows never enter."""
    if passive:
        return lam < 0.0
    return short > (ROUNDING * size if real else 0.0)


@inner
def _factorise(gram, g, passive, p, L, order):  # type: ignore[no-untyped-def]
    """The Cholesky factor of the passive rows, listed in `order`; their number. Dependent ones leave."""
    k = 0
    for j in range(passive.shape[1]):
        if not passive[p, j]:
            continue
        square = gram[g, j, j]
        for c in range(k):
            total = gram[g, j, order[c]]
            for q in range(c):
                total -= L[k, q] * L[c, q]
            total /= L[c, c]
            L[k, c] = total
            square -= total * total
        if not square > DEPENDENT:
            passive[p, j] = False
            continue
        L[k, k] = np.sqrt(square)
        order[k] = j
        k += 1
    return k


@inner
def _solve(gram, g, bound, p, lam, k, L, order, margin, step):  # type: ignore[no-untyped-def]
    """λ of the passive rows, zero elsewhere, and the products G λ; returns the size of their terms."""
    m, size = bound.shape[1], 1.0
    for j in range(m):
        lam[p, j], margin[j] = 0.0, 0.0
    for a in range(k):
        step[a] = bound[p, order[a]]
    _substitute(L, k, step)
    for a in range(k):
        value, row = step[a], order[a]
        lam[p, row] = value
        size += abs(value)
        for j in range(m):
            margin[j] += value * gram[g, row, j]
    return size


@inner
def _refine(bound, p, lam, k, L, order, margin, step):  # type: ignore[no-untyped-def]
    """One step of iterative refinement: the residual is that of the products, not of the factor."""
    for a in range(k):
        step[a] = bound[p, order[a]] - margin[order[a]]
    _substitute(L, k, step)
    for a in range(k):
        lam[p, order[a]] = max(lam[p, order[a]] + step[a], 0.0)


@inner
def _substitute(L, k, step):  # type: ignore[no-untyped-def]
    """In place, x with L Lᵀ x = step."""
    for a in range(k):
        value = step[a]
        for c in range(a):
            value -= L[a, c] * step[c]
        step[a] = value / L[a, a]
    for a in range(k - 1, -1, -1):
        value = step[a] / L[a, a]
        step[a] = value
        for c in range(a):
            step[c] -= value * L[a, c]
