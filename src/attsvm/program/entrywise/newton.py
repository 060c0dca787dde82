"""The linear system of one Newton step:  K = A diag(V) Aᵀ + a aᵀ/c + diag(s/λ)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.lapack import dpotrf

from attsvm.program.compiled import compiled
from attsvm.program.entrywise.pairs import Pairs
from attsvm.program.entrywise.products import cholesky, combine, gram, margins, solve
from attsvm.program.entrywise.working_rows import WorkingRows
from attsvm.tokens import Float

RAISED = (0.0, 1e-15, 1e-13, 1e-11, 1e-9, 1e-7)
"""Relative increases of the diagonal, in turn, that make dependent rows factorable."""

BLOCKED = 128
"""Rows from which LAPACK's factorisation is faster than the plain one."""


@dataclass(frozen=True, eq=False)
class Border:
    """One more unknown τ of the Newton system: dW has U dτ, U (d, e); stiffness c > 0."""

    direction: Float
    stiffness: float


class Newton:
    """The system over some working rows, and the memory that its steps share."""

    def __init__(self, work: WorkingRows, shape: tuple[int, ...]) -> None:
        self.structure, k = work.structure, work.k
        self.column, self.right, self.rest = np.zeros((3, k))
        self.matrix, self.lower = np.empty((2, k, k))
        self.along, self.y, self.lift, self.more = np.zeros((4, *shape))
        self.c = 1.0

    def factor(self, V: Float, ratio: Float, border: Border | None) -> None:
        """Factor K: V (d, e) > 0, ratio = s/λ (k,) ≥ 0, the border of the ball or none.

        The diagonal is raised until there is a Cholesky factor, each entry relative to itself: the
        diagonal spans twenty orders of magnitude.
        """
        self.V, self.ratio = V, ratio
        gram(*self.structure, V, ratio, self.rest, self.matrix)
        if border is not None:
            self.along, self.c = border.direction, border.stiffness
            margins(*self.structure, self.along, self.column)
            self.matrix += np.outer(self.column, self.column / self.c)
        for raised in RAISED:
            if raised:
                np.einsum("ii->i", self.matrix)[:] *= 1.0 + raised
            if self._factored():
                return
        raise np.linalg.LinAlgError("the Newton matrix is not positive")

    def _factored(self) -> bool:
        if len(self.matrix) < BLOCKED:
            return bool(cholesky(self.matrix, self.lower))
        upper, info = dpotrf(self.matrix.T, clean=0)  # transposed, because LAPACK counts by columns
        self.lower = upper.T
        return bool(info == 0)

    def respond(self, right: Float, offset: Float, x: Float, refined: bool) -> float:
        """Solve  K x = r − A offset,  and  y = V ∘ Aᵀx + U t,  t = aᵀx / c,  refined once if asked.

        Fills x (k,) and keeps y and lift = Aᵀx (d, e); returns t.
        """
        entries = self.V, self.along, offset, self.y, self.lift, self.more
        rows = self.ratio, self.column, right, self.rest, self.right, x
        return float(_respond(self.structure, entries, self.c, rows, self.lower, refined))


@compiled
def _respond(structure, entries, c, rows, lower, refined):  # type: ignore[no-untyped-def]
    columns, queries, edges = structure
    V, along, offset, y, lift, more = entries
    ratio, column, right, rest, image, x = rows
    source, t = offset, 0.0
    for turn in range(1 + refined):
        # y and t are refined with x: new products with V, up to 1e13, would undo the refinement.
        margins(columns, queries, edges, source, image)
        for j in range(len(x)):
            right[j] -= image[j] + ratio[j] * rest[j] if turn else image[j]
            rest[j] = right[j]
        solve(lower, rest)
        combine(columns, queries, edges, rest, more)
        beyond = 0.0
        for j in range(len(x)):
            beyond += column[j] * rest[j] / c
            x[j] = rest[j] + x[j] if turn else rest[j]
        for a in range(len(y)):
            for b in range(y.shape[1]):
                lifted = V[a, b] * more[a, b] + beyond * along[a, b]
                y[a, b] = lifted + y[a, b] if turn else lifted
                lift[a, b] = more[a, b] + lift[a, b] if turn else more[a, b]
        source = y
        t += beyond
    return t
