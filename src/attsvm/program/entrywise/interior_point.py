"""A primal-dual interior point for every entrywise norm: 8 to 17 steps; the general path takes 70 to 80.

    min N(W)  s.t. rows

The unit ball of the norm is the only part that varies: it relates W to the dual matrix M = Σ λ_j A_j
and its linearisation is diagonal, dW = V ∘ dM + …, so that every norm shares the Newton matrix
A diag(V) Aᵀ + diag(s/λ). The steps are compiled (`newton`); here are their memory, the start,
the factorisation, and the rows that join while it runs.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from attsvm.norms import Norm
from attsvm.numbers import Float
from attsvm.numbers.linear import Cholesky
from attsvm.program.answer import Answer
from attsvm.program.entrywise import newton
from attsvm.program.entrywise.newton import CROSS, CUBE, CURVED, gram
from attsvm.program.interior_engine import (
    BOUNDARY,
    LEAST,
    LOOSE,
    Pace,
    centred_pair,
    first_pair,
    length,
    nearer,
    solve_by,
)
from attsvm.program.rows import Candidate, Rows

SIGN = np.array([[1.0], [-1.0]])


class EntrywisePoint:
    """One interior point under way: W, and the multipliers λ and slacks of the working rows.

    The exponent of a curved ball moves from 2 to p while it converges: near p = 1 and p = ∞ the relation
    between W and λ is too steep for Newton's method from afar. pace: the factor by which p − 1, or
    1/(p − 1), shrinks in a step, and the complementarity meanwhile, because other rows may become active.
    """

    def __init__(self, rows: Rows, norm: Norm, pace: Pace, start: Answer) -> None:
        W, multipliers = start.W, rows.pick(start.multipliers) * rows.length
        self.goal, (self.pace, self.complementarity) = norm.p, pace
        self.kind = {1.0: CROSS, np.inf: CUBE}.get(norm.p, CURVED)
        self.p = norm.p if self.kind != CURVED else nearer(2.0, norm.p, self.pace)
        self.size, self.shape = length(W, norm.p), W.shape
        w, bound = W.ravel() / self.size, rows.bound / self.size
        steepness = length(rows.combine(multipliers), norm.dual.p)
        slack, lam = first_pair(rows, rows.margins(w), bound, multipliers / steepness)
        self.entries, self.fixed = np.zeros((9, w.size)), np.empty(2 * w.size)
        self.entries[0] = w
        self.tau, corners = 1.0 + LOOSE, (w[:0], w[:0])
        if self.kind != CURVED:
            M = rows.combine(lam).ravel()
            to_cube, to_cross = self.tau - SIGN * w, np.maximum(1.0 - SIGN * M, LOOSE)
            corners = (to_cube, _positive_parts(M)) if self.kind == CUBE else (_positive_parts(w), to_cross)
        self._lay_out(rows, bound, slack, lam, corners)

    def _lay_out(
        self, rows: Rows, bound: Float, slack: Float, multipliers: Float, corners: tuple[Float, Float]
    ) -> None:
        """Lay all complementary pairs side by side, those of the ball first."""
        self.pool, k, self.corners = rows, len(rows), corners[0].size
        self.pairs = np.zeros((4, self.corners + k))
        for x, of_ball, of_rows in zip(self.pairs, corners, (slack * ~rows.tied, multipliers), strict=False):
            x[: self.corners], x[self.corners :] = of_ball.ravel(), of_rows
        self.slack, self.multipliers = self.pairs[:2, self.corners :]
        self.count = int(np.count_nonzero(self.pairs[0]))
        self.vectors, self.matrix = np.zeros((7, k)), np.empty((k, k))
        self.vectors[0] = bound
        d, e, g = rows.d, rows.e, len(rows.queries)
        self.structure = rows.delta, rows.queries, np.append(rows.starts, k), np.empty(d)
        self.scratch = np.empty((e, d)), np.empty((g, d)), np.zeros((k, d))
        self._settle()

    def _settle(self) -> None:
        data = self.structure, self.entries, self.pairs, self.vectors
        size, self.value, self.short, gap = newton.settle(self.kind, self.p, *data)
        self.size *= size
        self.gap = gap if self.p == self.goal else 1.0

    @property
    def candidate(self) -> Candidate:
        """W (d, e) and the multipliers in the units of the rows."""
        W = self.entries[0].reshape(self.shape) * self.size
        return Candidate(W, self.multipliers.copy(), self.gap)

    def step(self) -> None:
        """One predictor-corrector step; gap: the relative duality gap over the working rows after it."""
        kind, p, pairs, entries = self.kind, self.p, self.pairs, self.entries
        c = newton.weights(kind, p, pairs, entries)
        # Complementarity must not fall faster than infeasibility, nor below the rounding of the ball.
        least = max(self.short, self.value * (LEAST if p == self.goal else self.complementarity))
        data = self.structure, entries, pairs, self.fixed, self.vectors, self._factored(c)
        self.tau, primal = newton.step(kind, p, self.tau, c, self.count, least, BOUNDARY, *data)
        if kind == CURVED and primal > 0.5:
            self.p = nearer(p, self.goal, self.pace)
        self._settle()

    def _factored(self, c: float) -> Float:
        """The upper triangular factor of  K = A diag(V) Aᵀ + a aᵀ + diag(s/λ),  a = A U/√c."""
        ratio, column = self.vectors[2], self.vectors[4]
        if self.kind == CUBE:
            column[:] = self.pool.margins(self.entries[3]) / math.sqrt(c)

        def matrix() -> Float:
            gram(*self.structure[:3], self.entries[2], column, ratio, *self.scratch, self.matrix)
            return self.matrix.T

        return Cholesky(matrix).factor.T

    def join(self, rows: Rows) -> None:
        """Continue with more rows.

        A new row starts on the central path, at its own margin or as far inside as it is outside. The
        ball follows the new M as far as positive slacks allow: by Newton's method alone the mismatch would
        shrink no faster than V grows.
        """
        places = rows.places(self.pool)
        a, b = self.pairs[0], self.pairs[1]
        mu = float(a @ b) / np.count_nonzero(a)
        bound = rows.bound / self.size
        slack, multipliers = centred_pair(rows.margins(self.entries[0]), bound, mu)
        slack[places], multipliers[places] = self.slack, self.multipliers
        M = rows.combine(multipliers).ravel()
        primal, dual = (x[: self.corners].reshape(2, -1) for x in (a, b))
        if self.kind == CROSS:
            exact = 1.0 - SIGN * M
            dual = np.where(exact > 0.5 * dual, exact, dual)
        elif self.kind == CUBE:
            dual = dual + np.maximum(SIGN * (M - dual[0] + dual[1]), 0.0)
        self._lay_out(rows, bound, slack, multipliers, (primal, dual))


def _positive_parts(x: Float) -> Float:
    """Two positive arrays (2, N) whose difference is x (N,), away from zero."""
    return np.maximum(SIGN * x, 0.0) + LOOSE * np.abs(x).mean()


solve_entrywise = partial(solve_by, EntrywisePoint)
"""The route: smallest W in an entrywise norm that satisfies the rows.

    min ‖W‖_p  s.t.  A W ≥ b        dual:  max b'λ,  ‖A'λ‖_q ≤ 1,  1/p + 1/q = 1

For p = 1 and p = ∞, W need not be unique: the interior point ends in the middle of the optimal face."""
