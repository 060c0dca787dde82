"""Complementary pairs: positive numbers a_j, b_j whose products an interior point drives to zero."""

from __future__ import annotations

import numpy as np

from attsvm.program.compiled import compiled
from attsvm.tokens import Float

BOUNDARY = 0.995
"""Share of the way to the boundary that a step may go."""


class Pairs:
    """The pairs of the ball, then those of the rows: their slacks and multipliers.

    a, b (m,): primal and dual, and their steps da, db. A tied row has a = 0 and a multiplier of any sign.
    """

    def __init__(self, ball: tuple[Float, Float], slack: Float, multipliers: Float) -> None:
        self.corners = ball[0].size
        self.a = np.concatenate([ball[0].ravel(), slack])
        self.b = np.concatenate([ball[1].ravel(), multipliers])
        self.da, self.db, self.wanted = np.zeros((3, len(self.a)))
        self.count = int(np.count_nonzero(self.a))
        vectors = self.a, self.b, self.da, self.db, self.wanted
        self.of_ball = [x[: self.corners].reshape(ball[0].shape) for x in vectors]
        self.of_rows = [x[self.corners :] for x in vectors]

    def product(self) -> float:
        """Σ a_j b_j."""
        return float(self.a @ self.b)

    def aim(self, target: float, refined: bool) -> None:
        """What a ∘ b should change by, to first order: to target, less the last step's da ∘ db if refined."""
        if refined:
            np.multiply(self.da, self.db, out=self.wanted)
            np.subtract(target, self.wanted, out=self.wanted)
            self.wanted -= self.a * self.b
        else:
            np.multiply(self.a, -self.b, out=self.wanted)

    def look(self) -> float:
        """Σ a_j b_j after the longest step."""
        return float(_travel(self.a, self.b, self.da, self.db, self.corners == 0, 1.0, False)[1])

    def move(self) -> float:
        """Go nearly as far; how far, for primal variables."""
        return float(_travel(self.a, self.b, self.da, self.db, self.corners == 0, BOUNDARY, True)[0])


@compiled
def _travel(a, b, da, db, curved, share, take):  # type: ignore[no-untyped-def]
    """The primal step to the given share of the boundary; the sum of products after it and the dual step."""
    shrink_a = shrink_b = share
    for j in range(len(a)):
        if a[j] > 0.0:
            if -da[j] > shrink_a * a[j]:
                shrink_a = -da[j] / a[j]
            if -db[j] > shrink_b * b[j]:
                shrink_b = -db[j] / b[j]
    if curved and shrink_a < shrink_b:  # a curved ball ties W to M: one length for both
        shrink_a = shrink_b
    if curved:
        shrink_b = shrink_a
    total = 0.0
    for j in range(len(a)):
        x, y = a[j] + share / shrink_a * da[j], b[j] + share / shrink_b * db[j]
        total += x * y
        if take:
            a[j], b[j] = x, y
    return share / shrink_a, total
