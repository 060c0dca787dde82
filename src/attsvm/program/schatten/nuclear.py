"""min ‖W‖_* over the rows: an interior point on a semidefinite form.

The Newton matrix is a sum of Hadamard products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attsvm.numbers import Float
from attsvm.numbers.library import out_of_memory
from attsvm.numbers.linear import Cholesky, with_ridge
from attsvm.program.rows import Rows
from attsvm.program.schatten.interior_point import Iterate, Refined, Scaling, Step, inverse

BLOCK = 64
"""Rows per piece of the Newton matrix, of which only the lower triangle is built."""

MANY = 1000
"""Rows from which the Newton matrix is built and factored where the keys are, if that is a GPU."""


@dataclass(frozen=True, eq=False)
class NuclearForm:
    """The semidefinite form of the nuclear norm.

        min tr P    with  P = [[·, W/2], [Wᵀ/2, ·]] ⪰ 0,   A W − s = b,  s ≥ 0
        max bᵀλ     with  Q = [[I, −M], [−Mᵀ, I]] ⪰ 0,     M = Σ λ_j A_j,  λ ≥ 0

    gpu: the library that holds the keys on a GPU, if one does.
    Reference: Recht, Fazel, Parrilo 2010, "Guaranteed minimum-rank solutions via the nuclear norm".
    """

    pool: Rows
    gpu: Any = None

    def weight(self, at: Iterate) -> Float:
        return 2 * at.P[: self.pool.d, self.pool.d :]

    def start(self, W: Float, slack: Float, multipliers: Float) -> Iterate:
        """P from the polar factors of W, Q from the multipliers shrunk into the interior."""
        pool, P = self.pool, self.lift(W)
        mean = 0.5 * float(P.trace()) / (len(P) + len(slack))
        multipliers = self._to(multipliers, 0.9)
        least = np.maximum(multipliers, mean * inverse(slack, pool.tied))
        multipliers = self._to(np.where(pool.tied, multipliers, least), 0.9)
        Q = self.pair(multipliers)
        P = P + mean * np.linalg.inv(Q)
        return Iterate((P + P.T) / 2, Q, slack, multipliers)

    def lift(self, W: Float) -> Float:
        """The P of least trace that holds W."""
        U, sigma, Vt = np.linalg.svd(W, full_matrices=False)
        pair = np.vstack([U, Vt.T])
        return np.asarray((pair * (sigma / 2)) @ pair.T)

    def pair(self, multipliers: Float) -> Float:
        """The Q of the multipliers."""
        d, M = self.pool.d, self.pool.combine(multipliers)
        Q = np.eye(d + self.pool.e)
        Q[:d, d:], Q[d:, :d] = -M, -M.T
        return Q

    def inside(self, multipliers: Float, M: Float) -> Float:
        """The multipliers, scaled until their M is not longer than this one."""
        norm, most = np.linalg.svd(np.stack([self.pool.combine(multipliers), M]), compute_uv=False)[:, 0]
        return multipliers * min(1.0, most / norm)

    def _to(self, multipliers: Float, size: float) -> Float:
        """Scaled to ‖M‖ = size."""
        return multipliers * (size / np.linalg.svd(self.pool.combine(multipliers), compute_uv=False)[0])

    def shifted(self, at: Iterate, change: Float) -> Iterate:
        return replace(at, P=at.P + self.lift(change))

    def newton(self, at: Iterate, scaling: Scaling) -> NuclearNewton:
        return NuclearNewton(self, at, scaling)


class NuclearNewton:
    """The Newton system in the multipliers, with V = G Gᵀ.

    (H + diag(s/λ)) dλ = right,     H dλ = 2 A (V₁₁ dM V₂₂ + V₁₂ dMᵀ V₁₂)
    """

    def __init__(self, form: NuclearForm, at: Iterate, scaling: Scaling) -> None:
        pool = self.pool = form.pool
        self.at, self.forward = at, scaling.forward
        self.above, self.below = scaling.forward[: pool.d], scaling.forward[pool.d :]
        self.V = scaling.forward @ scaling.forward.T
        self.uneven = -pool.combine(at.multipliers) - at.Q[: pool.d, pool.d :]
        self.missing = pool.bound + at.slack - pool.margins(form.weight(at))
        self.missing += 2 * pool.margins(between(self.V, self.uneven))
        self.over = inverse(at.multipliers, pool.tied)
        self.ratio = at.slack * self.over
        self.solve = Refined(self._factored(form.gpu), self._times)

    def _factored(self, gpu: Any) -> Callable[[Float], Float]:
        if gpu is not None and len(self.pool) >= MANY:
            try:
                return on_gpu(gpu, self.pool, self.V, self.ratio)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
        return Cholesky(lambda: hadamard(self.pool, self.V), self.ratio).solve

    def step(self, aim: Float, products: Float) -> Step:
        pool = self.pool
        pull = products * self.over
        right = self.missing + pull - 2 * pool.margins(self.above @ aim @ self.below.T)
        multipliers = self.solve(right)
        change = self.uneven - pool.combine(multipliers)
        corner = self.above.T @ change @ self.below
        Q = corner + corner.T
        return Step(aim - Q, Q, pull - self.ratio * multipliers, multipliers, change)

    def unscaled(self, step: Step) -> Iterate:
        d, P = self.pool.d, self.forward @ step.P @ self.forward.T
        Q = np.zeros_like(P)
        Q[:d, d:], Q[d:, :d] = step.unknowns, step.unknowns.T
        return Iterate((P + P.T) / 2, Q, step.slack, step.multipliers)

    def _times(self, multipliers: Float) -> Float:
        image = between(self.V, self.pool.combine(multipliers))
        return 2 * self.pool.margins(image) + self.ratio * multipliers


def between(V: Float, X: Float) -> Float:
    """(V [[0, X], [Xᵀ, 0]] V)₁₂."""
    d = len(X)
    return np.asarray(V[:d, :d] @ X @ V[d:, d:] + V[:d, d:] @ X.T @ V[:d, d:])


def hadamard(pool: Rows, V: Float) -> Float:
    """2 (δ_i V₁₁ δ_j)(z_i V₂₂ z_j) + 2 (δ_i V₁₂ z_j)(δ_j V₁₂ z_i): the lower triangle of (w, w).

    The factors with a query exist once per example, so only one product is w × w × d.
    """
    d, owner = pool.d, pool.owner
    keys = 2 * pool.delta @ V[:d, :d]
    queries = (pool.queries @ V[d:, d:] @ pool.queries.T)[:, owner]
    mixed = pool.delta @ V[:d, d:] @ pool.queries.T
    across = 2 * mixed.T
    out = np.empty((len(keys), len(keys)))
    for start in range(0, len(keys), BLOCK):
        mine = slice(start, min(start + BLOCK, len(keys)))
        earlier = slice(0, mine.stop)
        block = out[mine, earlier]
        np.matmul(keys[mine], pool.delta[earlier].T, out=block)
        block *= queries[owner[mine], earlier]
        block += mixed[mine].take(owner[earlier], axis=1) * across[owner[mine], earlier]
    return out


def on_gpu(gpu: Any, pool: Rows, V: Float, added: Float) -> Callable[[Float], Float]:
    """Solutions with `hadamard` + diag(added), built and factored on a GPU: only right-hand sides travel."""
    d = pool.d
    with gpu.scope():
        delta, queries, owner = gpu.put(pool.delta), gpu.put(pool.queries), gpu.put(pool.owner)
        matrix = (delta @ gpu.put(V[:d, :d])) @ delta.T
        matrix *= (queries @ gpu.put(V[d:, d:]) @ queries.T)[owner][:, owner]
        mixed = (delta @ gpu.put(V[:d, d:]) @ queries.T)[:, owner]
        matrix += mixed * mixed.T
        matrix *= 2
        diagonal = gpu.put(added)
        factor = with_ridge(lambda ridge: gpu.factor(matrix, diagonal, ridge))
    return lambda right: gpu.solve(factor, right)
