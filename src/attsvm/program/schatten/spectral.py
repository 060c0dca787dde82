"""min ‖W‖_op over the rows: an interior point on its semidefinite form."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from attsvm.numbers import Float
from attsvm.program.rows import Rows
from attsvm.program.schatten.interior_point import Iterate, Refined, Step, inverse
from attsvm.program.schatten.scaling import Scaling
from attsvm.program.schatten.spectral_elimination import ByRows, ByWeight, System


@dataclass(frozen=True, eq=False)
class SpectralForm:
    """The semidefinite form of the spectral norm.

    min t      with  P = [[t I, W], [Wᵀ, t I]] ⪰ 0,         A W − s = b,  s ≥ 0
    max bᵀλ    with  Q = [[·, −M/2], [−Mᵀ/2, ·]] ⪰ 0,  tr Q = 1,  M = Σ λ_j A_j,  λ ≥ 0
    """

    pool: Rows

    def weight(self, at: Iterate) -> Float:
        return at.P[: self.pool.d, self.pool.d :]

    def start(self, W: Float, slack: Float, multipliers: Float) -> Iterate:
        """P around W with room above its norm, Q on the central path of that P, λ below it."""
        d = self.pool.d
        P = 1.5 * np.linalg.svd(W, compute_uv=False)[0] * np.eye(d + self.pool.e)
        P[:d, d:], P[d:, :d] = W, W.T
        Q = np.linalg.inv(P)
        mean = 1 / np.trace(Q)
        multipliers = 0.1 * mean * inverse(slack, self.pool.tied)
        return Iterate(P, mean * (Q + Q.T) / 2, slack, multipliers)

    def shifted(self, at: Iterate, change: Float) -> Iterate:
        P, d = at.P.copy(), self.pool.d
        P[:d, d:] += change
        P[d:, :d] += change.T
        return replace(at, P=P)

    def newton(self, at: Iterate, scaling: Scaling) -> SpectralNewton:
        return SpectralNewton(self, at, scaling)


class SpectralNewton:
    """A Newton step from the solution of its linear system."""

    def __init__(self, form: SpectralForm, at: Iterate, scaling: Scaling) -> None:
        pool = form.pool
        self.d, self.backward = pool.d, scaling.backward
        self.above, self.below = scaling.backward[: pool.d], scaling.backward[pool.d :]
        self.twice = 2 * self.above
        self.square = scaling.backward.T @ scaling.backward
        self.missing = pool.bound + at.slack - pool.margins(form.weight(at))
        self.uneven = pool.combine(at.multipliers) + 2 * at.Q[: pool.d, pool.d :]
        self.excess = float(at.Q.trace()) - 1
        self.over = inverse(at.multipliers, pool.tied)
        self.system = System(pool, scaling, at.slack * self.over)
        # With more rows than entries of W the matrix over the rows is singular up to s/λ.
        small = pool.d * pool.e <= 2 * len(at.slack)
        eliminated = ByWeight(self.system) if small else ByRows(self.system)
        self.solve = Refined(eliminated.solve, self.system.times)

    def step(self, aim: Float, products: Float) -> Step:
        pull = products * self.over
        right = self.system.join(
            self.twice @ aim @ self.below.T + self.uneven,
            float(np.vdot(aim, self.square)) + self.excess,
            self.missing + pull,
        )
        found = self.solve(right)
        W, t, multipliers = self.system.split(found)
        corner = self.above.T @ W @ self.below
        P = corner + corner.T + t * self.square
        return Step(P, aim - P, pull - self.system.ratio * multipliers, multipliers, found)

    def unscaled(self, step: Step) -> Iterate:
        W, t, multipliers = self.system.split(step.own)
        P = t * np.eye(len(step.P))
        P[: self.d, self.d :], P[self.d :, : self.d] = W, W.T
        Q = self.backward @ step.Q @ self.backward.T
        return Iterate(P, (Q + Q.T) / 2, step.slack, multipliers)
