"""Many small matrix problems at once: one compiled function per run, threads over chunks of runs."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.program.constraints import Constraints
from attsvm.program.contradiction import RESIDUAL
from attsvm.program.engine import Answer
from attsvm.program.gram import (
    INFEASIBLE,
    SOLVED,
    UNRESOLVED,
    Quadratic,
    add_row,
    clear,
    compiled,
    dot_row,
    dot_rows,
    pivot,
    space,
)
from attsvm.program.gram_dual import dual_active_set
from attsvm.program.unit_rows import TINY
from attsvm.tokens import Bool, Float

LARGEST = 256
"""Rows up to which loops on the Gram matrix beat calls to LAPACK."""

GAP = 1e-11
"""Relative gap up to which an answer of the Gram matrix is taken."""


class Small(NamedTuple):
    """Constraints of all runs as plain arrays, the runs axis first."""

    keys: Float
    queries: Float
    anchor: NDArray[np.intp]
    active: Bool
    tied: Bool
    required: Float


class UnitRows(NamedTuple):
    """The m live rows of one run, each scaled to length one: δ/|δ| times z/|z|."""

    delta: Float  # (m, d)
    across: Float  # (d, m), the same numbers
    query: Float  # (n, e)
    likeness: Float  # (m,) z·z_b for the query z at work
    example: NDArray[np.int64]  # (m,)
    token: NDArray[np.int64]  # (m,)
    length: Float  # (m,)


class Output(NamedTuple):
    """Where the runs put their answers: W (runs, d, e), multipliers (runs, n, T), status (runs,)."""

    W: Float
    multipliers: Float
    status: NDArray[np.int64]


def suits(rows: Constraints) -> bool:
    """Whether the problems are small enough for loops on their Gram matrices."""
    return rows.n * (rows.T - 1) <= LARGEST


def solve(rows: Constraints) -> tuple[Answer, Bool]:
    """Answers of all runs, and which of them are final; the others need a slower, exact method."""
    runs = rows.keys.shape[0]
    data = Small(*(_read_only(getattr(rows, name)) for name in Small._fields))
    out = Output(
        np.zeros((runs, rows.d, rows.e)),
        np.zeros((runs, rows.n, rows.T)),
        np.full(runs, UNRESOLVED, np.int64),
    )
    workers = min(os.cpu_count() or 1, -(-runs // 64))
    if workers == 1:
        _solve_chunk(data, out, 0, runs)
    else:
        edges = np.linspace(0, runs, 4 * workers + 1).astype(int)
        with ThreadPoolExecutor(workers) as pool:
            list(pool.map(lambda a, b: _solve_chunk(data, out, a, b), edges[:-1], edges[1:]))
    return Answer(out.W, out.multipliers, out.status != INFEASIBLE), out.status != UNRESOLVED


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """One type for compiled code, whether or not the caller may write to the array."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


# ---------------------------------------------------------------------- compiled


@compiled
def _solve_chunk(data, out, start, stop):  # type: ignore[no-untyped-def]
    """Solve the runs start … stop with one workspace."""
    n, T, d = data.keys.shape[1:]
    m = max(n * (T - 1), 1)
    unit = UnitRows(
        np.empty((m, d)),
        np.empty((d, m)),
        np.empty(data.queries.shape[1:]),
        np.empty(m),
        np.empty(m, np.int64),
        np.empty(m, np.int64),
        np.empty(m),
    )
    problem = Quadratic(np.empty((m, m)), np.empty(m), np.empty(m, np.bool_))
    lam, memory = np.empty(m), space(m)
    for run in range(start, stop):
        count = _unit_rows(data, run, unit, problem)
        if count < 0:  # a row of length zero that asks for a margin is its own contradiction
            row = -1 - count
            out.multipliers[run, row // T, row % T] = 1.0
            out.status[run] = INFEASIBLE
            continue
        out.status[run] = _solve_run(problem, unit, lam[:count], memory, (out.W[run], out.multipliers[run]))


@compiled
def _unit_rows(data, run, unit, problem):  # type: ignore[no-untyped-def]
    """Fill the unit rows, their Gram matrix and bounds (largest 1); their number, or −1 − the zero row."""
    keys, queries = data.keys[run], data.queries[run]
    n, T, d = keys.shape
    m, largest = np.int64(0), 0.0
    for i in range(n):
        size = np.sqrt(dot_rows(queries, i, i, queries.shape[1]))
        for q in range(queries.shape[1]):
            unit.query[i, q] = queries[i, q] / size if size > 0 else 0.0
        first = data.anchor[run, i]
        for t in range(T):
            if not data.active[run, i, t]:
                continue
            for q in range(d):
                unit.delta[m, q] = keys[i, first, q] - keys[i, t, q]
            length = np.sqrt(dot_rows(unit.delta, m, m, d)) * size
            tied = data.tied[run, i, t]
            if length <= TINY:
                if not tied and data.required[run, i] > 0:
                    return -1 - (i * T + t)
                continue
            for q in range(d):
                unit.delta[m, q] *= size / length
                unit.across[q, m] = unit.delta[m, q]
            unit.example[m], unit.token[m], unit.length[m] = i, t, length
            problem.free[m] = tied
            problem.bound[m] = 0.0 if tied else data.required[run, i] / length
            largest = max(largest, problem.bound[m])
            m += 1
    for a in range(m):
        problem.bound[a] /= largest if largest > 0 else 1.0
    _fill_gram(unit, problem.gram, m)
    return m


@compiled
def _fill_gram(unit, gram, m):  # type: ignore[no-untyped-def]
    """K_ab = (δ_a·δ_b)(z_a·z_b), row by row: long sums over b vectorise, short ones over d do not."""
    d, e = unit.delta.shape[1], unit.query.shape[1]
    last = -1
    for a in range(m):
        if unit.example[a] != last:
            last = unit.example[a]
            for b in range(m):
                new = b == 0 or unit.example[b] != unit.example[b - 1]
                unit.likeness[b] = (
                    dot_rows(unit.query, last, unit.example[b], e) if new else unit.likeness[b - 1]
                )
        for b in range(m):
            gram[a, b] = unit.delta[a, 0] * unit.across[0, b]
        for q in range(1, d - 1, 2):  # two at a time: half the traffic with memory
            one, two = unit.delta[a, q], unit.delta[a, q + 1]
            for b in range(m):
                gram[a, b] += one * unit.across[q, b] + two * unit.across[q + 1, b]
        if d % 2 == 0:
            add_row(gram[a], unit.delta[a, d - 1], unit.across, d - 1, m)
        for b in range(m):
            gram[a, b] *= unit.likeness[b]


@compiled
def _solve_run(problem, unit, lam, memory, out):  # type: ignore[no-untyped-def]
    """Block pivoting, then the dual active set where that was not enough; the status of the run."""
    W, multipliers = out
    m = len(lam)
    if not _start(problem, m, memory):
        return SOLVED
    status = SOLVED
    if not pivot(problem, lam, memory) or not _is_optimal(problem, unit, lam, W):
        status = dual_active_set(problem, lam, memory)
        if status == SOLVED and not _is_optimal(problem, unit, lam, W):
            status = UNRESOLVED
        if status == INFEASIBLE and not _is_ray(problem, unit, lam, W):
            status = UNRESOLVED
    if status == INFEASIBLE:
        W[:] = 0.0
    for j in range(m):
        multipliers[unit.example[j], unit.token[j]] = lam[j] / unit.length[j]
    return status


@compiled
def _start(problem, m, memory):  # type: ignore[no-untyped-def]
    """Passive: rows that λ = b serves less than average. False when no row asks for anything."""
    served, asked = 0.0, 0.0
    for j in range(m):
        memory.margin[j] = dot_row(problem.gram, j, problem.bound, m)
        served += memory.margin[j]
        asked += problem.bound[j]
    if asked <= 0:
        return False
    for j in range(m):
        memory.passive[j] = problem.free[j] or memory.margin[j] * asked < problem.bound[j] * served
    return True


@compiled
def _combine(unit, lam, W):  # type: ignore[no-untyped-def]
    """W = Σ λ_j δ_j z_jᵀ; its Frobenius norm."""
    d, e = W.shape
    for q in range(d):
        for p in range(e):
            W[q, p] = 0.0
    m, side = len(lam), np.zeros(d)
    for j in range(m):
        add_row(side, lam[j], unit.delta, j, d)
        i = unit.example[j]
        if j == m - 1 or unit.example[j + 1] != i:
            for q in range(d):
                for p in range(e):
                    W[q, p] += side[q] * unit.query[i, p]
            clear(side)
    squares = 0.0
    for q in range(d):
        squares += dot_rows(W, q, q, e)
    return np.sqrt(squares)


@compiled
def _is_optimal(problem, unit, lam, W):  # type: ignore[no-untyped-def]
    """Whether the gap between b·λ/|W| and |W|/(least margin) is at most GAP, from the rows themselves."""
    size = _combine(unit, lam, W)
    d, e = W.shape
    least, lower = np.inf, 0.0
    side = np.zeros(d)
    last = -1
    for j in range(len(lam)):
        if unit.example[j] != last:
            last = unit.example[j]
            for q in range(d):
                total = 0.0
                for p in range(e):
                    total += W[q, p] * unit.query[last, p]
                side[q] = total
        margin = dot_row(unit.delta, j, side, d)
        lower += problem.bound[j] * lam[j]
        if problem.free[j] or problem.bound[j] == 0:
            if (abs(margin) if problem.free[j] else -margin) > GAP * size:
                return False
        else:
            least = min(least, margin / problem.bound[j])
    return least > 0 and 1.0 - lower / size * least / size <= GAP


@compiled
def _is_ray(problem, unit, lam, W):  # type: ignore[no-untyped-def]
    """Whether Σ λ_j A_j is zero up to rounding while some row with a bound takes part."""
    total = 0.0
    for j in range(len(lam)):
        if problem.bound[j] > 0:
            total += lam[j]
    return _combine(unit, lam, W) <= RESIDUAL * total
