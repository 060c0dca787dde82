"""Proofs that no weight separates: opposite rows, and short rays from growing multipliers."""

from __future__ import annotations

import numpy as np

from attsvm.numbers import Float
from attsvm.program.frobenius.dense import solve_rows
from attsvm.program.rows import Candidate, Rows

STEEP = 1e-6
"""|Σ λ_j A_j| per multiplier below which a proof is sought in the multipliers of a running method."""

RESIDUAL = 1e-12
"""|Σ λ_j A_j|, relative to the multipliers of rows with a bound, that is rounding."""

PROOF_ROWS = 1000
"""Rows among which a contradiction is sought by the dual active set."""

DENSE = 1 << 22
"""Largest number of entries of dense rows."""


def opposite_rows(rows: Rows) -> Candidate | None:
    """Two rows that point in opposite directions, found by sorting the margins of a random weight.

    Opposite rows have margins of opposite sign and equal size; candidates are checked exactly.
    """
    random = np.random.default_rng(0)
    value = rows.margins(np.outer(random.standard_normal(rows.d), random.standard_normal(rows.e)))
    order = np.argsort(np.abs(value))
    first, second = order[:-1], order[1:]
    close = np.abs(value[first] + value[second]) <= 1e-11 * np.abs(value[first])
    for pair in zip(first[close], second[close], strict=True):
        lam = np.zeros(len(rows))
        lam[list(pair)] = 1.0
        if is_proof(rows, lam):
            return proof(rows, lam)
    return None


def is_proof(rows: Rows, lam: Float) -> bool:
    """Whether λ ≥ 0 on inequalities, Σ λ_j b_j > 0 and Σ λ_j A_j = 0 up to rounding."""
    weight = float(lam[rows.bound > 0].sum())
    if weight <= 0 or (lam[~rows.tied] < 0).any():
        return False
    used = np.flatnonzero(lam)
    return float(np.linalg.norm(rows.some(used).combine(lam[used]))) <= RESIDUAL * weight


def steepness(rows: Rows, lam: Float, W: Float) -> float:
    """|Σ λ_j A_j|, which is |W|, per multiplier of a row with a bound: near zero when no weight exists."""
    total = float(lam[rows.bound > 0].sum())
    return float(np.linalg.norm(W)) / total if total > 0 else np.inf


def ray(rows: Rows, growth: Float) -> Candidate | None:
    """A proof on few rows, sought among those whose multipliers grow; None when these have none.

    growth (k,): multipliers of a method that diverges. Rows of a contradiction grow without bound and
    dwarf the others.
    """
    size = np.where(rows.tied, np.abs(growth), np.maximum(growth, 0.0))
    for fraction in (1e-2, 1e-5):
        heavy = np.flatnonzero(size > fraction * size.max())
        if len(heavy) <= PROOF_ROWS:
            heaviest, lam = rows.some(heavy), np.zeros(len(rows))
            point = solve_rows(_coordinates(heaviest), heaviest.bound, heaviest.tied)
            lam[heavy] = point.multipliers
            if not point.separable and is_proof(rows, lam):
                return proof(rows, lam)
    return None


def _coordinates(rows: Rows) -> Float:
    """The rows as vectors (k, ·) that depend on each other as the rows do.

    All entries; where these are many, products with random rank-one matrices, more than there are rows.
    """
    if rows.delta.size * rows.e <= DENSE:
        return rows.dense
    random, count = np.random.default_rng(0), 2 * len(rows) + 20
    left, right = random.standard_normal((rows.d, count)), random.standard_normal((rows.e, count))
    return np.asarray((rows.delta @ left) * (rows.queries @ right)[rows.owner])


def proof(rows: Rows, lam: Float) -> Candidate:
    """A contradiction as a candidate."""
    return Candidate(np.zeros((rows.d, rows.e)), lam, 0.0, separable=False)
