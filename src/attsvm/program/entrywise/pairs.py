"""Complementary pairs: positive numbers a_j, b_j whose products an interior point drives to zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.program.compiled import compiled
from attsvm.tokens import Float

BOUNDARY = 0.995
"""Share of the way to the boundary that a step may go."""


@dataclass(eq=False)
class Pairs:
    """The pairs of the ball, then those of the rows: their slacks a and multipliers b.

    a, b (m,) and their steps da, db; a tied row has a = 0 and a multiplier of any sign.
    corners: how many pairs belong to the ball. dual: whether its a, rather than its b, are dual variables.
    """

    a: Float
    b: Float
    corners: int
    dual: bool

    @classmethod
    def of(cls, part: Float, slack: Float, row_slack: Float, multipliers: Float, dual: bool) -> Pairs:
        """Copies of the ball's pairs (2, d, e) and of those of the rows (k,) in one piece."""
        a = np.concatenate([part.ravel(), row_slack])
        return cls(a, np.concatenate([slack.ravel(), multipliers]), part.size, dual)

    def __post_init__(self) -> None:
        self.da, self.db = np.zeros_like(self.a), np.zeros_like(self.b)
        self.count = int(np.count_nonzero(self.a))

    def product(self) -> float:
        """Σ a_j b_j."""
        return float(self.a @ self.b)

    def pull(self, target: float, refined: bool) -> Float:
        """The change of a, at fixed b, that brings every product to target, refined by the last step's da ∘ db."""
        if not refined:
            return -self.a
        return _pull(self.a, self.b, self.da, self.db, target, np.empty_like(self.a))

    def look(self) -> float:
        """Σ a_j b_j after the longest step."""
        return float(_travel(self.a, self.b, self.da, self.db, self.corners, self.dual, 1.0, False)[2])

    def move(self) -> tuple[float, float]:
        """Go nearly as far; how far, for primal and for dual variables."""
        primal, dual, _ = _travel(self.a, self.b, self.da, self.db, self.corners, self.dual, BOUNDARY, True)
        return float(primal), float(dual)


@compiled
def _pull(a, b, da, db, target, out):  # type: ignore[no-untyped-def]
    for j in range(len(a)):
        out[j] = (target - da[j] * db[j]) / b[j] - a[j] if a[j] > 0.0 else 0.0
    return out


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
