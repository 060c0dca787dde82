"""min ‖W‖_op over the rows: an interior point whose inner operator is inverted in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import solve_triangular

from attsvm.norms import Norm
from attsvm.program import schatten
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.pool import Pool
from attsvm.program.scaling import Scaling
from attsvm.program.schatten_interior import Aim, Cholesky, Iterate
from attsvm.tokens import Float


def solve(rows: Constraints, norm: Norm) -> Answer:
    """Smallest spectral norm over the rows, through the pair of semidefinite programs below."""
    return schatten.solve(rows, norm, SpectralProgram)


@dataclass(frozen=True, eq=False)
class SpectralProgram:
    """The pair of semidefinite programs of the spectral norm.

        min t      with  P = [[t I, W], [Wᵀ, t I]] ⪰ 0,         A W − s = b,  s ≥ 0
        max bᵀλ    with  Q = [[·, −M/2], [−Mᵀ/2, ·]] ⪰ 0,  tr Q = 1,  M = Σ λ_j A_j,  λ ≥ 0
    """

    pool: Pool

    def weight(self, at: Iterate) -> Float:
        return at.P[: self.pool.d, self.pool.d :]

    def start(self, W: Float, slack: Float, multipliers: Float) -> Iterate:
        """P around W with room above its norm, and everything else on the central path of that P."""
        d = self.pool.d
        P = 1.5 * np.linalg.norm(W, 2) * np.eye(d + self.pool.e)
        P[:d, d:], P[d:, :d] = W, W.T
        inverse = np.linalg.inv(P)
        mean = 1 / np.trace(inverse)
        multipliers = np.where(self.pool.tied, 0.0, mean / np.where(self.pool.tied, 1.0, slack))
        return Iterate(P, mean * (inverse + inverse.T) / 2, slack, multipliers)

    def newton(self, at: Iterate, scaling: Scaling) -> SpectralNewton:
        return SpectralNewton(self, at, scaling)


class SpectralNewton:
    """The Newton system in (dW, dt, dλ), with U = G⁻ᵀG⁻¹ and F = (U²)₁₂; W is eliminated by L⁻¹.

        L(dW) + F dt − ½ Σ dλ_j A_j = first,    L(dW) = U₁₁ dW U₂₂ + U₁₂ dWᵀ U₁₂
        2⟨F, dW⟩ + tr(U²) dt        = trace
        A dW + (s/λ) dλ             = rows
    """

    def __init__(self, program: SpectralProgram, at: Iterate, scaling: Scaling) -> None:
        pool = self.pool = program.pool
        d, self.at, self.backward = pool.d, at, scaling.backward
        self.U = scaling.backward @ scaling.backward.T
        square = self.U @ self.U
        self.trace, self.F = float(np.trace(square)), square[:d, d:]
        self.missing = pool.bound + at.slack - pool.margins(program.weight(at))
        self.uneven = -pool.combine(at.multipliers) / 2 - at.Q[:d, d:]
        self.over = np.where(pool.tied, 0.0, 1 / np.where(pool.tied, 1.0, at.multipliers))
        self.inverse = Inverse(self.U, scaling.forward @ scaling.forward.T, d)
        matrix = self.inverse.gram(pool)
        matrix[np.diag_indices_from(matrix)] += at.slack * self.over
        self.factor = Cholesky(matrix)
        self.rise = self.inverse(self.F)
        self.coupling = pool.margins(self.rise)
        self.response = self.factor.solve(self.coupling)
        self.curvature = self.trace - 2 * (self.F * self.rise).sum() + self.coupling @ self.response

    def step(self, aim: Aim) -> Iterate:
        d, at = self.pool.d, self.at
        aimed = self.backward @ aim.matrix @ self.backward.T
        first = aimed[:d, d:] - self.uneven
        trace = float(np.trace(aimed) + np.trace(at.Q) - 1)
        right = (first, trace, self.missing + aim.rows * self.over)
        dW, dt, multipliers = self._solve(*right)
        # One refinement: without it the error of L⁻¹ ends the convergence at a gap of 1e-8.
        more = self._solve(*self._residual(right, (dW, dt, multipliers)))
        dW, dt, multipliers = dW + more[0], dt + more[1], multipliers + more[2]
        P = dt * np.eye(len(aimed))
        P[:d, d:], P[d:, :d] = dW, dW.T
        Q = aimed - self.U @ P @ self.U
        slack = (aim.rows - at.slack * multipliers) * self.over
        return Iterate(P, (Q + Q.T) / 2, slack, multipliers)

    def _solve(self, first: Float, trace: float, rows: Float) -> Unknowns:
        weight = self.inverse(first)
        multipliers = self.factor.solve(rows - self.pool.margins(weight))
        excess = trace - 2 * (self.F * weight).sum() - self.coupling @ multipliers
        dt = float(excess / self.curvature)
        multipliers = multipliers + dt * self.response
        return weight + self.inverse(self.pool.combine(multipliers) / 2) - dt * self.rise, dt, multipliers

    def _residual(self, right: Unknowns, at: Unknowns) -> Unknowns:
        d, (dW, dt, multipliers) = self.pool.d, at
        U11, U12, U22 = self.U[:d, :d], self.U[:d, d:], self.U[d:, d:]
        image = U11 @ dW @ U22 + U12 @ dW.T @ U12 + dt * self.F
        return (
            right[0] - image + self.pool.combine(multipliers) / 2,
            right[1] - dt * self.trace - 2 * float((self.F * dW).sum()),
            right[2] - self.pool.margins(dW) - self.at.slack * self.over * multipliers,
        )


Unknowns = tuple[Float, float, Float]
"""(d', e'), one number, (w,): the three parts of the Newton system and of its right-hand side."""


class Inverse:
    """The inverse of L(X) = U₁₁ X U₂₂ + U₁₂ Xᵀ U₁₂ for U = V⁻¹ positive definite.

    With U₁₁ = G₁G₁ᵀ, U₂₂ = G₂G₂ᵀ and U₁₂ = G₁ diag(γ) G₂ᵀ, L acts on X̂ = G₁ᵀXG₂ in pairs of
    entries, X̂_ab + γ_a γ_b X̂_ba, so that X̂_ab = (B̂_ab − γ_a γ_b B̂_ba) / (1 − γ_a² γ_b²).
    """

    def __init__(self, U: Float, V: Float, d: int) -> None:
        first, second = np.linalg.cholesky(U[:d, :d]), np.linalg.cholesky(U[d:, d:])
        # γ → 1 at the optimum and 1 − γ² from γ would be noise: the eigenvalues of
        # G₁ᵀV₁₁G₁ are 1/(1 − γ²), and their large ones are accurate.
        growth, left = np.linalg.eigh(first.T @ V[:d, :d] @ first)
        left, k = left[:, ::-1], min(d, len(U) - d)
        rest = 1 / np.maximum(growth[::-1][:k], 1.0)
        half = solve_triangular(first, U[:d, d:], lower=True)
        core = solve_triangular(second, half.T, lower=True)
        right, triangle = np.linalg.qr(core @ left[:, :k], mode="complete")
        right[:, :k] *= np.where(np.diagonal(triangle) < 0, -1.0, 1.0)
        self.left = solve_triangular(first, left, lower=True, trans=1).T  # G₁⁻¹
        self.right = solve_triangular(second, right, lower=True, trans=1).T  # G₂⁻¹
        self.k = k
        gamma = np.sqrt(1 - rest)
        denominator = rest[:, None] + rest - rest[:, None] * rest
        self.direct = np.ones((d, len(U) - d))
        self.direct[:k, :k] = 1 / denominator
        self.crossed = gamma[:, None] * gamma / denominator

    def __call__(self, B: Float) -> Float:
        B = self.left @ B @ self.right.T
        X = self.direct * B
        X[: self.k, : self.k] -= self.crossed * B[: self.k, : self.k].T
        return self.left.T @ X @ self.right

    def gram(self, pool: Pool) -> Float:
        """½ ⟨A_i, L⁻¹ A_j⟩ for all pairs of rows: the lower triangle of a (w, w) matrix."""
        delta, queries = pool.delta @ self.left.T, pool.queries @ self.right.T
        small, k = delta[:, : self.k], self.k
        spread = queries[pool.owner, : self.k]
        out = np.empty((len(delta), len(delta)))
        for j, mine in enumerate(pool.slices):
            below = slice(mine.start, None)
            image = delta[below] * ((queries * queries[j]) @ self.direct.T)[pool.owner[below]]
            image[:, :k] -= spread[below] * (small[below] @ (queries[j, :k, None] * self.crossed))
            np.matmul(image, delta[mine].T, out=out[below, mine])
        out /= 2
        return out
