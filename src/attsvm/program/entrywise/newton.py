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
        self.ratio, self.residual, self.column, self.right, self.rest = np.empty((5, k))
        self.matrix, self.y, self.lift = np.empty((k, k)), np.empty(shape), np.empty(shape)
        self.lower, self.none = np.empty((k, k)), np.zeros(shape)

    def factor(self, V: Float, border: Border | None, rows: tuple[Float, ...]) -> tuple[float, float]:
        """Factor K at  rows = (s, λ, bound, margins), all (k,), s = 0 for ties; V (d, e) > 0.

        Returns Σ |λ_j r_j|, where r is what the rows miss, and Σ λ_j b_j.
        """
        self.along, self.c = (border.direction, border.stiffness) if border else (self.none, 1.0)
        self.V, own = V, (self.ratio, self.residual, self.column, self.rest)
        short, value = _prepare(self.structure, V, self.along, self.c, rows, own, self.matrix)
        self._factor()
        return float(short), float(value)

    def _factor(self) -> None:
        """The lower Cholesky factor; the diagonal is raised until there is one.

        Each entry is raised relative to itself: the diagonal spans twenty orders of magnitude.
        """
        diagonal = np.einsum("ii->i", self.matrix)
        for raised in RAISED:
            diagonal *= 1.0 + raised
            if len(diagonal) < BLOCKED:
                exists = cholesky(self.matrix, self.lower)
            else:  # transposed, because LAPACK counts by columns
                upper, info = dpotrf(self.matrix.T, clean=0)
                self.lower, exists = upper.T, info == 0
            if exists:
                return
        raise np.linalg.LinAlgError("the Newton matrix is not positive")

    def respond(self, offset: Float, pairs: Pairs, refined: bool) -> float:
        """The step of the rows' pairs when  dW = y + offset,  y = V ∘ dM + U t:  x = dλ = K⁻¹ r.

        Keeps y and lift = dM (d, e); returns t = aᵀx / c.
        """
        rows = self.ratio, self.residual, self.column, self.right, self.rest, *pairs.rows
        entries = self.V, self.along, offset, self.y, self.lift
        return float(_respond(self.structure, entries, self.c, rows, self.lower, refined))


@compiled
def _prepare(structure, V, along, c, rows, own, matrix):  # type: ignore[no-untyped-def]
    columns, queries, edges = structure
    slack, multipliers, bound, margin = rows
    ratio, residual, column, rest = own
    margins(columns, queries, edges, along, column)
    gram(columns, queries, edges, V, rest, matrix)
    short = value = 0.0
    for j in range(len(slack)):
        ratio[j] = slack[j] / multipliers[j] if slack[j] > 0.0 else 0.0
        residual[j] = slack[j] + bound[j] - margin[j]
        short += abs(multipliers[j] * residual[j])
        value += multipliers[j] * bound[j]
        for i in range(j):
            matrix[j, i] += column[j] * column[i] / c
        matrix[j, j] += column[j] * column[j] / c + ratio[j]
    return short, value


@compiled
def _respond(structure, entries, c, rows, lower, refined):  # type: ignore[no-untyped-def]
    columns, queries, edges = structure
    V, along, offset, y, lift = entries
    ratio, residual, column, right, rest, pull, ds, x = rows
    margins(columns, queries, edges, offset, rest)
    y[:] = 0.0
    for j in range(len(x)):
        right[j] = rest[j] = residual[j] - rest[j] + pull[j]
        x[j] = 0.0
    t = 0.0
    for turn in range(1 + refined):
        if turn:  # y and t are refined with x: new products with V, up to 1e13, would undo the refinement
            margins(columns, queries, edges, y, rest)
            for j in range(len(x)):
                rest[j] = right[j] - rest[j] - ratio[j] * x[j]
        solve(lower, rest)
        combine(columns, queries, edges, rest, lift)
        beyond = 0.0
        for j in range(len(x)):
            beyond += column[j] * rest[j] / c
            x[j] += rest[j]
        for a in range(len(y)):
            for b in range(y.shape[1]):
                y[a, b] += V[a, b] * lift[a, b] + beyond * along[a, b]
        t += beyond
    for j in range(len(x)):
        ds[j] = pull[j] - ratio[j] * x[j]
    combine(columns, queries, edges, x, lift)
    return t
