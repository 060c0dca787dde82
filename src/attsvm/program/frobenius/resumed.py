"""Frobenius engines for pools that follow one another: each begins where the pool before has ended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.numbers import Bool, Float
from attsvm.numbers.threads import single_thread
from attsvm.program.engine import Found
from attsvm.program.frobenius import active_set
from attsvm.program.frobenius.active_set import CONTRADICTORY, COUNT
from attsvm.program.frobenius.matrices import Table, best_of
from attsvm.program.frobenius.pivoting import solve_by_pivoting
from attsvm.program.rows import Rows

EXACT = 1e-10
"""Relative gap above which block pivoting has not found the answer."""


class ActiveSet:
    """The dual active set: new rows are appended, and those that stay keep their place in its factor.

    most: rows beyond which half of that many stay. The rows themselves are read where the pool has them.
    """

    def __init__(self, d: int, most: int) -> None:
        self.state, self.most = active_set.empty(0, d), most

    def __call__(self, rows: Rows) -> Found:
        """rows: of vectors; those of the pool before come first."""
        count = int(self.state.sizes[COUNT])
        self._grow(len(rows))
        self.state = self.state._replace(rows=rows.delta)
        active_set.append(self.state, rows.bound[count:], rows.tied[count:])
        status, multipliers = active_set.advance(self.state), np.zeros(len(rows))
        if status == CONTRADICTORY:
            index, weight = active_set.proof(self.state)
            multipliers[index] = weight
            return Found(np.zeros((rows.d, 1)), multipliers, 0.0, separable=False)
        index, weight = active_set.active(self.state)
        multipliers[index] = weight
        W, kept = self.state.p[:, None].copy(), None
        if len(rows) > self.most:
            kept = nearest(rows, W, rows.tied | self.state.inside[: len(rows)], self.most // 2)
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
    """Block pivoting from the multipliers of the pool before; where that fails, what suits the pool alone."""

    def __init__(self, shape: tuple[int, ...], most: int, algorithms: Table) -> None:
        self.known: Float = np.zeros(shape)
        self.most, self.algorithms = most, algorithms

    def __call__(self, rows: Rows) -> Found:
        unit = float(rows.bound.max(initial=0.0))
        if unit == 0:
            return Found(np.zeros((rows.d, rows.e)), np.zeros(len(rows)), 0.0)
        with single_thread():
            found = self._solve(replace(rows, bound=rows.bound / unit))
        self.known = rows.spread(found.multipliers / rows.length, self.known.shape)
        W, kept = found.W * unit, None
        if len(rows) > self.most:
            kept = nearest(rows, W, rows.tied | (found.multipliers != 0), self.most // 2)
        return replace(found, W=W, kept=kept)

    def _solve(self, rows: Rows) -> Found:
        lam = rows.pick(self.known) * rows.length
        W = rows.combine(lam)
        square = float(np.vdot(W, W))
        if square > 0:  # the multipliers are known up to a factor
            lam *= float(lam @ rows.bound) / square
            found = solve_by_pivoting(rows, (lam > 0) | rows.tied, lam)
        else:
            found = solve_by_pivoting(rows)
        if found is not None and found.gap <= EXACT:
            return found
        return best_of(self.algorithms, rows)


def nearest(rows: Rows, W: Float, needed: Bool, count: int) -> Bool:
    """The rows that are needed (k,), and of the others those of least slack: so many in all."""
    slack = np.where(needed, -np.inf, rows.margins(W) - rows.bound)
    kept = np.zeros(len(rows), bool)
    kept[np.argsort(slack)[: max(count, int(needed.sum()))]] = True
    return kept
