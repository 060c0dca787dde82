"""The programs of the l1 and l∞ norms: linear programs, by an interior point with a polyhedral ball."""

from __future__ import annotations

import numpy as np

from attsvm.norms import Norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.interior_point import Newton, Step, reach
from attsvm.program.working_set import on_working_set
from attsvm.tokens import Float


def solve(rows: Constraints, norm: Norm) -> Answer:
    """Smallest W in the l1 or l∞ norm that satisfies the rows.

        l1:  min Σ |W_ij|  s.t.  A W ≥ b          dual:  max b'λ,  |A'λ| ≤ 1 in every entry
        l∞:  min max |W_ij|  s.t.  A W ≥ b        dual:  max b'λ,  Σ |A'λ| ≤ 1
    """
    return on_working_set(rows, norm, [CrossPolytope if norm.p == 1 else Cube])


ROOM = 0.1
"""First distance from the corners, relative to the size of the ball."""


class CrossPolytope:
    """The l1 ball: W = u − v with u, v ≥ 0, and slacks below = 1 − M, above = 1 + M of its dual.

    u · below = v · above = μ → 0. The slacks are variables of their own: rows that join may push
    M out of the ball for a while.
    """

    centring = 0.0

    def __init__(self, W: Float, M: Float) -> None:
        room = ROOM * np.abs(W).mean()
        self.u, self.v = np.maximum(W, 0.0) + room, np.maximum(-W, 0.0) + room
        self.W = self.u - self.v
        self.below, self.above = np.maximum(1.0 - M, ROOM), np.maximum(1.0 + M, ROOM)
        self.corners = 2 * W.size

    def products(self, step: Step | None, primal: float, dual: float) -> float:
        if step is None:
            return float((self.u * self.below).sum() + (self.v * self.above).sum())
        du, dv, dbelow, dabove = step.own
        first = (self.u + primal * du) * (self.below + dual * dbelow)
        return float((first + (self.v + primal * dv) * (self.above + dual * dabove)).sum())

    def weights(self, M: Float) -> Float:
        return self.u / self.below + self.v / self.above

    def direction(self, M: Float, newton: Newton, target: float, before: Step | None) -> Step:
        left, right = target - self.u * self.below, target - self.v * self.above
        if before is not None:
            du, dv, dbelow, dabove = before.own
            left, right = left - du * dbelow, right - dv * dabove
        dbelow, dabove = 1.0 - M - self.below, 1.0 + M - self.above
        left, right = (left - self.u * dbelow) / self.below, (right - self.v * dabove) / self.above
        multipliers, slack = newton.direction(left - right, target, before)
        dM = newton.work.combine(multipliers)
        du, dv = left + self.u / self.below * dM, right - self.v / self.above * dM
        return Step(multipliers, slack, du - dv, (du, dv, dbelow - dM, dabove + dM))

    def longest(self, step: Step) -> tuple[float, float]:
        du, dv, dbelow, dabove = step.own
        primal = min(reach(self.u, du), reach(self.v, dv))
        return primal, min(reach(self.below, dbelow), reach(self.above, dabove))

    def move(self, step: Step, primal: float, dual: float) -> None:
        du, dv, dbelow, dabove = step.own
        self.u, self.v = self.u + primal * du, self.v + primal * dv
        self.below, self.above = self.below + dual * dbelow, self.above + dual * dabove
        self.W = self.u - self.v

    def rescale(self, M: Float) -> tuple[float, float]:
        return 1.0, 1.0


class Cube:
    """The l∞ ball: |W| ≤ τ with multipliers α, β ≥ 0 of τ − W and τ + W.

    α − β = M and Σ (α + β) = 1; α (τ − W) = β (τ + W) = μ → 0.
    """

    centring = 0.0

    def __init__(self, W: Float, M: Float) -> None:
        self.W, self.tau = W, (1.0 + ROOM) * float(np.abs(W).max())
        room = ROOM * np.abs(M).mean()
        self.alpha, self.beta = np.maximum(M, 0.0) + room, np.maximum(-M, 0.0) + room
        self.corners = 2 * W.size

    def products(self, step: Step | None, primal: float, dual: float) -> float:
        W, tau, alpha, beta = self.W, self.tau, self.alpha, self.beta
        if step is not None:
            dtau, dalpha, dbeta = step.own
            W, tau = W + primal * step.W, tau + primal * float(dtau)
            alpha, beta = alpha + dual * dalpha, beta + dual * dbeta
        return float((alpha * (tau - W)).sum() + (beta * (tau + W)).sum())

    def weights(self, M: Float) -> Float:
        return 1.0 / (self.alpha / (self.tau - self.W) + self.beta / (self.tau + self.W))

    def direction(self, M: Float, newton: Newton, target: float, before: Step | None) -> Step:
        """Newton's equations in dλ and dτ: two solves with the same matrix."""
        g, h, alpha, beta = self.tau - self.W, self.tau + self.W, self.alpha, self.beta
        left, right = target - alpha * g, target - beta * h
        if before is not None:
            dtau, dalpha, dbeta = before.own
            left, right = left - dalpha * (dtau - before.W), right - dbeta * (dtau + before.W)
        left, right = left / g, right / h
        V, tilt = self.weights(M), alpha / g - beta / h
        offset = V * (M - alpha + beta - left + right)
        multipliers, slack = newton.direction(offset, target, before)
        lean = newton.work.margins(V * tilt)
        response = newton.solve(lean)
        need = float((left + right + alpha + beta + tilt * offset).sum()) - 1.0 + float(lean @ multipliers)
        dtau = need / (4.0 * float((alpha / g * V * beta / h).sum()) + float(lean @ response))
        multipliers = multipliers - dtau * response
        slack = slack + dtau * newton.ratio * response
        dW = V * newton.work.combine(multipliers) + offset + dtau * V * tilt
        dalpha, dbeta = left - alpha / g * (dtau - dW), right - beta / h * (dtau + dW)
        return Step(multipliers, slack, dW, (np.asarray(dtau), dalpha, dbeta))

    def longest(self, step: Step) -> tuple[float, float]:
        dtau, dalpha, dbeta = step.own
        primal = min(
            reach(self.tau - self.W, dtau - step.W), reach(self.tau + self.W, dtau + step.W)
        )
        return primal, min(reach(self.alpha, dalpha), reach(self.beta, dbeta))

    def move(self, step: Step, primal: float, dual: float) -> None:
        dtau, dalpha, dbeta = step.own
        self.W, self.tau = self.W + primal * step.W, self.tau + primal * float(dtau)
        self.alpha, self.beta = self.alpha + dual * dalpha, self.beta + dual * dbeta

    def rescale(self, M: Float) -> tuple[float, float]:
        return 1.0, 1.0
