"""Rows as dense vectors, for the dual active set: all runs of small problems in one compiled loop."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.norms import frobenius
from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import compiled, inlined, read_only
from attsvm.program import bounds
from attsvm.program.answer import Answer, in_shares
from attsvm.program.bounds import relative_gap
from attsvm.program.constraints import TINY, Constraints
from attsvm.program.frobenius import active_set
from attsvm.program.frobenius.active_set import ACTIVE, CONTRADICTORY, COUNT, ENTERING, advance, restart
from attsvm.program.rows import Candidate, Rows

ENTRIES = 1 << 22
"""Numbers in the dense rows of the runs that are solved at once (32 MB)."""


_advance = inlined(advance)


class ShortestPoint(NamedTuple):
    """w (k,), multipliers (m,) with w = Aᵀλ; or, not separable, w = 0 and a Farkas proof."""

    w: Float
    multipliers: Float
    separable: bool


def solve_rows(A: Float, b: Float, equality: Bool | None = None) -> ShortestPoint:
    """The shortest w with A w ≥ b, and equality where stated.

        min ½‖w‖²  subject to  a_jᵀ w ≥ b_j  (= b_j)

    A (m, k), b (m,), equality (m,). If there is none: λ ≥ 0 (free on equalities) with Aᵀλ = 0 and
    bᵀλ > 0, on at most k + 1 rows.
    """
    m, k = A.shape
    tied = np.zeros(m, bool) if equality is None else np.asarray(equality, bool)
    if m < k:  # the answer lies in the span of the rows: work in its coordinates
        basis, coordinates = np.linalg.qr(A.T)
        point = solve_rows(np.ascontiguousarray(coordinates.T), b, tied)
        return point._replace(w=basis @ point.w)
    length, multipliers = lengths(A), np.zeros(m)
    nonzero = np.flatnonzero(length > TINY)
    if nonzero.size < m:
        impossible = np.flatnonzero((length <= TINY) & np.where(tied, b != 0, b > 0))
        if impossible.size:
            multipliers[impossible[0]] = np.sign(b[impossible[0]])
            return ShortestPoint(np.zeros(k), multipliers, False)
        A, b, tied, length = A[nonzero], b[nonzero], tied[nonzero], length[nonzero]
    state = active_set.empty(nonzero.size, k)
    np.divide(A, length[:, None], out=state.rows)
    active_set.append(state, b / length, tied)
    separable = advance(state) != CONTRADICTORY
    index, weight = active_set.carriers(state, not separable)
    multipliers[nonzero[index]] = weight / length[index]
    return ShortestPoint(state.p if separable else np.zeros(k), multipliers, separable)


def lengths(A: Float) -> Float:
    """Length of each row: (…, m, k) → (…, m)."""
    return np.sqrt(np.einsum("...j,...j->...", A, A))


def solve_dense(rows: Rows) -> Candidate:
    """The shortest W of some rows, and its gap."""
    w, multipliers, separable = solve_rows(rows.dense, rows.bound, rows.tied)
    W = w.reshape(rows.d, rows.e)
    return Candidate(
        W, multipliers, bounds.gap(rows, frobenius, W, multipliers) if separable else 0.0, separable
    )


def solve_runs_dense(program: Constraints) -> Answer:
    """The shortest W of every run of a batch of small problems."""
    return in_shares(_solve_share, program, ENTRIES // (program.n * program.T * program.d * program.e))


def _solve_share(program: Constraints) -> Answer:
    runs, m, N = len(program.keys), program.n * program.T, program.d * program.e
    tied, bound = program.tied.reshape(runs, m), program.bound.reshape(runs, m)
    arrays = tuple(map(read_only, (program.keys, program.queries, program.anchor, program.active)))
    unit, length, (live, real) = np.zeros((runs, m, N)), np.ones((runs, m)), np.zeros((2, runs, m), bool)
    unit_rows(arrays, unit, length, live, real)
    if m < N:  # each W lies in the span of its rows: their coordinates there
        unit = np.asarray(np.linalg.qr(unit.swapaxes(1, 2), mode="r"))
        unit = np.ascontiguousarray(unit.swapaxes(1, 2))
    k = unit.shape[2]
    w, weight, separable = np.zeros((runs, k)), np.zeros((runs, m)), np.zeros(runs, bool)
    size, steep, gap = np.ones(runs), np.ones(runs), np.full(runs, np.inf)
    memory = active_set.empty(m, k), np.zeros(m, np.int64)
    solve_all((unit, bound / length, tied, live), *memory, (w, weight, separable, size, steep, gap))
    # A zero row that requires a margin is a contradiction by itself.
    impossible = (bound > 0) & ~real
    hopeless = impossible.any(1)
    if hopeless.any():
        w[hopeless], separable[hopeless], gap[hopeless] = 0.0, False, np.inf
        size[hopeless] = steep[hopeless] = 1.0
        weight[hopeless] = np.arange(m) == impossible[hopeless].argmax(1)[:, None]
    multipliers = (weight / length / steep[:, None]).reshape(program.active.shape)
    if k == N:
        W: Float = w.reshape(runs, program.d, program.e)
    else:
        W = program.combine(multipliers) * (separable * np.linalg.norm(w, axis=1))[:, None, None]
    return Answer(W / size[:, None, None], multipliers, separable, gap)


@compiled
def unit_rows(problems, out, length, live, real):  # type: ignore[no-untyped-def]
    """The active rows at length one (r, m, d e), and their lengths (r, m), one where a row is not live.

    problems: keys (r, n, T, d), queries (r, n, e), anchor (r, n), active (r, n, T). Zero at first: out;
    live (r, m): active rows that can be divided by their length; real (r, m): those that are not zero.
    """
    keys, queries, anchor, active = problems
    runs, n, T, d = keys.shape
    e = queries.shape[2]
    for run in range(runs):
        for j in range(n * T):
            i, t, square = j // T, j % T, 0.0
            if not active[run, i, t]:
                continue
            first = anchor[run, i]
            for c in range(d):
                delta = keys[run, i, first, c] - keys[run, i, t, c]
                for q in range(e):
                    entry = delta * queries[run, i, q]
                    out[run, j, c * e + q] = entry
                    square += entry * entry
                    if entry != 0.0:
                        real[run, j] = True
            if np.sqrt(square) > TINY:
                length[run, j], live[run, j] = np.sqrt(square), True
                for k in range(d * e):
                    out[run, j, k] /= length[run, j]


@compiled
def solve_all(problems, s, names, out):  # type: ignore[no-untyped-def]
    """Solve every run, all rows of a run at once: one loop, for a call per run would cost more.

    problems: rows of length one (r, m, k), bound, tied and live (r, m): rows that are not zero.
    s, names (m,): memory. out: w (r, k), multipliers (r, m) and separable (r,), all zero before; what divides
    w and the multipliers (r,), so that the margins are the required ones and |Σ λ_j A_j| = 1, one before, and
    the gap (r,), infinite before: they stay so in runs that have no W.
    """
    (rows, bound, tied, live), (W, multipliers, separable, size, steep, gap) = problems, out
    for run in range(len(separable)):
        restart(s)
        count, least, gained = 0, np.inf, 0.0
        for j in range(len(names)):
            if live[run, j]:
                for c in range(s.p.size):
                    s.rows[count, c] = rows[run, j, c]
                names[count], s.bound[count], s.equality[count] = j, bound[run, j], tied[run, j]
                s.inside[count], s.reach[count] = False, -1.0
                count += 1
            elif bound[run, j] > 0.0:  # too short a row to be divided by its length: not measured here
                least = 0.0
        s.sizes[COUNT] = count
        contradictory = _advance(s) == CONTRADICTORY
        q = s.sizes[ACTIVE]
        for place in range(q):
            multipliers[run, names[s.active[place]]] = s.weight[place]
        if contradictory:
            multipliers[run, names[s.sizes[ENTERING]]] = s.weight[q]
            continue
        separable[run] = True
        for j in range(count):
            if s.bound[j] > 0.0:
                margin = 0.0
                for c in range(s.p.size):
                    margin += s.rows[j, c] * s.p[c]
                least = min(least, margin / s.bound[j])
        for place in range(q):
            gained += s.weight[place] * s.bound[s.active[place]]
        square, total = 0.0, 0.0
        for c in range(s.p.size):
            W[run, c], combined = s.p[c], 0.0
            for place in range(q):
                combined += s.weight[place] * s.rows[s.active[place], c]
            square, total = square + s.p[c] * s.p[c], total + combined * combined
        if 0.0 < least < np.inf and total > 0.0 and square > 0.0:
            size[run], steep[run] = least, np.sqrt(total)
            gap[run] = relative_gap(gained / steep[run], least, np.sqrt(square))
