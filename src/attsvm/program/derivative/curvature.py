"""Weights and curvature of strictly convex norms:  W = ∇f*(M)  and  H = ∇²f*(M),  f* = N*²/2.

    entries, 1/p + 1/r = 1, N = ‖M‖_r:   W = N^(2−r) h,   h = |M|^(r−1) sgn M
    H = (r−1) N^(2−r) diag |M|^(r−2) + (2−r) N^(2−2r) h hᵀ

Singular values: the same on the diagonal of Uᵀ E V, and (s_i ∓ s_j)/(g_i ∓ g_j) on the symmetric and the
antisymmetric part off it, where M = U g Vᵀ and W = U s Vᵀ.
"""

from __future__ import annotations

import numpy as np

from attsvm.norms import Norm, capabilities_of
from attsvm.numbers import Float
from attsvm.program.derivative.tolerances import TOLERANCES


class Curvature:
    """W and H of a norm of entries or singular values g, 1 < p < ∞, at M (d, e).

    h, bend (k,): |g|^(r−1) sgn g and (r−1) |g|^(r−2), of g at norm one, 0 where g is zero.
    flat: entries or singular values of W this small next to the largest count as zero.
    """

    def __init__(self, norm: Norm, M: Float, flat: float = 0.0) -> None:
        self.p, self.shape = norm.p, M.shape
        self.spectral = capabilities_of(norm).acts_on == "singular values"
        g = M.ravel()
        if self.spectral:
            self.U, g, self.Vt = np.linalg.svd(M)
            g = np.where(g > TOLERANCES.zero * g[0], g, 0.0)
        # W ∝ |g|^(r−1), and r − 1 = 1/(p − 1).
        largest = np.abs(g).max()
        g = np.where(np.abs(g) > flat ** (self.p - 1) * largest, g, 0.0)
        r = self.p / (self.p - 1)
        self.rank_one = 2 - r
        size = largest * ((np.abs(g) / (largest or 1.0)) ** r).sum() ** (1 / r)
        relative = np.abs(g) / size
        self.h = np.sign(g) * relative ** (r - 1)
        self.s = size * self.h
        with np.errstate(divide="ignore", invalid="ignore"):
            self.bend = np.where(relative > 0, (r - 1) * relative ** (r - 2), 0.0)
            if self.spectral:
                equal = np.abs(g[:, None] - g) <= TOLERANCES.equal * g[0]
                quotient = (self.s[:, None] - self.s) / (g[:, None] - g)
                total = g[:, None] + g
                self.minus = np.where(equal, self.bend[:, None], quotient)
                self.plus = np.where(total > 0, (self.s[:, None] + self.s) / total, 0.0)
                self.ratio = np.where(g > 0, self.s / g, 0.0)

    @property
    def W(self) -> Float:
        if not self.spectral:
            return self.s.reshape(self.shape)
        k = len(self.s)
        return np.asarray((self.U[:, :k] * self.s) @ self.Vt[:k])

    def times(self, E: Float) -> Float:
        """H E of matrices (…, d, e)."""
        if not self.spectral:
            return self._on_diagonal(E.reshape(*E.shape[:-2], -1)).reshape(E.shape)
        k, rotated = len(self.s), self.U.T @ E @ self.Vt.T
        square = rotated[..., :k, :k]
        turned = square.swapaxes(-1, -2)
        out = np.zeros_like(rotated)
        out[..., :k, :k] = 0.5 * (self.minus * (square + turned) + self.plus * (square - turned))
        diagonal = np.arange(k)
        out[..., diagonal, diagonal] = self._on_diagonal(square[..., diagonal, diagonal])
        out[..., k:, :k] = rotated[..., k:, :k] * self.ratio
        out[..., :k, k:] = rotated[..., :k, k:] * self.ratio[:, None]
        return np.asarray(self.U @ out @ self.Vt)

    def _on_diagonal(self, x: Float) -> Float:
        """H of vectors (…, k) beside g."""
        return np.asarray(self.bend * x + self.rank_one * (x @ self.h)[..., None] * self.h)

    def smooth(self, rank: int) -> bool:
        """Whether H is finite around M; of singular values, as long as the rank of M is at most `rank`."""
        sizes = np.sort(np.abs(self.s))[::-1]
        last = sizes[min(rank, len(sizes)) - 1] if self.spectral else sizes[-1]
        return self.p <= 2 or bool(last > TOLERANCES.flat * sizes[0])
