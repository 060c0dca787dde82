"""Frobenius engines for pools that follow one another: each begins where the pool before has ended."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attsvm.program.engine import Found
from attsvm.program.frobenius import active_set, matrices, pivoting, written_out
from attsvm.program.frobenius.active_set import CONTRADICTORY, COUNT
from attsvm.program.rows import Rows
from attsvm.program.threads import single_thread
from attsvm.tokens import Float

ENOUGH = 1e-10
"""Relative gap above which block pivoting has not found the answer."""


class ActiveSet:
    """The dual active set: new rows are appended, and those that stay keep their place in its factor."""

    def __init__(self, d: int) -> None:
        self.state = active_set.empty(0, d)

    def __call__(self, rows: Rows) -> Found:
        """rows: of vectors; those of the pool before come first."""
        count = int(self.state.sizes[COUNT])
        self._grow(len(rows))
        active_set.fill(self.state, rows.delta[count:], rows.bound[count:], rows.tied[count:])
        status, multipliers = active_set.advance(self.state), np.zeros(len(rows))
        if status == CONTRADICTORY:
            index, weight = active_set.proof(self.state)
            multipliers[index] = weight
            return Found(np.zeros((rows.d, 1)), multipliers, 0.0, separable=False)
        index, weight = active_set.active(self.state)
        multipliers[index] = weight
        return Found(self.state.p[:, None].copy(), multipliers, 0.0)

    def shed(self, kept: NDArray[np.intp]) -> NDArray[np.intp]:
        """The pool loses all rows but these and the active ones."""
        kept = np.union1d(kept, active_set.active(self.state)[0])
        active_set.keep(self.state, kept)
        return kept

    def _grow(self, count: int) -> None:
        """Room for so many rows."""
        s, before = self.state, int(self.state.sizes[COUNT])
        if count <= len(s.rows):
            return
        larger = active_set.empty(2 * count, len(s.p))
        parts = {name: getattr(larger, name) for name in ("rows", "bound", "equality", "inside", "reach")}
        for name, array in parts.items():
            array[:before] = getattr(s, name)[:before]
        self.state = s._replace(**parts)


class Pivoted:
    """Block pivoting from the multipliers of the pool before; where that fails, what suits the pool alone."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.known: Float = np.zeros(shape)

    def __call__(self, rows: Rows) -> Found:
        unit = float(rows.bound.max(initial=0.0))
        if unit == 0:
            return Found(np.zeros((rows.d, rows.e)), np.zeros(len(rows)), 0.0)
        with single_thread():
            found = self._solve(replace(rows, bound=rows.bound / unit))
        self.known = rows.spread(found.multipliers / rows.length, self.known.shape)
        return replace(found, W=found.W * unit)

    def shed(self, kept: NDArray[np.intp]) -> NDArray[np.intp]:
        """All may go: rows are known by their places in the program."""
        return kept

    def _solve(self, rows: Rows) -> Found:
        lam = rows.pick(self.known) * rows.length
        W = rows.combine(lam)
        square = float(np.vdot(W, W))
        if square > 0:  # the multipliers are known up to a factor
            lam *= float(lam @ rows.bound) / square
            found = pivoting.solve(rows, (lam > 0) | rows.tied, lam)
        else:
            found = pivoting.solve(rows, pivoting.start(rows))
        if found is not None and found.gap <= ENOUGH:
            return found
        return written_out.solve(rows) if rows.e == 1 else matrices.solve_rows(rows)
