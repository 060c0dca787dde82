"""Products with rows  A_j = δ_j z_jᵀ  in their structure, compiled: small ones would drown in NumPy's calls.

columns (d, k): δ, transposed, rows sorted by query; queries (groups, e); edges (groups + 1,): where the
rows of each query begin and end.
"""

from __future__ import annotations

from attsvm.program.compiled import compiled


@compiled
def margins(columns, queries, edges, W, out):  # type: ignore[no-untyped-def]
    """δ_jᵀ W z_j: W (d, e) → out (k,)."""
    out[:] = 0.0
    for g in range(len(queries)):
        for a in range(len(columns)):
            image = 0.0
            for b in range(queries.shape[1]):
                image += W[a, b] * queries[g, b]
            for j in range(edges[g], edges[g + 1]):
                out[j] += image * columns[a, j]


@compiled
def combine(columns, queries, edges, multipliers, out):  # type: ignore[no-untyped-def]
    """Σ λ_j δ_j z_jᵀ: λ (k,) → out (d, e)."""
    out[:] = 0.0
    for g in range(len(queries)):
        for a in range(len(columns)):
            total = 0.0
            for j in range(edges[g], edges[g + 1]):
                total += multipliers[j] * columns[a, j]
            for b in range(queries.shape[1]):
                out[a, b] += total * queries[g, b]


@compiled
def gram(columns, queries, edges, V, out):  # type: ignore[no-untyped-def]
    """The lower triangle of A diag(V) Aᵀ: V (d, e) → out (k, k)."""
    out[:] = 0.0
    for g in range(len(queries)):
        for h in range(g + 1):
            for a in range(len(columns)):
                between = 0.0
                for b in range(queries.shape[1]):
                    between += V[a, b] * queries[g, b] * queries[h, b]
                for i in range(edges[g], edges[g + 1]):
                    weight = between * columns[a, i]
                    for j in range(edges[h], edges[h + 1]):
                        out[i, j] += weight * columns[a, j]
