"""Frobenius engines for pools that follow one another: each begins where the pool before has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attsvm.numbers import Bool, Float
from attsvm.numbers.threads import single_thread
from attsvm.program.frobenius import active_set, contradiction
from attsvm.program.frobenius.active_set import CONTRADICTORY, COUNT
from attsvm.program.frobenius.pivoting import solve_by_pivoting
from attsvm.program.rows import Candidate, Rows, Span
from attsvm.program.working_set import Algorithm, Stage, room

EXACT, CLOSED = 1e-10, 1e-9
"""Relative gap above which block pivoting has not found the answer; and below which nothing else is tried."""

POOL = 48
"""Rows per unknown in a pool at most."""

Table = Callable[[Rows], list[Algorithm]]
"""What to try on some rows, fastest first."""


class ActiveSet:
    """The dual active set over dense rows: new rows are appended, the others keep their place in its factor.

    Of a pool that grows too large half stays. Rows of vectors are read where the pool has them; rows of
    matrices are written out here.
    """

    def __init__(self, unknowns: int) -> None:
        self.state = active_set.empty(0, unknowns)
        self.pool: Rows | None = None
        self.order = np.zeros(0, np.intp)

    def __call__(self, rows: Rows) -> Stage:
        """rows: those of the pool before, less those it let go, and more."""
        self._append(rows)
        contradictory, multipliers = active_set.advance(self.state) == CONTRADICTORY, np.zeros(len(rows))
        index, weight = active_set.carriers(self.state, contradictory)
        multipliers[self.order[index]] = weight
        if contradictory:
            return Stage(Candidate(np.zeros((rows.d, rows.e)), multipliers, 0.0, separable=False))
        W = self.state.p.reshape(rows.d, rows.e).copy()
        needed = rows.tied.copy()
        needed[self.order] |= self.state.inside[: len(rows)]
        kept = nearest(rows, W, needed, dense=True)
        if kept is not None:
            self._keep(kept, shared=rows.e == 1)
            rows = rows.some(kept)
        self.pool = rows
        return Stage(Candidate(W, multipliers, 0.0), retained=kept)

    def _append(self, rows: Rows) -> None:
        """Take in what is new; `order` (count,) says where among these rows each row of the state is."""
        new = np.ones(len(rows), bool)
        if self.pool is not None:
            before = rows.places(self.pool)
            new[before], self.order = False, before[self.order]
        added = np.flatnonzero(new)
        self.order = np.concatenate([self.order, added])
        self._grow(len(rows), shared=rows.e == 1)
        if rows.e == 1:
            self.state = self.state._replace(rows=rows.delta)
        else:
            self.state.rows[len(rows) - len(added) : len(rows)] = rows.some(added).dense
        active_set.append(self.state, rows.bound[added], rows.tied[added])

    def _keep(self, kept: Bool, shared: bool) -> None:
        """Let the other rows go; shared: whoever owns the memory of the rows moves them."""
        stay = np.flatnonzero(kept[self.order])
        active_set.keep(self.state, stay)
        if not shared:
            self.state.rows[: len(stay)] = self.state.rows[stay]
        self.order = (np.cumsum(kept) - 1)[self.order[stay]]

    def _grow(self, count: int, shared: bool) -> None:
        """Room for so many rows; shared: the rows themselves have memory of the pool."""
        s, before = self.state, int(self.state.sizes[COUNT])
        if count > len(s.bound):
            names = active_set.EACH if shared else (*active_set.EACH, "rows")
            arrays = {}
            for name in names:
                old = getattr(s, name)
                arrays[name] = np.empty((2 * count, *old.shape[1:]), old.dtype)
                arrays[name][:before] = old[:before]
            self.state = s._replace(**arrays)


class Pivoted:
    """Block pivoting from the multipliers of the pool before; where that fails, what suits the pool alone.

    Where nothing is exact, the same in the coordinates that the rows span, if those are fewer.
    """

    def __init__(self, algorithms: Table) -> None:
        self.algorithms = algorithms
        self.known: Float | None = None

    def __call__(self, rows: Rows) -> Stage:
        unit = float(rows.bound.max(initial=0.0))
        if unit == 0:
            return Stage(Candidate(np.zeros((rows.d, rows.e)), np.zeros(len(rows)), 0.0))
        with single_thread():
            candidate = self._solve(replace(rows, bound=rows.bound / unit))
        if not candidate.separable:
            return Stage(candidate)
        self.known = rows.spread(candidate.multipliers / rows.length)
        W = candidate.W * unit
        needed = rows.tied | (candidate.multipliers != 0)
        return Stage(replace(candidate, W=W), retained=nearest(rows, W, needed))

    def _solve(self, rows: Rows) -> Candidate:
        candidate = self._again(rows)
        if candidate is None or candidate.gap > EXACT:
            candidate = best_of(self.algorithms, rows)
        if candidate.gap <= CLOSED:
            return candidate
        span = Span.exactly(rows.delta, rows.queries)
        if span.shape == (rows.d, rows.e):
            return candidate
        fewer = best_of(self.algorithms, rows.within(span))
        return replace(fewer, W=span.expand(fewer.W))

    def _again(self, rows: Rows) -> Candidate | None:
        """From the multipliers of the pool before, which are known up to a factor."""
        if self.known is None:
            return None
        lam = rows.pick(self.known) * rows.length
        W = rows.combine(lam)
        square = float(np.vdot(W, W))
        if not square > 0:
            return None
        lam *= float(lam @ rows.bound) / square
        return solve_by_pivoting(rows, (lam > 0) | rows.tied, lam)


def best_of(algorithms: Table, rows: Rows) -> Candidate:
    """The best candidate of the algorithms; the largest bound of the rows is one."""
    best = contradiction.opposite_rows(rows)
    for algorithm in algorithms(rows):
        if best is not None and best.gap <= CLOSED:
            break
        candidate = algorithm(rows)
        if candidate is not None and (best is None or candidate.gap < best.gap):
            best = candidate
    # Where nothing converged: a candidate that certifies nothing.
    return best or Candidate(np.zeros((rows.d, rows.e)), np.zeros(len(rows)))


def nearest(rows: Rows, W: Float, needed: Bool, dense: bool = False) -> Bool | None:
    """Of a pool that is too large the rows that are needed (k,), and others of least slack; else None."""
    most = room(rows, POOL, dense)
    if len(rows) <= most:
        return None
    slack = np.where(needed, -np.inf, rows.margins(W) - rows.bound)
    kept = np.zeros(len(rows), bool)
    kept[np.argsort(slack)[: max(most // 2, int(needed.sum()))]] = True
    return kept
