"""Proofs that no weight separates: zero rows, opposite rows, and short rays from growing multipliers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm.program.frobenius.active_set import solve_rows
from attsvm.program.frobenius.gram_dual import INFEASIBLE, SOLVED, Quadratic, dual_active_set, space
from attsvm.program.frobenius.unit_rows import RESIDUAL, Found, UnitRows
from attsvm.tokens import Bool, Float

STEEP = 1e-6
"""|Σ λ̂_j â_j| per multiplier below which a method that still runs is asked for a proof."""

FEW = 1000
"""Rows among which a contradiction is sought by the dual active set."""

DENSE = 1 << 22
"""Largest number of entries of the rows written out, where the Gram matrix has too few digits."""


def at_once(unit: UnitRows) -> Found | None:
    """Contradictions that need no search: a row of length zero that asks for a margin, opposite rows."""
    empty = np.argwhere(~unit.live & (unit.rows.bound > 0))
    if len(empty):
        return _proof(unit, _ones(unit, *empty[:1].T))
    return _opposite_rows(unit)


def _opposite_rows(unit: UnitRows) -> Found | None:
    """Two rows that point in opposite directions, found by sorting the margins of a random weight.

    Opposite rows have margins of opposite sign and equal size; candidates are checked exactly.
    """
    random = np.random.default_rng(0)
    W = np.outer(random.standard_normal(unit.rows.d), random.standard_normal(unit.rows.e))
    example, token = np.nonzero(unit.live)
    value = unit.margins(W)[example, token]
    order = np.argsort(np.abs(value))
    first, second = order[:-1], order[1:]
    close = np.abs(value[first] + value[second]) <= 1e-11 * np.abs(value[first])
    for pair in zip(first[close], second[close], strict=True):
        lam = _ones(unit, example[list(pair)], token[list(pair)])
        if is_proof(unit, lam):
            return _proof(unit, lam)
    return None


def is_proof(unit: UnitRows, lam: Float) -> bool:
    """Whether λ̂ ≥ 0 on inequalities, Σ λ̂_j b_j > 0 and Σ λ̂_j â_j = 0 up to rounding."""
    weight = float(lam[unit.bound > 0].sum())
    if weight <= 0 or (lam[~unit.free] < 0).any():
        return False
    example, token = np.nonzero(lam)
    delta, queries = unit.named(example, token)
    sum_of_rows = (lam[example, token, None] * delta).T @ queries
    return float(np.linalg.norm(sum_of_rows)) <= RESIDUAL * weight


def ray(unit: UnitRows, growth: Float) -> Found | None:
    """A proof on few rows, sought among those whose multipliers grow; None when these have none.

    growth (n, T): multipliers of a method that diverges. Rows of a contradiction grow without
    bound and dwarf the others.
    """
    size = np.where(unit.free, np.abs(growth), np.maximum(growth, 0.0))
    for fraction in (1e-2, 1e-5):
        heavy = unit.live & (size > fraction * size.max())
        if heavy.sum() <= FEW:
            found = _among(unit, heavy)
            if found is not None:
                return _proof(unit, found)
    return None


def _among(unit: UnitRows, chosen: Bool) -> Float | None:
    """A proof that uses only the chosen rows."""
    example, token = np.nonzero(chosen)
    delta, queries = unit.named(example, token)
    bound, free = unit.bound[chosen], unit.free[chosen]
    K = (delta @ delta.T) * (queries @ queries.T)
    problem = Quadratic(K[None], bound[None], free[None], free[None].copy())
    part, status, out = np.zeros((1, len(example))), np.zeros(1, np.int64), np.zeros(chosen.shape)
    dual_active_set(problem, part, status, space(len(example)))
    if status[0] == INFEASIBLE:
        out[chosen] = np.where(free, part[0], np.maximum(part[0], 0.0))
        if is_proof(unit, out):
            return out
    if status[0] != SOLVED and len(example) * unit.rows.d * unit.rows.e <= DENSE:
        point = solve_rows(unit.features(example, token), bound, free)
        out[chosen] = point.multipliers
        if not point.separable and is_proof(unit, out):
            return out
    return None


def _ones(unit: UnitRows, example: NDArray[np.intp], token: NDArray[np.intp]) -> Float:
    lam = np.zeros(unit.live.shape)
    lam[example, token] = 1.0
    return lam


def _proof(unit: UnitRows, lam: Float) -> Found:
    return Found(lam, np.zeros((unit.rows.d, unit.rows.e)), 0.0, proof=True)
