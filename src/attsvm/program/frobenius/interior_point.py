"""Frobenius, many rows per unknown: an interior point whose Newton matrix is a sum of Kronecker products.

That matrix has d·e unknowns, however many the rows; the general path has one per row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.norms import frobenius
from attsvm.numbers import Bool, Float
from attsvm.numbers.linear import RIDGES, Cholesky
from attsvm.program.bounds import gap
from attsvm.program.frobenius import contradiction, pivoting
from attsvm.program.frobenius.packed import Packed
from attsvm.program.rows import Candidate, Rows

ITERATIONS = 150
"""Newton steps at most; 10 to 20 are usual, and a few more per doubling of |W|."""

TIE = 1e-11
"""Softness of an equality row inside one Newton step; the error shrinks by about this factor each step."""


FLAT = 1e-2
"""|Σ λ_j A_j| per multiplier below which the multipliers are first tried as a contradiction."""

FIRM, REPEATED = 1e8, 4
"""Weight of the rows beside the identity, in a system whose solution moves them to a contradiction; and how
often it is solved, which removes the effect of the identity."""


@dataclass
class PrimalDual:
    """Weight W (d, e), multipliers and slacks (k,) of the rows."""

    W: Float
    lam: Float
    slack: Float


def solve_by_interior_point(rows: Rows) -> Candidate | None:
    """Interior point until the active rows show, then block pivoting from these to full accuracy.

    rows: the largest bound is one. When no weight exists the multipliers diverge to a ray, and a proof
    is sought among its rows. None when the Newton matrix loses its digits before anything is decided.
    """
    method = Interior(rows)
    best, polish_below, steep, hopeless = None, 1e-3, contradiction.STEEP, FLAT
    for _ in range(ITERATIONS):
        if not method.advance():
            break
        lam, W = method.point.lam, method.point.W
        state = Candidate(W, lam, gap(rows, frobenius, W, lam))
        best = state if best is None or state.gap < best.gap else best
        if state.gap <= polish_below:
            polish_below = 1e-3 * state.gap
            polished = pivoting.solve_by_pivoting(rows, rows.tied | (lam > method.point.slack), lam)
            if polished is not None and polished.gap < state.gap:
                return polished
        if state.gap <= pivoting.GOOD:
            return state
        steepness = contradiction.steepness(rows, lam, rows.combine(lam))
        if steepness < 1e-15:  # the ray is as exact as it can be
            break
        proof = None
        if steepness < hopeless:
            hopeless = 0.1 * steepness
            proof = method.proof()
        if proof is None and steepness < steep:
            steep = 1e-2 * steepness
            proof = contradiction.ray(rows, lam)
        if proof is not None:
            return proof
    return best


class Interior:
    """Mehrotra's predictor-corrector for  min ½‖W‖²  s.t.  ⟨â_j, W⟩ − s_j = b_j,  s ≥ 0.

        (1 + Σ_i (Δ_iᵀ D_i Δ_i) ⊗ (z_i z_iᵀ)) dW = r,     D = λ/s

    One Newton matrix (d·e × d·e) and one Cholesky factor per iteration, whatever the number of
    rows and their dependence.
    Reference: Mehrotra 1992, "On the implementation of a primal-dual interior point method".
    """

    def __init__(self, rows: Rows) -> None:
        self.rows, self.packed = rows, Packed.of(rows)
        self.inside: Bool = ~rows.tied
        self.count = int(self.inside.sum())
        d, e, z = rows.d, rows.e, rows.queries
        self.keys_half, self.queries_half = np.tril_indices(d), np.tril_indices(e)
        self.pairs = z[:, self.queries_half[0]] * z[:, self.queries_half[1]]
        self.spread = np.empty((e, e), np.intp)
        order = np.arange(self.pairs.shape[1])
        self.spread[self.queries_half] = order
        self.spread.T[self.queries_half] = order
        self.point = self._start()

    def _start(self) -> PrimalDual:
        """The mean row, scaled until most rows keep their bound, and slacks of that size."""
        rows, inside = self.rows, self.inside
        W = rows.combine(np.ones(len(rows)))
        margins = rows.margins(W)
        scale = 1.0 / max(float(np.median(margins[inside])), 1e-3 * float(np.linalg.norm(W)))
        W, margins = scale * W, scale * margins
        slack = np.maximum(margins - rows.bound, 1.0)
        size = float((W * W).sum())
        lam = size / self.count / slack
        return PrimalDual(W, np.where(inside, lam, 0.0), np.where(inside, slack, 1.0))

    # ------------------------------------------------------------------ the Newton system

    def _newton_matrix(self, weights: Float) -> Float:
        """1 + Σ_i (Δ_iᵀ D_i Δ_i) ⊗ (z_i z_iᵀ), its lower triangle, from one product of half-vectors."""
        packed, (d, e) = self.packed, self.point.W.shape
        scaled = packed.delta * packed.pack(weights)[..., None]
        grams = np.matmul(scaled.transpose(0, 2, 1), packed.delta)
        product = grams[:, self.keys_half[0], self.keys_half[1]].T @ self.pairs
        matrix = np.zeros((d, e, d, e))
        for row, a, c in zip(product, *self.keys_half, strict=True):
            matrix[a, :, c, :] = row[self.spread]
        out = matrix.reshape(d * e, d * e)
        out.flat[:: d * e + 1] += 1.0
        return out

    @property
    def _weights(self) -> Float:
        return np.where(self.inside, self.point.lam / self.point.slack, 1 / TIE)

    def _step(self, factor: Cholesky, center: Float) -> PrimalDual:
        """Newton step towards λ s = center."""
        rows, p, weights = self.rows, self.point, self._weights
        short = rows.bound + np.where(self.inside, p.slack, 0.0) - rows.margins(p.W)
        pull = np.where(self.inside, center / p.slack - p.lam, 0.0) + weights * short
        right = rows.combine(p.lam + pull) - p.W
        dW = factor.solve(right.ravel()).reshape(p.W.shape)
        moved = rows.margins(dW)
        return PrimalDual(dW, pull - weights * moved, np.where(self.inside, moved - short, 0.0))

    def proof(self) -> Candidate | None:
        """The multipliers, moved until the rows cancel, if that leaves them positive: a contradiction.

            λ − D A X,    (A* D A) X = Σ λ_j A_j,    D = λ²

        Multipliers inside the cone of all contradictions change by a small part of themselves each.
        """
        rows, lam = self.rows, self.point.lam / self.point.lam.max()
        weights = np.where(self.inside, lam * lam, 1.0) * FIRM
        try:
            factor = Cholesky(lambda: self._newton_matrix(weights), ridges=RIDGES[:4])
        except np.linalg.LinAlgError:
            return None
        for _ in range(REPEATED):
            X = factor.solve(rows.combine(lam).ravel()).reshape(rows.d, rows.e)
            lam = lam - weights * rows.margins(X)
        return contradiction.proof(rows, lam) if contradiction.is_proof(rows, lam) else None

    def _longest(self, step: PrimalDual) -> tuple[float, float]:
        """Largest steps of W and s, and of λ, that keep both positive."""
        p = self.point
        return _ratio(p.slack, step.slack), _ratio(p.lam, np.where(self.inside, step.lam, 0.0))

    def advance(self) -> bool:
        """One predictor-corrector step; False when the Newton matrix has lost its digits."""
        weights = self._weights
        try:
            factor = Cholesky(lambda: self._newton_matrix(weights), ridges=RIDGES[:4])
        except np.linalg.LinAlgError:
            return False
        p = self.point
        mean = float((p.lam * p.slack)[self.inside].sum()) / self.count
        affine = self._step(factor, np.zeros_like(p.lam))
        primal, dual = self._longest(affine)
        ahead = (p.lam + dual * affine.lam) * (p.slack + primal * affine.slack)
        sigma = (max(float(ahead[self.inside].sum()), 0.0) / self.count / mean) ** 3
        step = self._step(factor, sigma * mean - affine.lam * affine.slack)
        if not np.isfinite(step.W).all():
            return False
        reach = min(self._longest(step))
        # Keep a distance from the boundary, which shrinks as the steps improve.
        reach *= max(0.9, 1.0 - max(0.1 * sigma, 1e-5)) if reach < 1 else 1.0
        p.W, p.lam = p.W + reach * step.W, p.lam + reach * step.lam
        p.slack = p.slack + reach * step.slack
        return True


def _ratio(x: Float, dx: Float) -> float:
    """Largest t ≤ 1 with x + t dx ≥ 0."""
    down = dx < 0
    return min(1.0, float((-x[down] / dx[down]).min(initial=np.inf)))
