"""Rows written out as vectors, for the dual active set: all runs of small problems in one compiled loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.norms import frobenius
from attsvm.program import bounds
from attsvm.program.compiled import compiled
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer, Found
from attsvm.program.frobenius import active_set
from attsvm.program.frobenius.active_set import ACTIVE, CONTRADICTORY, COUNT, ENTERING, advance, restart
from attsvm.program.passes import TINY
from attsvm.program.rows import Rows
from attsvm.tokens import Bool, Float

ENTRIES = 1 << 22
"""Numbers in the rows of the runs that are written out at once (32 MB)."""


def solve(rows: Rows) -> Found:
    """The shortest W of some rows, and its gap."""
    found = shortest(rows)
    measured = bounds.gap(rows, frobenius, found.W, found.multipliers) if found.separable else 0.0
    return replace(found, gap=measured)


def shortest(rows: Rows) -> Found:
    """The same, not measured."""
    w, multipliers, separable = active_set.solve_rows(rows.dense, rows.bound, rows.tied)
    return Found(w.reshape(rows.d, rows.e), multipliers, separable=separable)


def solve_runs(program: Constraints) -> Answer:
    """The shortest W of every run of a batch of small problems."""
    each = program.n * program.T * program.d * program.e
    runs, size = len(program.keys), max(1, ENTRIES // each)
    if runs <= size:
        W, multipliers, separable, gap = _solve(program)
    else:
        parts = [_solve(program.part(slice(k, k + size))) for k in range(0, runs, size)]
        W, multipliers, separable, gap = (np.concatenate(x) for x in zip(*parts, strict=True))
    return Answer(W, multipliers, separable, scaled=bool((gap < np.inf).all()), gap=gap)


def _solve(program: Constraints) -> tuple[Float, Float, Bool, Float]:
    runs, m, N = len(program.keys), program.n * program.T, program.d * program.e
    delta, z = program.all_differences, program.queries[..., None, :]
    A = delta * z if program.e == 1 else delta[..., None] * z[..., None, :]
    A = A.reshape(runs, m, N)
    active, tied, bound = program.active.reshape(runs, m), program.tied.reshape(runs, m), program.bound
    bound = bound.reshape(runs, m)
    length = active_set.lengths(A)
    live = active & (length > TINY)
    length = np.where(live, length, 1.0)
    unit, real = A / length[..., None], A.any(-1)
    if m < N:  # each W lies in the span of its rows: their coordinates there
        unit = np.asarray(np.linalg.qr(unit.swapaxes(1, 2), mode="r"))
        unit = np.ascontiguousarray(unit.swapaxes(1, 2))
    k = unit.shape[2]
    w, weight, separable = np.zeros((runs, k)), np.zeros((runs, m)), np.zeros(runs, bool)
    memory = active_set.empty(m, k), np.zeros(m, np.int64)
    solve_all((unit, bound / length, tied, live), *memory, (w, weight, separable))
    # A zero row that asks for a margin is its own contradiction.
    impossible = (bound > 0) & ~real
    alone = impossible.any(1)
    if alone.any():
        w[alone], separable[alone] = 0.0, False
        weight[alone] = np.arange(m) == impossible[alone].argmax(1)[:, None]
    size, steep, gap = _at_margin_one(unit, bound / length, w, weight)
    multipliers = (weight / length / steep[:, None]).reshape(program.active.shape)
    if k == N:
        W: Float = w.reshape(runs, program.d, program.e)
    else:
        W = program.combine(multipliers) * (separable * np.linalg.norm(w, axis=1))[:, None, None]
    return W / size[:, None, None], multipliers, separable, gap


def _at_margin_one(unit: Float, bound: Float, w: Float, weight: Float) -> tuple[Float, Float, Float]:
    """What divides W and λ (r,), so that the margins are those asked for and |Σ λ_j A_j| = 1, and the gap.

    Both are one, and the gap infinite, in runs that have no W.
    """
    margins, asks = np.einsum("rmk,rk->rm", unit, w), bound > 0
    least = np.divide(margins, bound, out=np.full(bound.shape, np.inf), where=asks).min(1)
    total = np.einsum("rmk,rm->rk", unit, weight)
    steep, size = (np.sqrt(np.einsum("rk,rk->r", x, x)) for x in (total, w))
    with np.errstate(all="ignore"):
        gap = 1.0 - np.einsum("rm,rm->r", weight, bound) / steep * least / size
    good = (least > 0) & (least < np.inf) & np.isfinite(gap)
    return np.where(good, least, 1.0), np.where(good, steep, 1.0), np.where(good, gap, np.inf)


@compiled
def solve_all(problems, s, names, out):  # type: ignore[no-untyped-def]
    """Solve every run, all rows of a run at once.

    problems: rows of length one (r, m, k), bound, tied and live (r, m): rows that are not zero.
    s, names (m,): memory. out: w (r, k), multipliers (r, m) and separable (r,), all zero before.
    """
    (rows, bound, tied, live), (W, multipliers, separable) = problems, out
    for run in range(len(separable)):
        restart(s)
        count = 0
        for j in range(len(names)):
            if live[run, j]:
                for c in range(s.p.size):
                    s.rows[count, c] = rows[run, j, c]
                names[count], s.bound[count], s.equality[count] = j, bound[run, j], tied[run, j]
                s.inside[count], s.reach[count] = False, -1.0
                count += 1
        s.sizes[COUNT] = count
        contradictory = advance(s) == CONTRADICTORY
        q = s.sizes[ACTIVE]
        for place in range(q):
            multipliers[run, names[s.active[place]]] = s.weight[place]
        if contradictory:
            multipliers[run, names[s.sizes[ENTERING]]] = s.weight[q]
            continue
        separable[run] = True
        for c in range(s.p.size):
            W[run, c] = s.p[c]
