"""The program of an entrywise lp norm, 1 < p < ∞: an interior point with a smooth ball."""

from __future__ import annotations

from functools import partial

import numpy as np

from attsvm.norms import Norm
from attsvm.norms import frobenius as frobenius_norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.entrywise.interior_point import LEAST, length
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

    dual, border = False, None

    def __init__(self, p: float, pace: float, apart: float, W: Float, M: Float) -> None:
        self.W, self.goal, self.pace, self.apart = W, p, pace, apart
        self.p = self._nearer(2.0)
        self.part = self.slack = np.empty((0, *W.shape))

    @property
    def least(self) -> float:
        """Rows stay away from their bounds while p moves: others may become active."""
        return LEAST if self.p == self.goal else self.apart

    def linearise(self, M: Float) -> None:
        p = self.p
        if p < 2:
            steep = np.abs(M) ** ((2 - p) / (p - 1))
            self.V, self.fixed = steep / (p - 1), M * steep - self.W
        else:
            flat = np.abs(self.W) ** (p - 2)
            self.V = 1.0 / ((p - 1) * flat + FLOOR)
            self.fixed = self.V * (M - self.W * flat)

    def offset(self, pull: Float) -> Float:
        return self.fixed

    def direction(self, y: Float, t: float, lift: Float, part: Float, slack: Float) -> None:
        self.dW = y + self.fixed

    def move(self, primal: float) -> None:
        self.W = self.W + primal * self.dW
        if primal > 0.5:
            self.p = self._nearer(self.p)

    def absorb(self, M: Float) -> None:
        pass

    def rescale(self, M: Float) -> tuple[float, float]:
        """Both to norm one, as they are at the solution: radial errors of |W|^p would shrink slowly."""
        size, steep = length(self.W, self.p), length(M, self.p / (self.p - 1))
        self.W = self.W / size
        return size, steep

    def _nearer(self, p: float) -> float:
        if self.goal < 2:
            return max(self.goal, 1 + (p - 1) * self.pace)
        return min(self.goal, 1 + (p - 1) / self.pace)
