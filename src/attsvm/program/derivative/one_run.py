"""The derivative of one solution in a norm that is not Euclidean.

Strictly convex norms, by the curvature H:  K q = A H W̄ + μ̄,  K = A H Aᵀ,  P = H (W̄ − Aᵀ q).
l1 and l∞ at a vertex: W = B x with as many numbers x as active rows. (A B) x = b, (A B)ᵀ λ = g, N = g·x.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrs, dpstrf

from attsvm.norms import Norm, capabilities_of
from attsvm.numbers import Float
from attsvm.program.derivative.curvature import Curvature
from attsvm.program.derivative.tolerances import TOLERANCES


class Change(NamedTuple):
    """The cotangent Ā_j = μ_j P − q_j W of the active rows: q (k,), P (d, e)."""

    q: Float
    P: Float


@dataclass(frozen=True, eq=False)
class Active:
    """The k active rows A_j = δ_j z_jᵀ of one run, and its solution.

    delta (k, d), queries (k, e), bound (k,): 0 where tied; pull (k,): μ; W (d, e).
    example (k,): the rows' examples.
    """

    delta: Float
    queries: Float
    example: NDArray[np.intp]
    bound: Float
    pull: Float
    W: Float

    def margins(self, X: Float) -> Float:
        """⟨A_j, X⟩ of a matrix (d, e)."""
        return np.asarray(np.einsum("kd,de,ke->k", self.delta, X, self.queries))

    def combine(self, x: Float) -> Float:
        """Σ x_j A_j."""
        return np.asarray((x[:, None] * self.delta).T @ self.queries)

    @cached_property
    def dense(self) -> Float:
        """The rows (k, d, e)."""
        return self.delta[:, :, None] * self.queries[:, None, :]

    @property
    def rank(self) -> int:
        """A bound on the rank of W that changes of tokens do not exceed."""
        return min(*self.W.shape, len(self.delta), len(set(self.example.tolist())))


class Local(Protocol):
    """A solution and all solutions near it, as long as the same rows stay active.

    strictness: how clearly the entries of W keep their places; pivot: how clearly rows are independent.
    """

    strictness: float
    pivot: float

    def change(self, W_bar: Float, norm_bar: float, pull_bar: Float) -> Change: ...


def local(active: Active, norm: Norm) -> Local:
    """Of a norm whose W has a derivative; see `has_derivative`."""
    return Vertex(active, norm) if has_vertices(norm) else Curved(active, norm)


def has_derivative(norm: Norm) -> bool:
    """Whether W has a derivative that this file knows."""
    kind = capabilities_of(norm).acts_on
    return kind == "entries" or (kind == "singular values" and 1 < norm.p < np.inf)


def has_vertices(norm: Norm) -> bool:
    """Whether solutions are vertices: l1 and l∞."""
    return capabilities_of(norm).acts_on == "entries" and norm.p in (1, np.inf)


# ---------------------------------------------------------------------- strictly convex norms


class Curved:
    """lp and Schatten(p), 1 < p < ∞."""

    def __init__(self, active: Active, norm: Norm) -> None:
        self.active, self.norm = active, norm
        self.size = float(norm.value(active.W))
        self.strictness, self.pivot = np.inf, 1.0
        if len(active.delta) == 0 or not self.size > 0:
            return
        M = active.combine(active.pull)
        self.at = Curvature(norm, M)
        self.system = System(active, self.at)
        self.pivot = self.system.pivot
        # For p < 2 the curvature of an entry that is zero vanishes. Rounding shows in it as its root.
        if norm.p < 2:
            self.pivot = min(self.pivot, System(active, Curvature(norm, M, TOLERANCES.flat)).pivot)
        if not self.at.smooth(active.rank):
            self.strictness = 0.0

    def change(self, W_bar: Float, norm_bar: float, pull_bar: Float) -> Change:
        active = self.active
        if len(active.delta) == 0 or not self.size > 0:
            return Change(np.zeros(len(active.delta)), np.zeros(active.W.shape))
        q = self.system.solve(active.margins(self.at.times(W_bar)) + pull_bar)
        P = self.at.times(W_bar - active.combine(q))
        return Change(q + norm_bar / self.size * active.pull, P)


class System:
    """K = A H Aᵀ, scaled to a diagonal of ones, by a Cholesky factor that leaves out dependent rows."""

    def __init__(self, active: Active, at: Curvature) -> None:
        flat = active.dense.reshape(len(active.delta), -1)
        K = at.times(active.dense).reshape(flat.shape) @ flat.T
        diagonal = np.diagonal(K)
        self.scale = 1 / np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
        K = self.scale[:, None] * K * self.scale
        factor, order, rank, _ = dpstrf(0.5 * (K + K.T), tol=TOLERANCES.dependent, lower=1)
        self.factor, self.order = factor[:rank, :rank], order[:rank] - 1
        full = rank == len(K)
        self.pivot = float(np.square(np.diagonal(self.factor)).min(initial=1.0)) if full else 0.0

    def solve(self, right: Float) -> Float:
        """q with K q = right; zero in the rows that are left out."""
        q = np.zeros(len(right))
        scaled = (self.scale * right)[self.order]
        q[self.order] = dpotrs(np.asfortranarray(self.factor), scaled, lower=1)[0]
        return q * self.scale


# ---------------------------------------------------------------------- vertices


class Vertex:
    """l1, whose numbers x are the entries that are not zero, and l∞: N and the entries smaller than N."""

    def __init__(self, active: Active, norm: Norm) -> None:
        self.active, W = active, active.W.ravel()
        self.size = float(np.abs(W).sum() if norm.p == 1 else np.abs(W).max(initial=0.0))
        self.strictness, self.pivot = np.inf, 1.0
        if len(active.delta) == 0 or not self.size > 0:
            return
        slope = np.abs(active.combine(active.pull).ravel()) / self.size
        if norm.p == 1:
            outside, inside = np.abs(W) / np.abs(W).max(), 1 - slope  # not zero; less than the largest slope
            free = outside > inside
            self.B, self.g = np.eye(len(W))[:, free], np.sign(W[free])
        else:
            outside, inside = 1 - np.abs(W) / self.size, slope / slope.max()
            free = outside > inside
            corner = np.where(free, 0.0, np.sign(W))
            self.B = np.column_stack([corner, np.eye(len(W))[:, free]])
            self.g = np.eye(self.B.shape[1])[0]
        self.strictness = float(np.maximum(outside, inside).min())
        self.AB = active.dense.reshape(len(active.delta), -1) @ self.B
        self.pivot = _pivot(self.AB)

    def change(self, W_bar: Float, norm_bar: float, pull_bar: Float) -> Change:
        active = self.active
        if len(active.delta) == 0 or not self.size > 0:
            return Change(np.zeros(len(active.delta)), np.zeros(active.W.shape))
        # μ = N λ:  dμ = N dλ + λ dN.
        norm_bar = norm_bar + float(pull_bar @ active.pull) / self.size
        q = _solved(self.AB.T, self.B.T @ W_bar.ravel() + norm_bar * self.g)
        P = -self.B @ _solved(self.AB, pull_bar)
        return Change(q, P.reshape(active.W.shape))

    def exact(self) -> tuple[Float, Float]:
        """W (d, e) and the multipliers (k,), up to rounding if no row depends on others."""
        active = self.active
        if not self.size > 0 or not self.pivot > 0:
            return active.W, active.pull / (self.size or 1.0)
        W = self.B @ _solved(self.AB, active.bound)
        return W.reshape(active.W.shape), _solved(self.AB.T, self.g)


def _pivot(square: Float) -> float:
    """The least squared distance of a unit row from the span of the rows before it; 0 if not square."""
    if square.shape[0] != square.shape[1]:
        return 0.0
    length = np.linalg.norm(square, axis=1, keepdims=True)
    rows = square / np.where(length > 0, length, 1.0)
    return float(np.square(np.diagonal(np.linalg.qr(rows.T, mode="r"))).min())


def _solved(matrix: Float, right: Float) -> Float:
    return np.asarray(np.linalg.lstsq(matrix, right, rcond=None)[0])
