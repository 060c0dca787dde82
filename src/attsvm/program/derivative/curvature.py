"""Weights and curvature of strictly convex norms:  W = ∇f*(M)  and  H = ∇²f*(M),  f* = N*²/2.

    entries, 1/p + 1/r = 1, N = ‖M‖_r:   W = N^(2−r) h,   h = |M|^(r−1) sgn M
    H = (r−1) N^(2−r) diag |M|^(r−2) + (2−r) N^(2−2r) h hᵀ

Singular values: the same on the diagonal of Uᵀ E V, and (s_i ∓ s_j)/(g_i ∓ g_j) on the symmetric and the
antisymmetric part off it, where M = U g Vᵀ and W = U s Vᵀ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from attsvm.norms import Norm, capabilities_of
from attsvm.numbers import Float
from attsvm.program.derivative.tolerances import TOLERANCES


@dataclass(frozen=True, eq=False)
class Power:
    """The lp norm of a vector g: N, s = ∇f*(g), and the parts of its curvature.

    bend (k,): (r−1) N^(2−r) |g|^(r−2), 0 where g is zero; share, h: the rank-one part is share · h hᵀ.
    """

    g: Float
    p: float

    @property
    def r(self) -> float:
        return self.p / (self.p - 1)

    @cached_property
    def size(self) -> float:
        largest = float(np.abs(self.g).max(initial=0.0))
        return largest * float(((np.abs(self.g) / (largest or 1.0)) ** self.r).sum()) ** (1 / self.r)

    @cached_property
    def h(self) -> Float:
        """|g|^(r−1) sgn g, of g at norm one."""
        return np.asarray(np.sign(self.g) * (np.abs(self.g) / self.size) ** (self.r - 1))

    @property
    def s(self) -> Float:
        return self.size * self.h

    @cached_property
    def bend(self) -> Float:
        relative = np.abs(self.g) / self.size
        with np.errstate(divide="ignore"):
            return np.where(relative > 0, (self.r - 1) * relative ** (self.r - 2), 0.0)

    def times(self, x: Float) -> Float:
        """H x of vectors x (…, k)."""
        return np.asarray(self.bend * x + (2 - self.r) * (x @ self.h)[..., None] * self.h)


class OfEntries:
    """Of the lp norm of the entries of M (d, e)."""

    def __init__(self, M: Float, p: float, flat: float = 0.0) -> None:
        self.power, self.shape = Power(_without_small(M.ravel(), p, flat), p), M.shape

    @property
    def W(self) -> Float:
        return self.power.s.reshape(self.shape)

    def times(self, E: Float) -> Float:
        """H E of matrices (…, d, e)."""
        return self.power.times(E.reshape(*E.shape[:-2], -1)).reshape(E.shape)

    def smooth(self, rank: int) -> bool:
        """Whether H is finite around M."""
        size = np.abs(self.power.s)
        return self.power.p <= 2 or bool(size.min() > TOLERANCES.flat * size.max())


class OfSpectrum:
    """Of the lp norm of the singular values of M (d, e)."""

    def __init__(self, M: Float, p: float, flat: float = 0.0) -> None:
        self.U, g, self.Vt = np.linalg.svd(M)
        g = _without_small(np.where(g > TOLERANCES.zero * g[0], g, 0.0), p, flat)
        self.power, self.shape = Power(g, p), M.shape
        s, g, k = self.power.s, self.power.g, len(g)
        own = np.abs(g[:, None] - g) <= TOLERANCES.equal * g[0]
        with np.errstate(divide="ignore", invalid="ignore"):
            minus = np.where(own, self.power.bend[:, None], (s[:, None] - s) / (g[:, None] - g))
            plus = np.where(g[:, None] + g > 0, (s[:, None] + s) / (g[:, None] + g), 0.0)
            ratio = np.where(g > 0, s / g, 0.0)
        self.minus, self.plus, self.ratio, self.k = minus, plus, ratio, k

    @property
    def W(self) -> Float:
        return np.asarray((self.U[:, : self.k] * self.power.s) @ self.Vt[: self.k])

    def times(self, E: Float) -> Float:
        """H E of matrices (…, d, e)."""
        k, rotated = self.k, self.U.T @ E @ self.Vt.T
        square = rotated[..., :k, :k]
        turned = square.swapaxes(-1, -2)
        out = np.zeros_like(rotated)
        out[..., :k, :k] = 0.5 * (self.minus * (square + turned) + self.plus * (square - turned))
        diagonal = np.arange(k)
        out[..., diagonal, diagonal] = self.power.times(square[..., diagonal, diagonal])
        out[..., k:, :k] = rotated[..., k:, :k] * self.ratio
        out[..., :k, k:] = rotated[..., :k, k:] * self.ratio[:, None]
        return np.asarray(self.U @ out @ self.Vt)

    def smooth(self, rank: int) -> bool:
        """Whether H is finite around M, whose rank stays at most `rank`."""
        s = self.power.s
        return self.power.p <= 2 or bool(s[min(rank, self.k) - 1] > TOLERANCES.flat * s[0])


def curvature(norm: Norm, M: Float, flat: float = 0.0) -> OfEntries | OfSpectrum:
    """W = ∇f*(M) and H of a strictly convex norm, at M (d, e).

    flat: entries or singular values of W this small next to the largest count as zero.
    """
    return (OfEntries if capabilities_of(norm).acts_on == "entries" else OfSpectrum)(M, norm.p, flat)


def _without_small(g: Float, p: float, flat: float) -> Float:
    """g, zero where W ∝ |g|^(r−1) is small."""
    size = np.abs(g)
    return np.where(size > flat ** (p - 1) * size.max(initial=0.0), g, 0.0) if flat > 0 else g
