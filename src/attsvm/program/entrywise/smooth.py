"""The program of an entrywise lp norm, 1 < p < ∞: an interior point with a smooth ball."""

from __future__ import annotations

from functools import partial

import numpy as np

from attsvm.norms import Norm
from attsvm.norms import frobenius as frobenius_norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.entrywise.interior_point import LEAST, Newton, Step, length
from attsvm.program.entrywise.working_rows import WorkingRows
from attsvm.program.entrywise.working_set import on_working_set
from attsvm.program.frobenius.route import solve as frobenius
from attsvm.tokens import Float

FLOOR = 1e-10
"""Least curvature of |W|^p, p > 2, relative to that of an entry 1: it vanishes at W = 0."""


TRIES = ((0.65, 1e-3), (0.8, 1e-2), (0.9, 1e-4))
"""In turn: the factor by which p − 1, or 1/(p − 1), shrinks in a step, and the complementarity meanwhile."""


def solve(rows: Constraints, norm: Norm) -> Answer:
    """Smallest W in the lp norm that satisfies the rows.

        min ‖W‖_p  s.t.  A W ≥ b        optimal:  A'λ = ∇ ‖W‖_p^p / p = sign(W) |W|^(p−1)

    The exponent moves from 2 to p while the interior point converges: near p = 1 and p = ∞ the
    relation between W and λ is too steep for Newton's method from afar. If a fast pace fails
    to converge, slower ones follow.
    """
    start = frobenius(rows, frobenius_norm)
    if not start.separable:
        return start
    return on_working_set(rows, norm, start, [partial(Power, norm.p, pace, apart) for pace, apart in TRIES])


class Power:
    """The lp ball: W and M = A'λ obey  W = sign(M) |M|^(q−1),  1/p + 1/q = 1.

    W is a variable of its own and meets the relation at the end only. p < 2 linearises W as a
    function of M, p > 2 M as a function of W: of the two, the one with a derivative at zero.
    """

    corners = 0

    def __init__(self, p: float, pace: float, apart: float, W: Float, M: Float) -> None:
        self.W, self.goal, self.pace, self.apart = W, p, pace, apart
        self.p = self._nearer(2.0)

    @property
    def least(self) -> float:
        """Rows stay away from their bounds while p moves: others may become active."""
        return LEAST if self.p == self.goal else self.apart

    def products(self, step: Step | None, primal: float, dual: float) -> float:
        return 0.0

    def weights(self, M: Float) -> Float:
        p = self.p
        if p < 2:
            return np.abs(M) ** ((2 - p) / (p - 1)) / (p - 1)
        return 1.0 / ((p - 1) * np.abs(self.W) ** (p - 2) + FLOOR)

    def absorb(self, M: Float) -> None:
        pass

    def border(self, work: WorkingRows, V: Float) -> None:
        return None

    def direction(self, M: Float, newton: Newton, target: float, before: Step | None) -> Step:
        V = newton.V
        offset = power(M, 1 / (self.p - 1)) - self.W if self.p < 2 else V * (M - power(self.W, self.p - 1))
        multipliers, slack, y, _ = newton.direction(offset, target, before)
        return Step(multipliers, slack, y + offset)

    def longest(self, step: Step) -> tuple[float, float]:
        return np.inf, np.inf

    def move(self, step: Step, primal: float, dual: float) -> None:
        self.W = self.W + primal * step.W
        if primal > 0.5:
            self.p = self._nearer(self.p)

    def rescale(self, M: Float) -> tuple[float, float]:
        """Both to norm one, as they are at the solution: radial errors of |W|^p would shrink slowly."""
        size, steep = length(self.W, self.p), length(M, self.p / (self.p - 1))
        self.W = self.W / size
        return size, steep

    def _nearer(self, p: float) -> float:
        if self.goal < 2:
            return max(self.goal, 1 + (p - 1) * self.pace)
        return min(self.goal, 1 + (p - 1) / self.pace)


def power(x: Float, exponent: float) -> Float:
    """sign(x) |x|^exponent."""
    return np.sign(x) * np.abs(x) ** exponent
