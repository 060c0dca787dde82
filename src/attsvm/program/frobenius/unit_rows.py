"""Rows of length one: the conditioning every Frobenius algorithm for large problems starts from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from attsvm.program.constraints import Constraints
from attsvm.tokens import Bool, Float

KEPT = 1 << 24
"""Largest number of key entries for which the differences are kept in memory (128 MB)."""

TINY = 1e-140
"""A row shorter than this is zero: its square has no digits left."""

RESIDUAL = 1e-12
"""Norm of Σ λ̂_j â_j, relative to the multipliers of rows with a bound, that is rounding."""


@dataclass(frozen=True)
class Found:
    """What an algorithm found for unit rows: lam (n, T), W (d, e), and the relative gap they certify.

    proof: lam is a contradiction among the rows, and there is no W.
    """

    lam: Float
    W: Float
    gap: float = 1.0
    proof: bool = False


class UnitRows:
    """The rows  â_it = δ_it z_iᵀ / (|δ_it| |z_i|)  with bounds  b̂ = b / (|δ| |z|), largest one.

    queries (n, e): of length one; inverse (n, T): 1/|δ|, zero where there is no row;
    length (n, T): |δ| |z|, one where there is no row; free (n, T): the equality rows;
    live (n, T): rows that are not zero; bound (n, T).
    A multiplier λ̂ of a unit row is the multiplier λ̂ / length of the row itself.
    """

    def __init__(self, rows: Constraints) -> None:
        self.rows = rows
        size = _norm(rows.queries)
        self.queries = rows.queries / np.where(size > 0, size, 1.0)[:, None]
        spans = np.empty(rows.active.shape)
        for part, delta in self.parts:
            spans[part] = _norm(delta)
        length = spans * size[:, None]
        self.live: Bool = rows.active & (length > TINY)
        self.inverse = np.where(self.live, 1.0 / np.where(self.live, spans, 1.0), 0.0)
        self.length = np.where(self.live, length, 1.0)
        self.free: Bool = self.live & rows.tied
        bound = np.where(self.live, rows.bound / self.length, 0.0)
        self.bound = bound / max(bound.max(), np.finfo(float).tiny)

    @cached_property
    def kept(self) -> list[tuple[slice, Float]] | None:
        return list(self.rows.chunks()) if self.rows.keys.size <= KEPT else None

    @property
    def parts(self) -> Iterable[tuple[slice, Float]]:
        """Slices of examples and their differences (chunk, T, d)."""
        return self.kept if self.kept is not None else self.rows.chunks()

    @property
    def count(self) -> int:
        return int(self.live.sum())

    def margins(self, W: Float) -> Float:
        """⟨â_it, W⟩ of every row: (d, e) → (n, T)."""
        directions = self.queries @ W.T
        out = np.empty(self.live.shape)
        for part, delta in self.parts:
            out[part] = np.matmul(delta, directions[part, :, None])[..., 0]
        return out * self.inverse

    def combine(self, lam: Float) -> Float:
        """Σ λ̂_it â_it: (n, T) → (d, e), the adjoint of `margins`."""
        weights = lam * self.inverse
        sums = np.empty((self.rows.n, self.rows.d))
        for part, delta in self.parts:
            sums[part] = np.matmul(weights[part, None, :], delta)[:, 0]
        return np.asarray(sums.T @ self.queries)

    def named(self, example: NDArray[np.intp], token: NDArray[np.intp]) -> tuple[Float, Float]:
        """The two factors of the named rows: (k,), (k,) → (k, d), (k, e)."""
        delta = self.rows.differences(example, token) * self.inverse[example, token, None]
        return delta, self.queries[example]

    def features(self, example: NDArray[np.intp], token: NDArray[np.intp]) -> Float:
        """The named rows written out: (k,), (k,) → (k, d·e). For few rows only."""
        delta, queries = self.named(example, token)
        return (delta[:, :, None] * queries[:, None, :]).reshape(len(example), -1)

    def steepness(self, lam: Float, W: Float) -> float:
        """|Σ λ̂_j â_j|, given as W, per multiplier that counts: near zero when no weight exists."""
        total = float(lam[self.bound > 0].sum())
        return _flat_norm(W) / total if total > 0 else np.inf

    def gap(self, lam: Float, W: Float) -> float:
        """Relative gap between b·λ/|Σ λ_j A_j| and |W|/(least margin); 1 where W does not separate."""
        lam = np.where(self.free, lam, np.maximum(lam, 0.0))
        steepness, size = _flat_norm(self.combine(lam)), _flat_norm(W)
        margins, counted = self.margins(W), self.bound > 0
        least = float((margins[counted] / self.bound[counted]).min())
        ordered = self.live & ~counted
        short = np.where(self.free, np.abs(margins), -margins)[ordered].max(initial=0.0)
        if not (least > 0 and steepness > 0) or short > 1e-8 * size:
            return 1.0
        # A row that asks only for the right order fails by `short`: weigh that like a gap.
        return max(1.0 - float((lam * self.bound).sum()) / steepness * least / size, short / size)


def _norm(x: Float) -> Float:
    """Length along the last axis, safe from underflow: the largest entry is divided out first."""
    size = np.abs(x).max(-1)
    safe = np.where(size > 0, size, 1.0)
    scaled = x / safe[..., None]
    return np.asarray(safe * np.sqrt(np.einsum("...d,...d->...", scaled, scaled)) * (size > 0))


def _flat_norm(x: Float) -> float:
    return float(np.linalg.norm(x))
