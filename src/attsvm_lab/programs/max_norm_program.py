"""min γ₂(W) over the rows: the staged path of the nuclear norm, with free diagonals beside the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from attsvm.norms import Norm
from attsvm.numbers import Float
from attsvm.numbers.linear import Cholesky
from attsvm.numbers.threads import single_thread
from attsvm.program.answer import Answer
from attsvm.program.constraints import Constraints
from attsvm.program.rows import Rows, Span
from attsvm.program.schatten.interior_point import Form, Iterate, Refined, Scaling, Step, inverse
from attsvm.program.schatten.nuclear import NuclearForm, between, hadamard
from attsvm.program.schatten.route import solve_in_stages
from attsvm.program.schatten.staged import StagedPath

ABOVE = 1.2
"""The first diagonal of P in units of the largest entry there."""

FLOORS = (0.0, 1e-12, 1e-10)
"""Least entries of D, in units of their mean, that are tried in a bound on the dual of the max-norm."""


def solve_max_norm(program: Constraints, norm: Norm, first: Callable[[], Answer]) -> Answer:
    """The route: from the Frobenius answer, in the coordinates of W, which the norm depends on."""
    with single_thread():
        start = first()
        if not (start.separable and start.W.any()):
            return start
        whole = Span(np.eye(program.d), np.eye(program.e))
        return solve_in_stages(program, norm, start, whole, MaxNormPath)


class MaxNormPath(StagedPath):
    """The engine. Its gap is measured with bounds on the norm, whose value would be a program of its own."""

    def form_of(self, pool: Rows) -> Form:
        return MaxNormForm(pool)

    def measured_by(self, form: Any, at: Iterate) -> Any:
        return form.witness(at)


@dataclass(frozen=True, eq=False)
class MaxNormForm:
    """The semidefinite form of the max-norm.

        min t      with  P = [[·, W/2], [Wᵀ/2, ·]] ⪰ 0,  all P_ii = t/2,   A W − s = b,  s ≥ 0
        max bᵀλ    with  Q = [[D₁, −M], [−Mᵀ, D₂]] ⪰ 0,  D diagonal,  tr D = 2,  M = Σ λ_j A_j,  λ ≥ 0

    With D = 1 and P_ii free it is the nuclear one.
    Reference: Srebro, Rennie, Jaakkola 2005, "Maximum-margin matrix factorization".
    """

    pool: Rows

    def weight(self, at: Iterate) -> Float:
        return 2 * at.P[: self.pool.d, self.pool.d :]

    def start(self, W: Float, slack: Float, multipliers: Float) -> Iterate:
        """The start of the nuclear program, its diagonals made equal."""
        at = NuclearForm(self.pool).start(W, slack, multipliers)
        n = len(at.P)
        P = at.P.copy()
        np.einsum("ii->i", P)[:] = ABOVE * np.diagonal(P).max()
        return Iterate(P, at.Q * (2 / n), slack, at.multipliers * (2 / n))

    def witness(self, at: Iterate) -> Any:
        """Upper bounds on the norm and its dual, for the W and M of an iterate."""
        d, diagonal, largest = self.pool.d, np.diagonal(at.Q), 2 * float(np.diagonal(at.P).max())

        def steepness(M: Float) -> float:
            # Any positive D bounds the dual norm. Where one of its entries vanishes rounding of M would count
            # beside it without limit.
            bounds = []
            for floor in FLOORS:
                D = np.maximum(diagonal, floor * diagonal.mean())
                scaled = M / np.sqrt(D[:d, None] * D[d:])
                bounds.append(float(np.linalg.svd(scaled, compute_uv=False)[0] * D.sum() / 2))
            return min(bounds)

        return SimpleNamespace(value=lambda _: largest, dual=SimpleNamespace(value=steepness))

    def shifted(self, at: Iterate, change: Float) -> Iterate:
        return NuclearForm(self.pool).shifted(at, change)

    def newton(self, at: Iterate, scaling: Scaling) -> MaxNormNewton:
        return MaxNormNewton(self, at, scaling)


class MaxNormNewton:
    """The Newton system in the multipliers, the diagonal D and t, with V = G Gᵀ and H of the nuclear norm.

    (H + diag(s/λ)) dλ − Bᵀ dD = …,     (V ∘ V) dD − B dλ + ½ dt = …,     tr dD = 2 − tr D
    B_ij = 2 (V δ_j)_i (V z_j)_i
    """

    def __init__(self, form: MaxNormForm, at: Iterate, scaling: Scaling) -> None:
        pool = self.pool = form.pool
        d, self.forward = pool.d, scaling.forward
        self.V = scaling.forward @ scaling.forward.T
        self.uneven = -pool.combine(at.multipliers) - at.Q[:d, d:]
        diagonal = np.diagonal(at.P)
        self.level, self.missing_trace = diagonal - diagonal.mean(), 2 - float(at.Q.trace())
        self.missing = pool.bound + at.slack - pool.margins(form.weight(at))
        self.missing += 2 * pool.margins(between(self.V, self.uneven))
        self.level = self.level - self._diagonal(self.uneven)
        self.over = inverse(at.multipliers, pool.tied)
        self.ratio = at.slack * self.over
        self.factor = Cholesky(self._matrix, np.append(self.ratio, np.zeros(len(self.V))))
        # t borders the matrix: it moves with the trace of D.
        self.lean = self.factor.solve(np.repeat([0.0, 0.5], [len(pool), len(self.V)]))
        self.solve = Refined(self._solve, self._times)

    def _matrix(self) -> Float:
        """[[H, ·], [−B, V ∘ V]], of which the lower triangle is used."""
        k, n, d = len(self.pool), len(self.V), self.pool.d
        out = np.empty((k + n, k + n))
        out[:k, :k] = hadamard(self.pool, self.V)
        queries = self.pool.queries @ self.V[d:]
        out[k:, :k] = -2 * ((self.pool.delta @ self.V[:d]) * queries[self.pool.owner]).T
        out[k:, k:] = self.V * self.V
        return out

    def _diagonal(self, X: Float) -> Float:
        """The diagonal of V [[0, X], [Xᵀ, 0]] V."""
        d = self.pool.d
        return 2 * ((self.V[:, :d] @ X) * self.V[:, d:]).sum(1)

    def _solve(self, right: Float) -> Float:
        k = len(self.pool)
        solution = self.factor.solve(right[:-1])
        dt = (float(solution[k:].sum()) - float(right[-1])) / float(self.lean[k:].sum())
        return np.append(solution - dt * self.lean, dt)

    def _times(self, x: Float) -> Float:
        k, d, V = len(self.pool), self.pool.d, self.V
        lam, D, t = x[:k], x[k:-1], float(x[-1])
        M = self.pool.combine(lam)
        rows = 2 * self.pool.margins(between(V, M) - (V[:d] * D) @ V[:, d:]) + self.ratio * lam
        return np.concatenate([rows, (V * V) @ D - self._diagonal(M) + t / 2, [D.sum()]])

    def step(self, aim: Float, products: Float) -> Step:
        k, d, pull = len(self.pool), self.pool.d, products * self.over
        target = self.forward @ aim @ self.forward.T
        right = self.missing + pull - 2 * self.pool.margins(target[:d, d:])
        solution = self.solve(np.concatenate([right, np.diagonal(target) + self.level, [self.missing_trace]]))
        lam = solution[:k]
        change = np.diag(solution[k:-1])
        change[:d, d:] = self.uneven - self.pool.combine(lam)
        change[d:, :d] = change[:d, d:].T
        Q = self.forward.T @ change @ self.forward
        return Step(aim - Q, Q, pull - self.ratio * lam, lam, change)

    def unscaled(self, step: Step) -> Iterate:
        P = self.forward @ step.P @ self.forward.T
        return Iterate((P + P.T) / 2, step.unknowns, step.slack, step.multipliers)
