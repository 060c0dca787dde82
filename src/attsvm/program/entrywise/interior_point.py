"""A primal-dual interior point for  min N(W)  s.t. rows, for every entrywise norm.

The unit ball of the norm is the only part that varies: it relates W to the dual matrix M = Σ λ_j A_j
and its linearisation is diagonal, dW = V ∘ dM + …, so that every norm shares the Newton matrix
A diag(V) Aᵀ + diag(s/λ). The steps are compiled (`newton`, `ball`); here are their memory, the start,
the factorisation, and the rows that join while it runs.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg.lapack import dpotrf

from attsvm.norms import Norm
from attsvm.program.entrywise import newton
from attsvm.program.entrywise.ball import CROSS, CUBE, CURVED
from attsvm.program.entrywise.products import cholesky
from attsvm.program.entrywise.working_rows import WorkingRows
from attsvm.tokens import Bool, Float

LOOSE = 0.1
"""Distance from the boundary, relative to the solution's size, of the first slacks and multipliers."""

LEAST = 1e-13
"""Complementarity, relative to the objective, below which systems only lose digits."""

RAISED = (0.0, 1e-15, 1e-13, 1e-11, 1e-9, 1e-7)
"""Relative increases of the diagonal, in turn, that make dependent rows factorable."""

BLOCKED = 128
"""Rows from which LAPACK's factorisation is faster than the plain one."""

SIGN = np.array([[1.0], [-1.0]])


class Run:
    """One interior point under way: W, and the multipliers λ and slacks of the working rows.

    Starts from any W that is not zero and any multipliers with Σ λ_j b_j > 0.
    The exponent of a curved ball moves from 2 to p while it converges: near p = 1 and p = ∞ the relation
    between W and λ is too steep for Newton's method from afar. pace: the factor by which p − 1, or
    1/(p − 1), shrinks in a step; apart: the complementarity meanwhile, because other rows may become active.
    """

    def __init__(
        self, work: WorkingRows, norm: Norm, pace: tuple[float, float], W: Float, multipliers: Float
    ) -> None:
        self.goal, (self.pace, self.apart) = norm.p, pace
        self.kind = {1.0: CROSS, np.inf: CUBE}.get(norm.p, CURVED)
        self.p = norm.p if self.kind != CURVED else self._nearer(2.0)
        self.size, self.shape = length(W, norm.p), W.shape
        w, bound = W.ravel() / self.size, work.bound / self.size
        multipliers = multipliers / length(work.combine(multipliers), norm.dual.p)
        slack = np.maximum(work.margins(w) - bound, LOOSE * bound.max())
        centre = LOOSE * float(multipliers @ bound) / work.k
        multipliers = np.where(work.tied, multipliers, np.maximum(multipliers, centre / slack))
        self.entries = w, *np.zeros((5, w.size)), np.empty(2 * w.size)
        self.tau, corners = 1.0 + LOOSE, (w[:0], w[:0])
        if self.kind != CURVED:
            M = work.combine(multipliers).ravel()
            to_cube, to_cross = self.tau - SIGN * w, np.maximum(1.0 - SIGN * M, LOOSE)
            corners = (to_cube, _apart(M)) if self.kind == CUBE else (_apart(w), to_cross)
        self._lay_out(work, bound, slack, multipliers, corners)

    def _lay_out(
        self, work: WorkingRows, bound: Float, slack: Float, multipliers: Float, corners: tuple[Float, Float]
    ) -> None:
        """Lay all complementary pairs side by side, those of the ball first; ball and rows share views of them."""
        self.work, self.corners, (k, N) = work, corners[0].size, (work.k, self.entries[0].size)
        a = np.concatenate([corners[0].ravel(), slack * ~work.tied])
        b = np.concatenate([corners[1].ravel(), multipliers])
        self.pairs = a, b, *np.zeros((2, len(a)))
        self.slack, self.multipliers, ds, step = (x[self.corners :] for x in self.pairs)
        self.rows = self.slack, self.multipliers, bound, *np.zeros((6, k))
        self.moves = *np.empty((3, N)), ds, step
        self.matrix, self.lower = np.empty((2, k, k))
        self._settle()

    def _settle(self) -> None:
        size, self.value, gap = newton.settle(self.kind, self.p, self.work.structure, self.entries, self.rows)
        self.size *= size
        self.gap = gap if self.p == self.goal else 1.0

    @property
    def W(self) -> Float:
        """The weight in the units of the rows (d, e)."""
        return self.entries[0].reshape(self.shape) * self.size

    def step(self) -> None:
        """One predictor-corrector step; gap: the relative duality gap over the working rows after it."""
        kind, p, structure = self.kind, self.p, self.work.structure
        c, short = newton.linearise(kind, p, structure, self.pairs, self.entries, self.rows, self.matrix)
        self._factor()
        # Complementarity must not run ahead of feasibility, nor below what the ball allows.
        least = max(short, self.value * (LEAST if p == self.goal else self.apart))
        primal, dtau = newton.advance(
            kind, p, self.tau, c, least, structure, self.pairs, self.entries, self.rows, self.moves, self.lower
        )
        self.tau += primal * dtau
        if kind == CURVED and primal > 0.5:
            self.p = self._nearer(p)
        self._settle()

    def _nearer(self, p: float) -> float:
        if self.goal < 2:
            return max(self.goal, 1 + (p - 1) * self.pace)
        return min(self.goal, 1 + (p - 1) / self.pace)

    def _factor(self) -> None:
        """The Cholesky factor; the diagonal is raised until there is one, each entry relative to itself.

        It spans twenty orders of magnitude.
        """
        for raised in RAISED:
            if raised:
                np.einsum("ii->i", self.matrix)[:] *= 1.0 + raised
            if len(self.matrix) < BLOCKED:
                exists = cholesky(self.matrix, self.lower)
            else:
                upper, info = dpotrf(self.matrix.T, clean=0)  # transposed, because LAPACK counts by columns
                self.lower, exists = upper.T, info == 0
            if exists:
                return
        raise np.linalg.LinAlgError("the Newton matrix is not positive")

    def join(self, work: WorkingRows, old: Bool) -> None:
        """Go on with more rows; old (k,) marks the former ones among them.

        A new row starts on the central path, at its own margin or as far inside as it is outside. The
        ball follows the new M, as far as positive slacks allow: left to Newton's method, the mismatch
        would shrink no faster than V grows.
        """
        a, b = self.pairs[:2]
        mu = float(a @ b) / np.count_nonzero(a)
        bound = work.bound / self.size
        slack = np.maximum(np.abs(work.margins(self.entries[0]) - bound), np.sqrt(mu) * bound.max())
        multipliers = mu / slack
        slack[old], multipliers[old] = self.slack, self.multipliers
        M = work.combine(multipliers).ravel()
        primal, dual = (x[: self.corners].reshape(2, -1) for x in (a, b))
        if self.kind == CROSS:
            exact = 1.0 - SIGN * M
            dual = np.where(exact > 0.5 * dual, exact, dual)
        elif self.kind == CUBE:
            dual = dual + np.maximum(SIGN * (M - dual[0] + dual[1]), 0.0)
        self._lay_out(work, bound, slack, multipliers, (primal, dual))


def length(x: Float, p: float) -> float:
    """‖x‖_p, p in [1, ∞], of all entries: `Entrywise(p).value` without its generality."""
    size = np.abs(x)
    largest = float(size.max())
    if math.isinf(p) or largest == 0:
        return largest
    return largest * float(((size / largest) ** p).sum()) ** (1 / p)


def _apart(x: Float) -> Float:
    """Two positive arrays (2, N) whose difference is x (N,), away from zero."""
    return np.maximum(SIGN * x, 0.0) + LOOSE * np.abs(x).mean()
