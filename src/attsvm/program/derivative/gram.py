"""The derivative in the Frobenius norm, all runs at once, by the Gram matrix of the active rows.

    W = Σ μ_j A_j,    A W = b;    K q = A W̄ + μ̄,  K = A Aᵀ,    P = W̄ − Aᵀ q,    Ā_j = μ_j P − q_j W

An example i that falls short has Σ_j μ_j = C_i: its rows are those of the reference token, with multiplier
C_i − Σ μ_j, and differences to it, which stay equal to zero. So K has no more rows than W has entries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Float
from attsvm.numbers.compiled import compiled, inner
from attsvm.program.constraints import TINY
from attsvm.program.derivative.optimum import Optimum
from attsvm.program.derivative.tolerances import TOLERANCES

DEPENDENT = TOLERANCES.dependent  # a constant of the compiled code


class Cotangents(NamedTuple):
    """Of keys (r, n, T, d), queries (r, n, e), required margins and prices (r, n)."""

    keys: Float
    queries: Float
    required: Float
    price: Float


class Workspace(NamedTuple):
    """Memory for one run of at most k active rows.

    delta (k, d): δ/|δ|; example, token, base (k,): δ = x_base − x_token; length (k,): |δ| |z|.
    factor (k, k): lower Cholesky factor of K; order (k,): the rows that it has; step (k,).
    unit (n, e): z/|z|; size (n,): |z|; like (n, n): their products.
    along (n, d): W̄ z/|z|, then Σ_j q_j δ_j of unit rows.
    """

    delta: Float
    example: NDArray[np.int64]
    token: NDArray[np.int64]
    base: NDArray[np.int64]
    length: Float
    factor: Float
    order: NDArray[np.int64]
    step: Float
    unit: Float
    size: Float
    like: Float
    along: Float


def workspace(optimum: Optimum, k: int) -> Workspace:
    (_, n, _, d), e = optimum.keys.shape, optimum.queries.shape[2]
    example, token, base, order = np.empty((4, k), np.int64)
    length, step = np.empty((2, k))
    rows = np.empty((k, d)), example, token, base, length, np.empty((k, k)), order, step
    return Workspace(*rows, np.empty((n, e)), np.empty(n), np.empty((n, n)), np.empty((n, d)))


@compiled
def basis_of(optimum, rows, s, basis, pivot):  # type: ignore[no-untyped-def]
    """The rows that do not depend on earlier ones (r, n, T), False at first; the least pivots of K (r,)."""
    for run in range(len(optimum.keys)):
        k = _rows(optimum, rows, run, s)
        pivot[run], count = _factor(s, k)
        for a in range(count):
            basis[run, s.example[s.order[a]], s.token[s.order[a]]] = True


@compiled
def solve_runs(optimum, rows, s, W_bar, pull_bar, change, P):  # type: ignore[no-untyped-def]
    """Cotangents of W (r, d, e) and μ (r, n, T) → q, added to change (r, n, T), and P (r, d, e)."""
    for run in range(len(optimum.keys)):
        k = _rows(optimum, rows, run, s)
        _, count = _factor(s, k)
        _solve(rows, run, s, count, W_bar, pull_bar, change)
        _project(run, s, count, W_bar, P)


@inner
def _rows(optimum, rows, run, s):  # type: ignore[no-untyped-def]
    """Write the rows of K at length one, and the queries; the number of rows."""
    n, T, d = optimum.keys.shape[1:]
    e, k = optimum.queries.shape[2], 0
    for i in range(n):
        square = 0.0
        for q in range(e):
            square += optimum.queries[run, i, q] * optimum.queries[run, i, q]
        s.size[i] = np.sqrt(square)
        for q in range(e):
            s.unit[i, q] = optimum.queries[run, i, q] / s.size[i] if square > 0.0 else 0.0
        for other in range(i + 1):
            total = 0.0
            for q in range(e):
                total += s.unit[i, q] * s.unit[other, q]
            s.like[i, other], s.like[other, i] = total, total
        reference = rows.reference[run, i]
        for t in range(T):
            if not rows.active[run, i, t] or t == reference:
                continue
            base, square = optimum.anchor[run, i], 0.0
            if reference >= 0 and not optimum.tied[run, i, t]:
                base = reference
            for c in range(d):
                s.delta[k, c] = optimum.keys[run, i, base, c] - optimum.keys[run, i, t, c]
                square += s.delta[k, c] * s.delta[k, c]
            span = np.sqrt(square)
            s.example[k], s.token[k], s.base[k], s.length[k] = i, t, base, span * s.size[i]
            if s.length[k] > TINY:
                for c in range(d):
                    s.delta[k, c] /= span
            k += 1
    return k


@inner
def _factor(s, k):  # type: ignore[no-untyped-def]
    """The Cholesky factor of K without rows that depend on earlier ones: the least pivot, 1 of no rows, and
    the number of rows in the factor, which s.order lists."""
    least, count, L = 1.0, 0, s.factor
    for j in range(k):
        if not s.length[j] > TINY:
            least = 0.0
            continue
        square = 1.0
        for a in range(count):
            row, total = s.order[a], 0.0
            for c in range(s.delta.shape[1]):
                total += s.delta[j, c] * s.delta[row, c]
            total *= s.like[s.example[j], s.example[row]]
            for x in range(a):
                total -= L[count, x] * L[a, x]
            total /= L[a, a]
            L[count, a] = total
            square -= total * total
        least = min(least, max(square, 0.0))
        if square > DEPENDENT:
            L[count, count], s.order[count] = np.sqrt(square), j
            count += 1
    return least, count


@inner
def _solve(rows, run, s, count, W_bar, pull_bar, change):  # type: ignore[no-untyped-def]
    """K q = A W̄ + μ̄: q of the rows as they are, added to change; of unit rows in s.step (count,)."""
    (n, d), L = s.along.shape, s.factor
    for i in range(n):
        for c in range(d):
            total = 0.0
            for q in range(s.unit.shape[1]):
                total += W_bar[run, c, q] * s.unit[i, q]
            s.along[i, c] = total
    for a in range(count):
        j = s.order[a]
        i, reference, total = s.example[j], rows.reference[run, s.example[j]], 0.0
        for c in range(d):
            total += s.delta[j, c] * s.along[i, c]
        bar = pull_bar[run, i, s.token[j]]
        if s.base[j] == reference:
            bar -= pull_bar[run, i, reference]
        total += bar / s.length[j]
        for x in range(a):
            total -= L[a, x] * s.step[x]
        s.step[a] = total / L[a, a]
    for a in range(count - 1, -1, -1):
        value, j = s.step[a] / L[a, a], s.order[a]
        for x in range(a):
            s.step[x] -= value * L[a, x]
        s.step[a] = value
        change[run, s.example[j], s.token[j]] += value / s.length[j]
        if s.base[j] == rows.reference[run, s.example[j]]:
            change[run, s.example[j], s.base[j]] -= value / s.length[j]


@inner
def _project(run, s, count, W_bar, P):  # type: ignore[no-untyped-def]
    """P = W̄ − Aᵀ q."""
    (n, d), e = s.along.shape, s.unit.shape[1]
    for i in range(n):
        for c in range(d):
            s.along[i, c] = 0.0
    for a in range(count):
        j = s.order[a]
        for c in range(d):
            s.along[s.example[j], c] += s.step[a] * s.delta[j, c]
    for c in range(d):
        for q in range(e):
            P[run, c, q] = W_bar[run, c, q]
        for i in range(n):
            entry = s.along[i, c]
            for q in range(e):
                P[run, c, q] -= entry * s.unit[i, q]


@compiled
def spread(optimum, rows, sums, pull_bar, change, P, out):  # type: ignore[no-untyped-def]
    """Ā_j = μ_j P − q_j W of the active rows, as cotangents of the data, zero at first; in every norm.

    change (r, n, T): q; sums (4, d): products of P and W with z, and Σ μ_j δ_j, Σ q_j δ_j of an example.
    """
    runs, n, T, d = optimum.keys.shape
    e = optimum.queries.shape[2]
    for run in range(runs):
        for i in range(n):
            anchor, reference = optimum.anchor[run, i], rows.reference[run, i]
            for c in range(d):
                sums[0, c], sums[1, c], sums[2, c], sums[3, c] = 0.0, 0.0, 0.0, 0.0
                for q in range(e):
                    sums[0, c] += P[run, c, q] * optimum.queries[run, i, q]
                    sums[1, c] += optimum.W[run, c, q] * optimum.queries[run, i, q]
            for t in range(T):
                if not rows.active[run, i, t]:
                    continue
                pull, q_t = optimum.pull[run, i, t], change[run, i, t]
                if not optimum.tied[run, i, t]:
                    out.required[run, i] += q_t
                for c in range(d):
                    delta = optimum.keys[run, i, anchor, c] - optimum.keys[run, i, t, c]
                    sums[2, c] += pull * delta
                    sums[3, c] += q_t * delta
                    entry = pull * sums[0, c] - q_t * sums[1, c]
                    out.keys[run, i, anchor, c] += entry
                    out.keys[run, i, t, c] -= entry
                    if t == reference:
                        out.price[run, i] += delta * sums[0, c]
            if reference >= 0:
                out.price[run, i] += pull_bar[run, i, reference]
            for c in range(d):
                for q in range(e):
                    entry = P[run, c, q] * sums[2, c] - optimum.W[run, c, q] * sums[3, c]
                    out.queries[run, i, q] += entry
