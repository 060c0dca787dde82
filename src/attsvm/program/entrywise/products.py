"""Products with rows  A_j = δ_j z_jᵀ  in their structure, compiled: small ones would drown in NumPy's calls.

columns (d, k): δ, transposed, rows sorted by query; queries (groups, e); edges (groups + 1,): where the
rows of each query begin and end.
"""

from __future__ import annotations

from attsvm.program.compiled import compiled


@compiled
def margins(columns, queries, edges, W, out):  # type: ignore[no-untyped-def]
    """δ_jᵀ W z_j: W (d e,) → out (k,)."""
    for g in range(len(queries)):
        for j in range(edges[g], edges[g + 1]):
            out[j] = 0.0
        for a in range(len(columns)):
            image = 0.0
            for b in range(queries.shape[1]):
                image += W[a * queries.shape[1] + b] * queries[g, b]
            for j in range(edges[g], edges[g + 1]):
                out[j] += image * columns[a, j]


@compiled
def combine(columns, queries, edges, multipliers, out):  # type: ignore[no-untyped-def]
    """Σ λ_j δ_j z_jᵀ: λ (k,) → out (d e,)."""
    e = queries.shape[1]
    for a in range(len(columns)):
        for b in range(e):
            out[a * e + b] = 0.0
        for g in range(len(queries)):
            total = 0.0
            for j in range(edges[g], edges[g + 1]):
                total += multipliers[j] * columns[a, j]
            for b in range(e):
                out[a * e + b] += total * queries[g, b]


@compiled
def gram(columns, queries, edges, V, column, diagonal, scaled, out):  # type: ignore[no-untyped-def]
    """The lower triangle of  A diag(V) Aᵀ + a aᵀ + diag(θ):  V (d e,), a and θ (k,) → out (k, k).

    scaled (k,): scratch.
    """
    for g in range(len(queries)):
        stop = edges[g + 1]
        for i in range(edges[g], stop):
            for j in range(stop):
                out[i, j] = column[i] * column[j]
            out[i, i] += diagonal[i]
        for a in range(len(columns)):
            for h in range(g + 1):
                between = 0.0
                for b in range(queries.shape[1]):
                    between += V[a * queries.shape[1] + b] * queries[g, b] * queries[h, b]
                for j in range(edges[h], edges[h + 1]):
                    scaled[j] = between * columns[a, j]
            for i in range(edges[g], stop):
                weight = columns[a, i]
                for j in range(stop):
                    out[i, j] += weight * scaled[j]
