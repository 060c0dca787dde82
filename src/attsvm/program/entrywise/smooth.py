"""The program of an entrywise lp norm, 1 < p < ∞: an interior point with a smooth ball."""

from __future__ import annotations

from functools import partial

import numpy as np

from attsvm.norms import Norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.entrywise.interior_point import LEAST, length
from attsvm.program.entrywise.working_set import on_working_set
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
    return on_working_set(rows, norm, [partial(Power, norm.p, pace, apart) for pace, apart in TRIES])[0]


class Power:
    """The lp ball: W and M = A'λ obey  W = sign(M) |M|^(q−1),  1/p + 1/q = 1.

    W is a variable of its own and meets the relation at the end only. p < 2 linearises W as a
    function of M, p > 2 M as a function of W: of the two, the one with a derivative at zero.
    """

    border = None

    def __init__(self, p: float, pace: float, apart: float, W: Float, M: Float) -> None:
        self.W, self.goal, self.pace, self.apart = W, p, pace, apart
        self.p, none = self._nearer(2.0), np.empty((0, *W.shape))
        self.pairs = none, none

    @property
    def least(self) -> float:
        """Rows stay away from their bounds while p moves: others may become active."""
        return LEAST if self.p == self.goal else self.apart

    def linearise(self, M: Float) -> None:
        p, bent = self.p, self.bent
        if p < 2:
            self.V, self.free = bent / (p - 1), M * bent - self.W
        else:
            self.V = 1.0 / ((p - 1) * bent + FLOOR)
            self.free = self.V * (M - self.W * bent)

    def offset(self, wanted: Float) -> Float:
        return self.free

    def direction(self, y: Float, t: float, lift: Float, steps: tuple[Float, Float]) -> None:
        self.dW = y + self.free

    def move(self, primal: float) -> None:
        self.W = self.W + primal * self.dW
        if primal > 0.5:
            self.p = self._nearer(self.p)

    def absorb(self, M: Float) -> None:
        pass

    def rescale(self, M: Float) -> tuple[float, float]:
        """Both to norm one, as they are at the solution: radial errors of |W|^p would shrink slowly."""
        p, q = self.p, self.p / (self.p - 1)
        W, M = np.abs(self.W), np.abs(M)
        if p < 2:
            size, (steep, self.bent) = length(W, p), _bent(M, q)
        else:
            (size, self.bent), steep = _bent(W, p), length(M, q)
        self.W = self.W / size
        return size, steep

    def sizes(self, M: Float) -> tuple[float, float]:
        return (1.0, 1.0) if self.p == self.goal else (0.0, 0.0)

    def _nearer(self, p: float) -> float:
        if self.goal < 2:
            return max(self.goal, 1 + (p - 1) * self.pace)
        return min(self.goal, 1 + (p - 1) / self.pace)


def _bent(x: Float, p: float) -> tuple[float, Float]:
    """‖x‖_p and x^(p−2) of the positive x, divided by it."""
    largest = float(x.max())
    x = x / largest
    bent = x ** (p - 2)
    size = float(np.vdot(bent * x, x)) ** (1 / p)
    return largest * size, bent / size ** (p - 2)
