"""Products with rows  A_j = δ_j z_jᵀ  in their structure, compiled: small ones would drown in NumPy's calls.

delta (k, d), sorted by query; queries (g, e); edges (g + 1,): where the rows of each query begin and end;
line (d,): scratch. Indices count from zero: a range that might start below would not vectorise.
"""

from __future__ import annotations

import numpy as np

from attsvm.numbers.compiled import compiled, inner


@compiled
def margins(delta, queries, edges, line, W, out):  # type: ignore[no-untyped-def]
    """δ_jᵀ W z_j: W (d e,) → out (k,)."""
    d, e = len(line), queries.shape[1]
    for g in range(len(queries)):
        for a in range(d):
            image = 0.0
            for b in range(e):
                image += W[a * e + b] * queries[g, b]
            line[a] = image
        for j in range(edges[g], edges[g + 1]):
            total = 0.0
            for a in range(d):
                total += delta[j, a] * line[a]
            out[j] = total


@compiled
def combine(delta, queries, edges, line, multipliers, out):  # type: ignore[no-untyped-def]
    """Σ λ_j δ_j z_jᵀ: λ (k,) → out (d e,)."""
    d, e = len(line), queries.shape[1]
    for j in range(d * e):
        out[j] = 0.0
    for g in range(len(queries)):
        for a in range(d):
            line[a] = 0.0
        for j in range(edges[g], edges[g + 1]):
            for a in range(d):
                line[a] += multipliers[j] * delta[j, a]
        for a in range(d):
            for b in range(e):
                out[a * e + b] += line[a] * queries[g, b]


@compiled
def gram(delta, queries, edges, V, column, diagonal, turned, between, scaled, out):  # type: ignore[no-untyped-def]
    """The upper triangle of  A diag(V) Aᵀ + a aᵀ + diag(θ):  V (d e,), a and θ (k,) → out (k, k).

    g² d e + k² d operations, instead of the k² d e of explicit features.
    turned (e, d), between (g, d), scaled (k, d): scratch.
    """
    (k, d), e = delta.shape, queries.shape[1]
    for g in range(len(queries)):
        for b in range(e):
            for a in range(d):
                turned[b, a] = V[a * e + b] * queries[g, b]
        np.dot(queries[g:], turned, between[g:])
        for h in range(g, len(queries)):
            for j in range(edges[h], edges[h + 1]):
                for a in range(d):
                    scaled[j, a] = between[h, a] * delta[j, a]
        np.dot(delta[edges[g] : edges[g + 1]], scaled.T, out[edges[g] : edges[g + 1]])
        for i in range(edges[g], edges[g + 1]):
            for j in range(k):
                out[i, j] += column[i] * column[j]
            out[i, i] += diagonal[i]


@inner
def solve_factored(upper, x):  # type: ignore[no-untyped-def]
    """x := (Uᵀ U)⁻¹ x."""
    for i in range(len(x)):
        x[i] /= upper[i, i]
        known, row, rest = x[i], upper[i, i + 1 :], x[i + 1 :]
        for j in range(len(rest)):
            rest[j] -= known * row[j]
    for i in range(len(x) - 1, -1, -1):
        total, row, rest = x[i], upper[i, i + 1 :], x[i + 1 :]
        for j in range(len(rest)):
            total -= row[j] * rest[j]
        x[i] = total / upper[i, i]
