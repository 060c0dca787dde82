"""A primal-dual interior point for Schatten(p), 1 < p < ∞: the one of lp on singular values, 6 to 20 steps.

    min ‖W‖_p  s.t.  A W − s = b,  s ≥ 0,       W = U diag(σ^(q−1)) Vᵀ  where  M = Σ λ_j A_j = U diag(σ) Vᵀ

W and M, both of norm one, are tied by a smooth map. It is linearised as W of M if p < 2, as M of W if p > 2:
of the two, the one with a derivative at zero. In the singular basis that acts on pairs of entries (`Paired`),
so that the Newton matrix  A L A* + diag(s/λ)  is one over the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.norms import Norm
from attsvm.numbers import Float
from attsvm.numbers.linear import Cholesky
from attsvm.program import bounds
from attsvm.program.answer import Answer
from attsvm.program.interior_engine import (
    BOUNDARY,
    FLOOR,
    LEAST,
    Pace,
    centred_pair,
    first_pair,
    length,
    nearer,
)
from attsvm.program.rows import Candidate, Rows
from attsvm.program.schatten.interior_point import inverse


class CurvedPoint:
    """One interior point under way, an `InteriorPoint`.

    W (d', e') in the span of the pool's rows, multipliers and slacks (k,), all at ‖W‖_p = ‖M‖_q = 1;
    size: W was divided by it; p moves from 2 to its goal.
    """

    def __init__(self, rows: Rows, norm: Norm, pace: Pace, start: Answer) -> None:
        self.goal, (self.pace, self.complementarity) = norm.p, pace
        self.p, self.size = nearer(2.0, norm.p, self.pace), float(norm.value(start.W))
        W, multipliers = start.W / self.size, rows.pick(start.multipliers) * rows.length
        multipliers = multipliers / float(norm.dual.value(rows.combine(multipliers)))
        bound = rows.bound / self.size
        self._lay_out(rows, W, *first_pair(rows, rows.margins(W), bound, multipliers))

    def _lay_out(self, rows: Rows, W: Float, slack: Float, multipliers: Float) -> None:
        """W (d, e) and the rows' pairs, in the span of these rows."""
        self.pool, self.span = rows, rows.span
        self.inner, self.W = rows.within(self.span), self.span.reduce(W)
        self.bound, self.slack, self.multipliers = rows.bound / self.size, slack * ~rows.tied, multipliers
        self._settle()

    def _settle(self) -> None:
        """Scale W and M to norm one, as at the solution; compute residuals and the gap."""
        M = self.inner.combine(self.multipliers)
        of_W, of_M = np.linalg.svd(self.W), np.linalg.svd(M)
        size, steep = length(of_W[1], self.p), length(of_M[1], self.p / (self.p - 1))
        self.size *= size
        self.W, self.bound, self.slack = self.W / size, self.bound / size, self.slack / size
        self.multipliers = self.multipliers / steep
        self._linearise((of_W[0], of_W[1] / size, of_W[2]), (of_M[0], of_M[1] / steep, of_M[2]), M / steep)
        self.over = inverse(self.multipliers, self.pool.tied)
        self.ratio, margins = self.slack * self.over, self.inner.margins(self.W)
        self.residual = self.slack + self.bound - margins
        self.value = float(self.multipliers @ self.bound)
        self.short = float(np.abs(self.multipliers * self.residual).sum())
        bounded = self.bound > 0
        least = float((margins[bounded] / self.bound[bounded]).min())
        gap = bounds.relative_gap(
            self.value, least, 1.0, bounds.missed(self.pool, margins) / self.bound.max()
        )
        self.gap = float(gap) if self.p == self.goal else 1.0

    def _linearise(self, of_W: Singular, of_M: Singular, M: Float) -> None:
        """dW = map(dM) + offset."""
        p, q = self.p, self.p / (self.p - 1)
        if p < 2:
            self.map = of_power(of_M, q - 1)
            self.offset: Float = power(of_M, q - 1) - self.W
        else:
            self.map = of_root(of_W, p - 1, FLOOR)
            self.offset = self.map(M - power(of_W, p - 1))

    @property
    def candidate(self) -> Candidate:
        """W (d, e) and the multipliers in the units of the rows."""
        return Candidate(self.span.expand(self.W) * self.size, self.multipliers.copy(), self.gap)

    def step(self) -> None:
        """One predictor-corrector step; one length for both, because W is tied to M."""
        # Complementarity must not fall faster than infeasibility, nor below the rounding of the map.
        least = max(self.short, self.value * (LEAST if self.p == self.goal else self.complementarity))
        slack, multipliers, free = self.slack, self.multipliers, ~self.pool.tied
        total, target = float(slack @ multipliers), 0.0
        factor, second = Cholesky(lambda: self.map.gram(self.inner), self.ratio), np.zeros(len(slack))
        for share in (1.0, BOUNDARY):
            pull = (target - slack * multipliers - second) * self.over
            dW, dl = self._solve(factor, self.residual + pull - self.inner.margins(self.offset))
            ds = pull - self.ratio * dl
            fall = max(float((-x[free] / y[free]).max()) for x, y in ((ds, slack), (dl, multipliers)))
            along = share / max(share, fall)
            second, reached = ds * dl, float((slack + along * ds) @ (multipliers + along * dl))
            target = min(total, max(total * (reached / total) ** 3, least)) / np.count_nonzero(free)
        self.W = self.W + along * (dW + self.offset)
        self.slack, self.multipliers = slack + along * ds, multipliers + along * dl
        if along > 0.5:
            self.p = nearer(self.p, self.goal, self.pace)
        self._settle()

    def _solve(self, factor: Cholesky, right: Float) -> tuple[Float, Float]:
        """map(Σ x_j A_j) and x with  A map(Σ x_j A_j) + s/λ x = right,  refined once."""
        W, x, residual = np.zeros_like(self.W), np.zeros_like(right), right
        for _ in range(2):
            change = factor.solve(residual)
            # W is refined with x: a new product with the map, up to 1e10, would undo the refinement.
            W, x = W + self.map(self.inner.combine(change)), x + change
            residual = right - self.inner.margins(W) - self.ratio * x
        return W, x

    def join(self, rows: Rows) -> None:
        """Continue with more rows: a new one starts on the central path, as far inside as it is outside."""
        places, W = rows.places(self.pool), self.span.expand(self.W)
        mean = float(self.slack @ self.multipliers) / np.count_nonzero(~self.pool.tied)
        slack, multipliers = centred_pair(rows.margins(W), rows.bound / self.size, mean)
        slack[places], multipliers[places] = self.slack, self.multipliers
        self._lay_out(rows, W, slack, multipliers)


# ---------------------------------------------------------------------- derivatives on pairs of entries


@dataclass(frozen=True, eq=False)
class Paired:
    """X ↦ leftᵀ Y right,   Y_ij = direct_ij B_ij + crossed_ij B_ji,   B = left X rightᵀ.

    left (d, d), right (e, e), direct (d, e); crossed (k, k), symmetric: the B_ji for i, j < k = min(d, e).
    """

    left: Float
    right: Float
    direct: Float
    crossed: Float

    def __call__(self, X: Float) -> Float:
        k, B = len(self.crossed), self.left @ X @ self.right.T
        Y = self.direct * B
        Y[:k, :k] += self.crossed * B[:k, :k].T
        return np.asarray(self.left.T @ Y @ self.right)

    def gram(self, rows: Rows) -> Float:
        """The products ⟨A_i, image of A_j⟩ of all pairs of rows: the lower triangle of (w, w)."""
        delta, queries, k = rows.delta @ self.left.T, rows.queries @ self.right.T, len(self.crossed)
        small, spread = delta[:, :k], queries[rows.owner, :k]
        out = np.empty((len(delta), len(delta)))
        for j, mine in enumerate(rows.slices):
            earlier = slice(0, mine.stop)
            image = delta[earlier] * ((queries * queries[j]) @ self.direct.T)[rows.owner[earlier]]
            image[:, :k] += spread[earlier] * (small[earlier] @ (queries[j, :k, None] * self.crossed))
            np.matmul(delta[mine], image.T, out=out[mine, earlier])
        return out


Singular = tuple[Float, Float, Float]
"""U (d, d), σ (k,) and Vᵀ (e, e) of a matrix (d, e)."""


def power(singular: Singular, r: float) -> Float:
    """U diag(σ^r) Vᵀ."""
    U, sigma, Vt = singular
    return np.asarray((U[:, : len(sigma)] * sigma**r) @ Vt[: len(sigma)])


def of_power(singular: Singular, r: float) -> Paired:
    """The derivative of `power`, r > 1.

    It multiplies the symmetric part of a pair by (σ_i^r − σ_j^r)/(σ_i − σ_j), the antisymmetric part by
    (σ_i^r + σ_j^r)/(σ_i + σ_j), and an entry beyond the square by σ_i^(r−1).
    Reference: Noferini 2017, "A formula for the Fréchet derivative of a generalized matrix function".
    """
    return _paired(singular, *_quotients(singular[1], r))


def of_root(singular: Singular, r: float, floor: float) -> Paired:
    """The inverse of that derivative plus `floor`."""
    return _paired(singular, *(1 / (x + floor) for x in _quotients(singular[1], r)))


def _paired(singular: Singular, even: Float, odd: Float, beyond: Float) -> Paired:
    U, _, Vt = singular
    k = len(beyond)
    direct = np.tile(beyond, (len(U), 1)) if len(Vt) == k else np.tile(beyond[:, None], len(Vt))
    direct[:k, :k] = (even + odd) / 2
    return Paired(U.T, Vt, direct, (even - odd) / 2)


def _quotients(sigma: Float, r: float) -> tuple[Float, Float, Float]:
    """(x^r ∓ y^r)/(x ∓ y) of all pairs (k, k), without cancellation, and x^(r−1) (k,), for r > 1."""
    large, small = np.maximum.outer(sigma, sigma), np.minimum.outer(sigma, sigma)
    safe, size = np.where(large > 0, large, 1.0), large ** (r - 1)
    ratio, logs = small / safe, np.log1p((small - large) / safe)
    even = np.where(logs == 0, r, np.expm1(r * logs) / np.expm1(np.where(logs == 0, -1.0, logs)))
    return size * even, size * (1 + ratio**r) / (1 + ratio), sigma ** (r - 1)
