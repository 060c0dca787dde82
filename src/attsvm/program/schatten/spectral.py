"""min ‖W‖_op over the rows: an interior point on its semidefinite form."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.linalg import solve_triangular

from attsvm.numbers import Float
from attsvm.numbers.linear import Cholesky
from attsvm.program.rows import Rows
from attsvm.program.schatten.curved import Paired
from attsvm.program.schatten.interior_point import Iterate, Refined, Scaling, Step, inverse


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
        solution = self.solve(right)
        W, t, multipliers = self.system.split(solution)
        corner = self.above.T @ W @ self.below
        P = corner + corner.T + t * self.square
        return Step(P, aim - P, pull - self.system.ratio * multipliers, multipliers, solution)

    def unscaled(self, step: Step) -> Iterate:
        W, t, multipliers = self.system.split(step.unknowns)
        P = t * np.eye(len(step.P))
        P[: self.d, self.d :], P[self.d :, : self.d] = W, W.T
        Q = self.backward @ step.Q @ self.backward.T
        return Iterate(P, (Q + Q.T) / 2, step.slack, multipliers)


# ---------------------------------------------------------------------- its system, and two ways to solve it


class System:
    """The linear map of the Newton system, for U = V⁻¹ positive definite and F = (U²)₁₂.

    2 L(dW) + 2 F dt − Σ dλ_j A_j,    L(dW) = U₁₁ dW U₂₂ + U₁₂ dWᵀ U₁₂
    2⟨F, dW⟩ + tr(U²) dt
    A dW + ratio dλ                 ratio = s/λ, 0 where tied

    The unknowns, and a right-hand side, are one vector (d·e + 1 + w,) of dW, dt and dλ.
    """

    def __init__(self, pool: Rows, scaling: Scaling, ratio: Float) -> None:
        d = pool.d
        self.pool, self.scaling, self.ratio, self.entries = pool, scaling, ratio, pool.d * pool.e
        U = scaling.backward @ scaling.backward.T
        self.U11, self.U12, self.U22 = U[:d, :d], U[:d, d:], U[d:, d:]
        self.F, self.trace = U[:d] @ U[:, d:], float(np.vdot(U, U))

    def join(self, W: Float, t: float, rows: Float) -> Float:
        """One vector of W (d, e), t and rows (w,)."""
        return np.concatenate((W.ravel(), (t,), rows))

    def split(self, x: Float) -> tuple[Float, float, Float]:
        """The inverse of `join`: W (d, e), t, rows (w,)."""
        size = self.entries
        return x[:size].reshape(self.pool.d, self.pool.e), float(x[size]), x[size + 1 :]

    def times(self, x: Float) -> Float:
        W, t, rows = self.split(x)
        image = self.U11 @ W @ self.U22 + self.U12 @ W.T @ self.U12
        return self.join(
            2 * (image + t * self.F) - self.pool.combine(rows),
            2 * float(np.vdot(self.F, W)) + self.trace * t,
            self.pool.margins(W) + self.ratio * rows,
        )


class ByWeight:
    """Eliminates dλ: one symmetric matrix of size d·e + 1, for few entries of W and many rows.

        [[2L + AᵀDA, 2F], [2Fᵀ, tr U²]],    D = λ/s,   AᵀDA = Σ_i (Δ_iᵀ D_i Δ_i) ⊗ z_i z_iᵀ

    Tied rows have no D: they border the matrix.
    """

    def __init__(self, system: System) -> None:
        pool = system.pool
        self.system, self.tied = system, pool.tied
        self.some_tied = bool(pool.tied.any())
        self.weights = inverse(system.ratio, pool.tied)
        self.factor = Cholesky(self._matrix)
        if self.some_tied:
            self.ties = np.pad(pool.some(pool.tied).dense, ((0, 0), (0, 1)))
            self.lifted = self.factor.solve(self.ties.T)
            self.border = Cholesky(lambda: self.ties @ self.lifted)

    def _matrix(self) -> Float:
        system, size = self.system, self.system.entries
        # Indices a, b, c, f: the change of entry (a, b) of the image with entry (c, f) of W.
        total = (2 * system.U11)[:, None, :, None] * system.U22[:, None, :]
        total += (2 * system.U12)[:, None, None, :] * system.U12.T[:, :, None]
        out = np.empty((size + 1, size + 1))
        np.add(total.reshape(size, size), gram(system.pool, self.weights), out=out[:size, :size])
        out[size, :size], out[size, size] = 2 * system.F.ravel(), system.trace
        return out

    def solve(self, right: Float) -> Float:
        system, pool = self.system, self.system.pool
        solution, rows = right[: system.entries + 1].copy(), right[system.entries + 1 :]
        solution[:-1] += pool.combine(self.weights * rows).ravel()
        solution = self.factor.solve(solution)
        if self.some_tied:
            ties = self.border.solve(rows[self.tied] - self.ties @ solution)
            solution = solution + self.lifted @ ties
        rows = self.weights * (rows - pool.margins(solution[:-1]))
        if self.some_tied:
            rows[self.tied] = ties
        return np.concatenate((solution, rows))


def gram(rows: Rows, weights: Float) -> Float:
    """Σ weight_j A_j ⊗ A_j: (w,) → (d·e, d·e)."""
    if rows.features is not None:
        return np.asarray((rows.features.T * weights) @ rows.features)
    weighted = weights[:, None] * rows.delta
    blocks = [weighted[mine].T @ rows.delta[mine] for mine in rows.slices]
    outer = rows.queries[:, :, None] * rows.queries[:, None, :]
    total = np.tensordot(np.stack(blocks), outer, axes=(0, 0))  # indices a, c, b, f
    return total.transpose(0, 2, 1, 3).reshape(rows.d * rows.e, -1)


class ByRows:
    """Eliminates dW through L⁻¹: a matrix ½ A L⁻¹ Aᵀ + diag(s/λ) of size w, for few rows."""

    def __init__(self, system: System) -> None:
        pool = system.pool
        self.system = system
        self.inverse = inverse_of(system)
        self.factor = Cholesky(lambda: self.inverse.gram(pool), system.ratio)
        self.rise = self.inverse(2 * system.F)
        self.coupling = pool.margins(self.rise)
        self.response = self.factor.solve(self.coupling)
        bend = system.trace - 2 * float(np.vdot(system.F, self.rise))
        self.curvature = bend + float(self.coupling @ self.response)

    def solve(self, right: Float) -> Float:
        system, pool = self.system, self.system.pool
        matrix, number, rows = system.split(right)
        weight = self.inverse(matrix)
        rows = self.factor.solve(rows - pool.margins(weight))
        excess = number - 2 * np.vdot(system.F, weight) - self.coupling @ rows
        dt = float(excess / self.curvature)
        rows = rows + dt * self.response
        return system.join(weight + self.inverse(pool.combine(rows)) - dt * self.rise, dt, rows)


def inverse_of(system: System) -> Paired:
    """½ L⁻¹ in closed form.

    With U₁₁ = G₁G₁ᵀ, U₂₂ = G₂G₂ᵀ and U₁₂ = G₁ diag(γ) G₂ᵀ, L acts on X̂ = G₁ᵀXG₂ in pairs of
    entries, X̂_ab + γ_a γ_b X̂_ba, so that X̂_ab = (B̂_ab − γ_a γ_b B̂_ba) / (1 − γ_a² γ_b²).
    """
    d, e = system.F.shape
    k = min(d, e)
    first, second = np.linalg.cholesky(system.U11), np.linalg.cholesky(system.U22)
    # γ → 1 at the optimum and 1 − γ² from γ would be noise: the eigenvalues of
    # G₁ᵀV₁₁G₁ are 1/(1 − γ²), and their large ones are accurate.
    above = first.T @ system.scaling.forward[:d]
    growth, left = np.linalg.eigh(above @ above.T)
    left, complement = left[:, ::-1], 1 / np.maximum(growth[::-1][:k], 1.0)
    turned = solve_triangular(first, system.U12, lower=True)
    core = solve_triangular(second, turned.T, lower=True)
    right, triangle = np.linalg.qr(core @ left[:, :k], mode="complete")
    right[:, :k] *= np.where(np.diagonal(triangle) < 0, -1.0, 1.0)
    left = solve_triangular(first, left, lower=True, trans=1).T  # G₁⁻¹
    right = solve_triangular(second, right, lower=True, trans=1).T  # G₂⁻¹
    gamma = np.sqrt(1 - complement)
    twice = 2 * (complement[:, None] + complement - complement[:, None] * complement)
    direct = np.full((d, e), 0.5)
    direct[:k, :k] = 1 / twice
    return Paired(left, right, direct, -gamma[:, None] * gamma / twice)
