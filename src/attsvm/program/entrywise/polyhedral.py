"""The programs of the l1 and l∞ norms: linear programs, by an interior point with a polyhedral ball."""

from __future__ import annotations

import numpy as np

from attsvm.norms import Norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.entrywise import vertex
from attsvm.program.entrywise.interior_point import LEAST
from attsvm.program.entrywise.newton import Border
from attsvm.program.entrywise.working_set import on_working_set
from attsvm.program.threads import single_thread
from attsvm.tokens import Float

ROOM = 0.1
"""First distance from the corners, relative to the size of the ball."""

PRECISE = 1e-10
"""Relative gap that needs no vertex."""

SIGN = np.array([1.0, -1.0])[:, None, None]


def solve(rows: Constraints, norm: Norm) -> Answer:
    """Smallest W in the l1 or l∞ norm that satisfies the rows.

        l1:  min Σ |W_ij|    s.t.  A W ≥ b        dual:  max b'λ,  |A'λ| ≤ 1 in every entry
        l∞:  min max |W_ij|  s.t.  A W ≥ b        dual:  max b'λ,  Σ |A'λ| ≤ 1

    W need not be unique: the interior point ends in the middle of the optimal face. Where it stops
    short of the last digits, the vertex beside it has them.
    """
    answer, reached = on_working_set(rows, norm, [CrossPolytope if norm.p == 1 else Cube])
    if not answer.separable or reached < PRECISE or vertex.gap(rows, norm, answer) < PRECISE:
        return answer
    with single_thread():
        return vertex.polish(rows, norm, answer)


def parts(x: Float) -> Float:
    """Two positive arrays (2, d, e) whose difference is x (d, e), away from zero."""
    return np.maximum(SIGN * x, 0.0) + ROOM * np.abs(x).mean()


class CrossPolytope:
    """The l1 ball: W = part₊ − part₋, and slacks 1 ∓ M of the dual cube.

    pairs = (part, slack), (2, d, e) and positive: part ∘ slack = μ → 0. The slacks are variables of
    their own: rows that join may push M out of the cube for a while.
    """

    least, border = LEAST, None

    def __init__(self, W: Float, M: Float) -> None:
        self.pairs = parts(W), np.maximum(1.0 - SIGN * M, ROOM)
        self.move(0.0)

    def linearise(self, M: Float) -> None:
        """dpart = (wanted − part ∘ dslack) / slack,  dslack = outside ∓ dM."""
        part, self.slack = self.pairs
        self.outside = 1.0 - SIGN * M - self.slack
        weight = part / self.slack
        self.V = weight[0] + weight[1]
        self.shift, self.share = weight * self.outside, SIGN * (weight / self.V)

    def offset(self, wanted: Float) -> Float:
        self.fixed = wanted / self.slack - self.shift
        return self.fixed[0] - self.fixed[1]

    def direction(self, y: Float, t: float, lift: Float, steps: tuple[Float, Float]) -> None:
        np.add(self.fixed, self.share * y, out=steps[0])
        np.subtract(self.outside, SIGN * lift, out=steps[1])

    def move(self, primal: float) -> None:
        self.W = self.pairs[0][0] - self.pairs[0][1]

    def absorb(self, M: Float) -> None:
        part, slack = self.pairs
        exact = 1.0 - SIGN * M
        self.pairs = part, np.where(exact > 0.5 * slack, exact, slack)

    def rescale(self, M: Float) -> tuple[float, float]:
        return 1.0, 1.0

    def sizes(self, M: Float) -> tuple[float, float]:
        return float(np.abs(self.W).sum()), float(np.abs(M).max())


class Cube:
    """The l∞ ball: slacks τ ∓ W, and their multipliers with part₊ − part₋ = M, Σ part = 1.

    pairs = (slack, part), (2, d, e) and positive: part ∘ slack = μ → 0; τ is the norm.
    """

    least = LEAST

    def __init__(self, W: Float, M: Float) -> None:
        self.W, self.tau = W, (1.0 + ROOM) * float(np.abs(W).max())
        self.pairs = self.tau - SIGN * W, parts(M)

    def linearise(self, M: Float) -> None:
        """Newton's equations in λ and τ, with stiffness = part/slack and tilt its difference:

        dW = V ∘ (dM + tilt dτ) + offset,     Σ (part + dpart) = 1

        The border is τ: its direction is V ∘ tilt, its stiffness 4 Σ V ∘ part₊/slack₊ ∘ part₋/slack₋.
        """
        self.slack, part = self.pairs
        self.outside = self.tau - SIGN * self.W - self.slack
        self.stiffness = part / self.slack
        right, left = self.stiffness
        self.V, self.tilt = 1.0 / (right + left), right - left
        self.shift = self.stiffness * self.outside
        self.apart, self.mass = M - part[0] + part[1], float(part.sum()) - 1.0
        self.border = Border(self.V * self.tilt, 4.0 * float((right * self.V * left).sum()))

    def offset(self, wanted: Float) -> Float:
        self.fixed = wanted / self.slack - self.shift
        free = self.V * (self.apart - self.fixed[0] + self.fixed[1])
        lean = float(self.fixed.sum()) + self.mass + float(np.vdot(self.tilt, free))
        self.lean = lean / self.border.stiffness
        self.free = free + self.lean * self.border.direction
        return self.free

    def direction(self, y: Float, t: float, lift: Float, steps: tuple[Float, Float]) -> None:
        slack, part = steps
        self.dW, self.dtau = y + self.free, self.lean + t
        change = self.dtau - SIGN * self.dW
        np.subtract(self.fixed, self.stiffness * change, out=part)
        # The stiffer side would amplify rounding in `change`: it follows from part₊ − part₋ = M instead.
        rest, stiffer = self.apart + lift - part[0] + part[1], self.tilt > 0
        part[0] += rest * stiffer
        part[1] -= rest * ~stiffer
        np.add(self.outside, change, out=slack)

    def move(self, primal: float) -> None:
        self.W, self.tau = self.W + primal * self.dW, self.tau + primal * self.dtau

    def absorb(self, M: Float) -> None:
        slack, part = self.pairs
        self.pairs = slack, part + np.maximum(SIGN * (M - part[0] + part[1]), 0.0)

    def rescale(self, M: Float) -> tuple[float, float]:
        return 1.0, 1.0

    def sizes(self, M: Float) -> tuple[float, float]:
        return float(np.abs(self.W).max()), float(np.abs(M).sum())
