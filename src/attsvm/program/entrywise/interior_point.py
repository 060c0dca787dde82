"""A primal-dual interior point for  min N(W)  s.t. rows, for every entrywise norm.

The unit ball of the norm is the only part that varies: it relates W to the dual matrix M = Σ λ_j A_j
and its linearisation is diagonal, dW = V ∘ dM + …, so that every norm shares the Newton matrix
A diag(V) Aᵀ + diag(s/λ). Rows may join while it runs.
Reference: Mehrotra 1992, "On the implementation of a primal-dual interior point method".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np

from attsvm.norms import Norm
from attsvm.program.entrywise.newton import Border, Newton
from attsvm.program.entrywise.pairs import Pairs
from attsvm.program.entrywise.working_rows import WorkingRows
from attsvm.tokens import Bool, Float

LOOSE = 0.1
"""Distance from the boundary, relative to the solution's size, of the first slacks and multipliers."""

LEAST = 1e-13
"""Complementarity, relative to the objective, below which systems only lose digits."""

FAR = 1e-6
"""Complementarity, relative to the objective, above which a linear program's gap is not looked at."""


class Ball(Protocol):
    """The part that depends on the norm: W (d, e), and the complementary pairs of its corners.

    pairs: primal and dual (2, d, e), one pair for each sign of an entry of W; empty for a smooth ball.
    V (d, e): the linear response of W to M; border: the unknown, if any, that the ball has besides W.
    """

    W: Float
    pairs: tuple[Float, Float]
    V: Float
    border: Border | None

    @property
    def least(self) -> float:
        """Complementarity that a step may aim at, relative to the objective."""
        ...

    def linearise(self, M: Float) -> None:
        """Find V and the border, and all that both directions of a step share."""
        ...

    def offset(self, wanted: Float) -> Float:
        """The part of dW (d, e) that does not depend on dλ; wanted: change of the pairs' products."""
        ...

    def direction(self, y: Float, t: float, lift: Float, steps: tuple[Float, Float]) -> None:
        """Fill the steps of the pairs, from  y = V ∘ dM + U t  and  lift = dM; keep dW for `move`."""
        ...

    def move(self, primal: float) -> None:
        """Move W, after its pairs."""
        ...

    def absorb(self, M: Float) -> None:
        """Follow a change of M by new rows, as far as positive slacks allow.

        Left to Newton's method, the mismatch would shrink no faster than V grows.
        """
        ...

    def rescale(self, M: Float) -> tuple[float, float]:
        """Divide W by the first factor returned; the caller divides λ and M by the second."""
        ...

    def sizes(self, M: Float) -> tuple[float, float]:
        """The norm of W, and the dual norm of M; 0 and 0 while the ball is not yet that of the norm."""
        ...


Start = Callable[[Float, Float], Ball]
"""The state of a ball at a first W and M, both of norm about one."""


class Run:
    """One interior point under way: the ball's W, multipliers and slacks of the working rows.

    Starts from any W that is not zero and any multipliers with Σ λ_j b_j > 0.
    """

    def __init__(self, work: WorkingRows, norm: Norm, ball: Start, W: Float, multipliers: Float) -> None:
        self.work, self.size = work, length(W, norm.p)
        W, self.bound = W / self.size, work.bound / self.size
        multipliers = multipliers / length(work.combine(multipliers), norm.dual.p)
        centre = LOOSE * float(multipliers @ self.bound) / work.k
        slack = np.maximum(work.margins(W) - self.bound, LOOSE * float(self.bound.max()))
        multipliers = np.where(work.tied, multipliers, np.maximum(multipliers, centre / slack))
        self.ball = ball(W, work.combine(multipliers))
        self._lay_out(slack, multipliers)

    def _lay_out(self, slack: Float, multipliers: Float) -> None:
        """Lay all complementary pairs side by side; ball and rows keep views of them."""
        self.newton, self.open = Newton(self.work, self.ball.W.shape), ~self.work.tied
        self.pairs = Pairs(self.ball.pairs, slack * self.open, multipliers)
        self.ball.pairs = self.pairs.of_ball[0], self.pairs.of_ball[1]
        self.slack, self.multipliers = self.pairs.of_rows[:2]
        self.bounded = self.bound > 0
        self._settle()

    def _settle(self) -> None:
        """Find M and the margins, after a change of W and λ."""
        self.M = self.work.combine(self.multipliers)
        size, steep = self.ball.rescale(self.M)
        if not size == steep == 1.0:
            self.size *= size
            self.bound = self.work.bound / self.size
            self.slack /= size
            self.multipliers /= steep
            self.M /= steep
        self.margins = self.work.margins(self.ball.W)

    @property
    def W(self) -> Float:
        """The weight in the units of the rows."""
        return self.ball.W * self.size

    def join(self, work: WorkingRows, old: Bool) -> None:
        """Go on with more rows; old (k,) marks the former ones among them.

        A new row starts on the central path, at its own margin or as far inside as it is outside.
        """
        mu = self.pairs.product() / self.pairs.count
        self.work, self.bound = work, work.bound / self.size
        apart = np.abs(work.margins(self.ball.W) - self.bound)
        slack = np.maximum(apart, np.sqrt(mu) * float(self.bound.max()))
        multipliers = mu / slack
        slack[old], multipliers[old] = self.slack, self.multipliers
        self.ball.absorb(work.combine(multipliers))
        self._lay_out(slack, multipliers)

    def gap(self) -> float:
        """The relative duality gap over the working rows, 1 while a margin is missing.

        Far from the end of a linear program complementarity stands for it, which costs nothing.
        """
        value = float(self.multipliers @ self.bound)
        if self.pairs.corners and not self.pairs.product() < FAR * value:
            return 1.0
        size, steep = self.ball.sizes(self.M)
        least = float((self.margins[self.bounded] / self.bound[self.bounded]).min())
        if not least * steep > 0:
            return 1.0
        gap = 1.0 - value / steep * least / size
        if self.bounded.all():
            return gap
        # Rows without a bound have nothing to scale by: their violation counts as it is.
        off = np.where(self.work.tied, np.abs(self.margins), -self.margins)[~self.bounded]
        return max(gap, float(off.max()) / float(self.bound.max()))

    def step(self) -> None:
        """One predictor-corrector step."""
        ball, pairs = self.ball, self.pairs
        ball.linearise(self.M)
        self.ratio = self.slack / self.multipliers
        self.residual = self.slack + self.bound - self.margins
        self.newton.factor(ball.V, self.ratio, ball.border)
        self._direction(0.0, False)
        total, reached = pairs.product(), pairs.look()
        # Complementarity must not run ahead of feasibility, nor below what the ball allows.
        short = float(np.abs(self.multipliers) @ np.abs(self.residual))
        least = max(short, ball.least * float(self.multipliers @ self.bound))
        self._direction(min(total, max(total * (reached / total) ** 3, least)) / pairs.count, True)
        ball.move(pairs.move())
        self._settle()

    def _direction(self, target: float, refined: bool) -> None:
        """Fill the steps of all pairs:  a ∘ b → target,  and  dW = y + offset  meets the rows."""
        newton, ball = self.newton, self.ball
        self.pairs.aim(target, refined)
        _, multipliers, slack_step, step, wanted = self.pairs.of_rows
        pull = wanted / multipliers * self.open
        offset = ball.offset(self.pairs.of_ball[4])
        t = newton.respond(self.residual + pull, offset, step, refined)
        np.subtract(pull, self.ratio * step, out=slack_step)
        ball.direction(newton.y, t, newton.lift, (self.pairs.of_ball[2], self.pairs.of_ball[3]))


def length(x: Float, p: float) -> float:
    """‖x‖_p, p in [1, ∞], of all entries: `Entrywise(p).value` without its generality, for every step."""
    size = np.abs(x)
    largest = float(size.max())
    if math.isinf(p) or largest == 0:
        return largest
    return largest * float(((size / largest) ** p).sum()) ** (1 / p)
