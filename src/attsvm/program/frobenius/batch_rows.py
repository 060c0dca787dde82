"""Compiled passes over the rows of many small matrix problems: to length one, and their margins."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.program.compiled import compiled, inner
from attsvm.program.frobenius.unit_rows import TINY
from attsvm.tokens import Bool, Float


class Small(NamedTuple):
    """Constraints of all runs as plain arrays, the runs axis first."""

    keys: Float
    queries: Float
    anchor: NDArray[np.intp]
    active: Bool
    tied: Bool
    required: Float


class UnitRows(NamedTuple):
    """The m = n (T − 1) rows of each run at length one, δ/|δ| times z/|z|; zero where there is no row.

    delta (r, m, d), query (r, n, e). length (r, m): |δ| |z|, one where there is no row.
    bound (r, m): largest one; negative on a row of length zero that asks for a margin.
    free (r, m): the equality rows.
    """

    delta: Float
    query: Float
    length: Float
    bound: Float
    free: Bool

    @classmethod
    def empty(cls, data: Small) -> UnitRows:
        runs, n, T, d = data.keys.shape
        m = n * (T - 1)
        rows = np.empty((runs, m, d)), np.empty(data.queries.shape), np.empty((runs, m))
        return cls(*rows, np.empty((runs, m)), np.empty((runs, m), bool))


@compiled
def fill(data: Small, out: UnitRows) -> None:
    """Write the unit rows, example after example, the anchor left out."""
    runs, n, T = data.active.shape
    for run in range(runs):
        a, largest = np.int64(0), 0.0  # the literal 0 would compile the callee twice
        for i in range(n):
            size = _unit_query(data.queries, run, i, out.query)
            first, asked = data.anchor[run, i], data.required[run, i]
            for t in range(T):
                if t == first:
                    continue
                active, tied = data.active[run, i, t], data.tied[run, i, t]
                length = _unit_row(data.keys, run, i, first, t, out.delta, a, size if active else 0.0)
                bound = asked if active and not tied else 0.0
                out.free[run, a] = tied and length > TINY
                out.length[run, a] = length if length > TINY else 1.0
                out.bound[run, a] = bound / length if length > TINY else -bound
                largest = max(largest, out.bound[run, a])
                a += 1
        if largest > 0.0:
            for b in range(a):
                out.bound[run, b] /= largest


@inner
def _unit_query(queries, run, i, out):  # type: ignore[no-untyped-def]
    """Write z/|z| of one example; return |z|."""
    square, e = 0.0, queries.shape[2]
    for q in range(e):
        square += queries[run, i, q] * queries[run, i, q]
    size = np.sqrt(square)
    for q in range(e):
        out[run, i, q] = queries[run, i, q] / size if size > 0.0 else 0.0
    return size


@inner
def _unit_row(keys, run, i, first, t, out, a, size):  # type: ignore[no-untyped-def]
    """Write δ/|δ| as row a, or zero; return the length |δ| |z| of the row, given |z|."""
    square, d = 0.0, keys.shape[3]
    for q in range(d):
        difference = keys[run, i, first, q] - keys[run, i, t, q]
        out[run, a, q] = difference
        square += difference * difference
    span = np.sqrt(square)
    scale = 1.0 / span if span * size > TINY else 0.0
    for q in range(d):
        out[run, a, q] *= scale
    return span * size


@compiled
def compare(unit: UnitRows, lam: Float, directions: Float, found: Float) -> None:
    """What the rows say about W, given as its directions W z_i (r, n, d), and about λ (r, m).

    found (r, 3) out: b·λ, the least margin per bound, and the largest error of a row without bound.
    """
    runs, n, d = directions.shape
    others = lam.shape[1] // n
    for run in range(runs):
        lower, least, short = 0.0, np.inf, 0.0
        for i in range(n):
            for a in range(i * others, (i + 1) * others):
                margin, bound = 0.0, unit.bound[run, a]
                for q in range(d):
                    margin += unit.delta[run, a, q] * directions[run, i, q]
                lower += bound * lam[run, a]
                if bound != 0.0:
                    least = min(least, margin / bound)
                else:
                    short = max(short, abs(margin) if unit.free[run, a] else -margin)
        found[run, 0], found[run, 1], found[run, 2] = lower, least, short
