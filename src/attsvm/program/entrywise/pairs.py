"""Complementary pairs: positive numbers a_j, b_j whose products an interior point drives to zero."""

from __future__ import annotations

import numpy as np

from attsvm.program.compiled import compiled
from attsvm.tokens import Float

BOUNDARY = 0.995
"""Share of the way to the boundary that a step may go."""


class Pairs:
    """The pairs of the ball, then those of the rows: their slacks a and multipliers b.

    a, b (m,), their steps da, db, and pull (m,), the step of a at fixed b. A tied row has a = 0 and a
    multiplier of any sign. dual: whether the ball's a, rather than its b, are dual variables.
    """

    def __init__(self, part: Float, slack: Float, row_slack: Float, multipliers: Float, dual: bool) -> None:
        self.dual, self.corners = dual, part.size
        self.a = np.concatenate([part.ravel(), row_slack])
        self.b = np.concatenate([slack.ravel(), multipliers])
        self.da, self.db, self.pull = np.zeros((3, len(self.a)))
        self.count = int(np.count_nonzero(self.a))
        every, ball, rows = (self.a, self.b, self.pull, self.da, self.db), slice(part.size), slice(part.size, None)
        self.ball = tuple(x[ball].reshape(part.shape) for x in every)
        self.slack, self.multipliers = self.a[rows], self.b[rows]
        self.rows = self.pull[rows], self.da[rows], self.db[rows]

    def product(self) -> float:
        """Σ a_j b_j."""
        return float(self.a @ self.b)

    def aim(self, target: float, refined: bool) -> None:
        """Find the pull that brings every product to target, refined by the last step's da ∘ db."""
        _aim(self.a, self.b, self.da, self.db, target, refined, self.pull)

    def look(self) -> float:
        """Σ a_j b_j after the longest step."""
        return float(_travel(self.a, self.b, self.da, self.db, self.corners, self.dual, 1.0, False)[2])

    def move(self) -> float:
        """Go nearly as far; how far, for primal variables."""
        return float(_travel(self.a, self.b, self.da, self.db, self.corners, self.dual, BOUNDARY, True)[0])


@compiled
def _aim(a, b, da, db, target, refined, pull):  # type: ignore[no-untyped-def]
    for j in range(len(a)):
        second = da[j] * db[j] if refined else 0.0
        pull[j] = (target - second) / b[j] - a[j] if a[j] > 0.0 else 0.0


@compiled
def _travel(a, b, da, db, corners, dual, share, take):  # type: ignore[no-untyped-def]
    """Step lengths to the given share of the boundary, primal and dual, and the sum of products there."""
    ball_a = ball_b = row_a = row_b = 1e-300
    for j in range(corners):
        ball_a, ball_b = max(ball_a, -da[j] / a[j]), max(ball_b, -db[j] / b[j])
    for j in range(corners, len(a)):
        if a[j] > 0.0:
            row_a, row_b = max(row_a, -da[j] / a[j]), max(row_b, -db[j] / b[j])
    primal = min(1.0, share / max(row_a, ball_b if dual else ball_a))
    multiplier = min(1.0, share / max(row_b, ball_a if dual else ball_b))
    if corners == 0:  # a curved ball ties W to M: one length for both
        primal = multiplier = min(primal, multiplier)
    total = 0.0
    for j in range(len(a)):
        swapped = dual and j < corners
        new_a = a[j] + (multiplier if swapped else primal) * da[j]
        new_b = b[j] + (primal if swapped else multiplier) * db[j]
        total += new_a * new_b
        if take:
            a[j], b[j] = new_a, new_b
    return primal, multiplier, total
