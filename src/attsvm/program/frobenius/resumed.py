"""Frobenius engines for pools that follow one another: each begins where the pool before has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attsvm.numbers import Bool, Float
from attsvm.numbers.threads import single_thread
from attsvm.program.engine import Found
from attsvm.program.frobenius import active_set, contradiction
from attsvm.program.frobenius.active_set import CONTRADICTORY, COUNT
from attsvm.program.frobenius.pivoting import solve_by_pivoting
from attsvm.program.rows import Rows
from attsvm.program.span import Span
from attsvm.program.working_set import Algorithm, room

EXACT, CLOSED = 1e-10, 1e-9
"""Relative gap above which block pivoting has not found the answer; and below which nothing else is tried."""

POOL = 48
"""Rows per unknown in a pool at most."""

Table = Callable[[Rows], list[Algorithm]]
"""What to try on some rows, fastest first."""


class ActiveSet:
    """The dual active set: new rows are appended, and those that stay keep their place in its factor.

    Of a pool that grows too large half stays. The rows themselves are read where the pool has them.
    """

    def __init__(self, d: int) -> None:
        self.state = active_set.empty(0, d)

    def __call__(self, rows: Rows) -> Found:
        """rows: of vectors; those of the pool before come first."""
        count = int(self.state.sizes[COUNT])
        self._grow(len(rows))
        self.state = self.state._replace(rows=rows.delta)
        active_set.append(self.state, rows.bound[count:], rows.tied[count:])
        contradictory, multipliers = active_set.advance(self.state) == CONTRADICTORY, np.zeros(len(rows))
        index, weight = active_set.carriers(self.state, contradictory)
        multipliers[index] = weight
        if contradictory:
            return Found(np.zeros((rows.d, 1)), multipliers, 0.0, separable=False)
        W = self.state.p[:, None].copy()
        kept = nearest(rows, W, rows.tied | self.state.inside[: len(rows)])
        if kept is not None:
            active_set.keep(self.state, np.flatnonzero(kept))
        return Found(W, multipliers, 0.0, kept=kept)

    def _grow(self, count: int) -> None:
        """Room for so many rows."""
        s, before = self.state, int(self.state.sizes[COUNT])
        if count > len(s.bound):
            parts = {name: np.empty(2 * count, getattr(s, name).dtype) for name in active_set.EACH}
            for name, array in parts.items():
                array[:before] = getattr(s, name)[:before]
            self.state = s._replace(**parts)


class Pivoted:
    """Block pivoting from the multipliers of the pool before; where that fails, what suits the pool alone.

    Where nothing is exact, the same in the coordinates that the rows span, if those are fewer.
    """

    def __init__(self, algorithms: Table) -> None:
        self.algorithms = algorithms
        self.known: Float | None = None

    def __call__(self, rows: Rows) -> Found:
        unit = float(rows.bound.max(initial=0.0))
        if unit == 0:
            return Found(np.zeros((rows.d, rows.e)), np.zeros(len(rows)), 0.0)
        with single_thread():
            found = self._solve(replace(rows, bound=rows.bound / unit))
        if not found.separable:
            return found
        self.known = rows.spread(found.multipliers / rows.length)
        W = found.W * unit
        return replace(found, W=W, kept=nearest(rows, W, rows.tied | (found.multipliers != 0)))

    def _solve(self, rows: Rows) -> Found:
        found = self._again(rows)
        if found is None or found.gap > EXACT:
            found = best_of(self.algorithms, rows)
        if found.gap <= CLOSED:
            return found
        span = Span.exactly(rows.delta, rows.queries)
        if span.shape == (rows.d, rows.e):
            return found
        fewer = best_of(self.algorithms, rows.within(span))
        return replace(fewer, W=span.expand(fewer.W))

    def _again(self, rows: Rows) -> Found | None:
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


def best_of(algorithms: Table, rows: Rows) -> Found:
    """The best that an algorithm finds on the rows; their largest bound is one."""
    found = contradiction.opposite_rows(rows)
    for algorithm in algorithms(rows):
        if found is not None and found.gap <= CLOSED:
            break
        other = algorithm(rows)
        if other is not None and (found is None or other.gap < found.gap):
            found = other
    # Where nothing converged: an answer that certifies nothing.
    return found or Found(np.zeros((rows.d, rows.e)), np.zeros(len(rows)))


def nearest(rows: Rows, W: Float, needed: Bool) -> Bool | None:
    """Of a pool that is too large the rows that are needed (k,), and others of least slack; else None."""
    most = room(rows, POOL)
    if len(rows) <= most:
        return None
    slack = np.where(needed, -np.inf, rows.margins(W) - rows.bound)
    kept = np.zeros(len(rows), bool)
    kept[np.argsort(slack)[: max(most // 2, int(needed.sum()))]] = True
    return kept
