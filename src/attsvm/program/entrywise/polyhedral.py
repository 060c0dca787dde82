"""The programs of the l1 and l∞ norms: linear programs, by an interior point with a polyhedral ball."""

from __future__ import annotations

import numpy as np

from attsvm.norms import Norm
from attsvm.norms import frobenius as frobenius_norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.entrywise import vertex
from attsvm.program.entrywise.compiled_polyhedral import newton_steps
from attsvm.program.entrywise.interior_point import LEAST, Newton, Step, reach
from attsvm.program.entrywise.working_rows import SMALL, Border, WorkingRows
from attsvm.program.entrywise.working_set import ENOUGH, Pricing, on_working_set
from attsvm.program.frobenius.route import solve as frobenius
from attsvm.program.threads import single_thread
from attsvm.tokens import Float

ROOM = 0.1
"""First distance from the corners, relative to the size of the ball."""

PRECISE = 1e-10
"""Relative gap that needs no vertex."""

TINY = 100
"""Rows up to which the compiled twin is faster."""

SIGN = np.array([1.0, -1.0])[:, None, None]


def solve(rows: Constraints, norm: Norm) -> Answer:
    """Smallest W in the l1 or l∞ norm that satisfies the rows.

        l1:  min Σ |W_ij|    s.t.  A W ≥ b        dual:  max b'λ,  |A'λ| ≤ 1 in every entry
        l∞:  min max |W_ij|  s.t.  A W ≥ b        dual:  max b'λ,  Σ |A'λ| ≤ 1

    W need not be unique: the interior point ends in the middle of the optimal face. Where it stops
    short of the last digits, the vertex beside it has them.
    """
    start = frobenius(rows, frobenius_norm)
    if not start.separable:
        return start
    if rows.active.sum() <= TINY and rows.active.sum() * rows.d * rows.e <= SMALL:
        answer, gap = _compiled(rows, norm, start)
        if gap < ENOUGH:
            return answer
    answer = on_working_set(rows, norm, start, [CrossPolytope if norm.p == 1 else Cube])
    if vertex.gap(rows, norm, answer) < PRECISE:
        return answer
    with single_thread():
        return vertex.polish(rows, norm, answer)


def _compiled(rows: Constraints, norm: Norm, start: Answer) -> tuple[Answer, float]:
    """The answer of the compiled twin and its gap."""
    chosen = Pricing(rows).first(start)
    work = WorkingRows.of(rows, chosen)
    F, lam = work.dense(), start.multipliers[chosen] * work.length
    size = float(norm.value(start.W))
    w, b = start.W / size, work.bound / size
    lam = lam / float(norm.dual.value((lam @ F).reshape(w.shape)))
    # Everything a tenth away from its boundary.
    free, value = work.open > 0, float(lam @ b) / len(b)
    slack = np.where(free, np.maximum(F @ w.ravel() - b, ROOM * b.max()), 1.0)
    lam = np.where(free, np.maximum(lam, ROOM * value / slack), lam)
    M = (lam @ F).reshape(w.shape)
    ball = CrossPolytope(w, M) if norm.p == 1 else Cube(w, M)
    state = ball.part.reshape(2, -1), ball.slack.reshape(2, -1), w.flatten(), lam, slack
    best = np.empty(w.size), np.empty(len(b))
    gap = newton_steps(F, b, work.open, state, best, 1.0 + ROOM, norm.p != 1)
    multipliers = np.zeros(chosen.shape)
    multipliers[chosen] = best[1] / work.length
    return Answer(size * best[0].reshape(w.shape), multipliers), gap


def parts(x: Float) -> Float:
    """Two positive arrays (2, d, e) whose difference is x (d, e), away from zero."""
    return np.maximum(SIGN * x, 0.0) + ROOM * np.abs(x).mean()


class CrossPolytope:
    """The l1 ball: W = part₊ − part₋, and slacks 1 ∓ M of the dual cube.

    part ∘ slack = μ → 0, both (2, d, e) and positive. The slacks are variables of their own: rows
    that join may push M out of the cube for a while.
    """

    least = LEAST

    def __init__(self, W: Float, M: Float) -> None:
        self.part, self.slack = parts(W), np.maximum(1.0 - SIGN * M, ROOM)
        self.W, self.corners = self.part[0] - self.part[1], 2 * W.size

    def products(self, step: Step | None, primal: float, dual: float) -> float:
        if step is None:
            return float(np.vdot(self.part, self.slack))
        return float(np.vdot(self.part + primal * step.own[0], self.slack + dual * step.own[1]))

    def weights(self, M: Float) -> Float:
        return (self.part / self.slack).sum(0)

    def absorb(self, M: Float) -> None:
        exact = 1.0 - SIGN * M
        self.slack = np.where(exact > 0.5 * self.slack, exact, self.slack)

    def border(self, work: WorkingRows, V: Float) -> None:
        return None

    def direction(self, M: Float, newton: Newton, target: float, before: Step | None) -> Step:
        outside = 1.0 - SIGN * M - self.slack
        second = before.own[0] * before.own[1] if before else 0.0
        fixed = (target - self.part * self.slack - second - self.part * outside) / self.slack
        multipliers, slack, y, _ = newton.direction(fixed[0] - fixed[1], target, before)
        part = fixed + SIGN * (self.part / self.slack / newton.V * y)
        change = SIGN * newton.work.combine(multipliers)
        return Step(multipliers, slack, part[0] - part[1], (part, outside - change))

    def longest(self, step: Step) -> tuple[float, float]:
        return reach(self.part, step.own[0]), reach(self.slack, step.own[1])

    def move(self, step: Step, primal: float, dual: float) -> None:
        self.part = self.part + primal * step.own[0]
        self.slack = self.slack + dual * step.own[1]
        self.W = self.part[0] - self.part[1]

    def rescale(self, M: Float) -> tuple[float, float]:
        return 1.0, 1.0


class Cube:
    """The l∞ ball: slacks τ ∓ W, and their multipliers with part₊ − part₋ = M, Σ part = 1.

    part ∘ slack = μ → 0, both (2, d, e) and positive; τ is the norm.
    """

    least = LEAST

    def __init__(self, W: Float, M: Float) -> None:
        self.W, self.tau, self.corners = W, (1.0 + ROOM) * float(np.abs(W).max()), 2 * W.size
        self.part, self.slack = parts(M), self.tau - SIGN * W

    def products(self, step: Step | None, primal: float, dual: float) -> float:
        if step is None:
            return float(np.vdot(self.part, self.slack))
        return float(np.vdot(self.part + dual * step.own[0], self.slack + primal * step.own[1]))

    def weights(self, M: Float) -> Float:
        return 1.0 / (self.part / self.slack).sum(0)

    def absorb(self, M: Float) -> None:
        self.part = self.part + np.maximum(SIGN * (M - self.part[0] + self.part[1]), 0.0)

    def border(self, work: WorkingRows, V: Float) -> Border:
        """τ: its column is A (V ∘ tilt), its stiffness 4 Σ V ∘ part₊/slack₊ ∘ part₋/slack₋."""
        right, left = self.part / self.slack
        direction = V * (right - left)
        self.edge = Border(direction, work.margins(direction), 4.0 * float((right * V * left).sum()))
        return self.edge

    def direction(self, M: Float, newton: Newton, target: float, before: Step | None) -> Step:
        """Newton's equations in λ and τ, with stiffness = part/slack and tilt its difference:

        dW = V ∘ (dM + tilt dτ) + offset,     Σ (part + dpart) = 1
        """
        outside = self.tau - SIGN * self.W - self.slack
        second = before.own[0] * before.own[1] if before else 0.0
        stiffness = self.part / self.slack
        fixed = (target - second) / self.slack - self.part - stiffness * outside
        free = newton.V * (M - self.part[0] + self.part[1] - fixed[0] + fixed[1])
        tilt = stiffness[0] - stiffness[1]
        lean = (float(fixed.sum() + self.part.sum() + np.vdot(tilt, free)) - 1.0) / self.edge.stiffness
        offset = free + lean * self.edge.direction
        multipliers, slack, y, t = newton.direction(offset, target, before)
        W, tau = y + offset, lean + t
        change = tau - SIGN * W
        part = fixed - stiffness * change
        # The stiffer side would amplify rounding in `change`: it follows from part₊ − part₋ = M instead.
        rest = M + newton.work.combine(multipliers) - self.part[0] + self.part[1] - part[0] + part[1]
        part[0] += np.where(tilt > 0, rest, 0.0)
        part[1] -= np.where(tilt > 0, 0.0, rest)
        return Step(multipliers, slack, W, (part, outside + change, np.array(tau)))

    def longest(self, step: Step) -> tuple[float, float]:
        return reach(self.slack, step.own[1]), reach(self.part, step.own[0])

    def move(self, step: Step, primal: float, dual: float) -> None:
        self.W, self.tau = self.W + primal * step.W, self.tau + primal * float(step.own[2])
        self.part = self.part + dual * step.own[0]
        self.slack = self.slack + primal * step.own[1]

    def rescale(self, M: Float) -> tuple[float, float]:
        return 1.0, 1.0
