"""The same rows in fewer coordinates: tokens from a small vocabulary span less than the whole space."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from attsvm.program.constraints import Constraints
from attsvm.tokens import Float


@dataclass(frozen=True)
class Reduced:
    """Rows in the span of the differences and of the queries; W = left W' rightᵀ.

    The shortest W lies in these spans, and lengths do not change: the bases are orthonormal.
    """

    rows: Constraints
    left: Float
    right: Float

    def lift(self, W: Float) -> Float:
        """The weight (d, e) of the original rows from the weight of the reduced ones."""
        return self.left @ W @ self.right.T


def reduce(rows: Constraints) -> Reduced | None:
    """The reduced rows, or None where nothing is saved."""
    left, right = _basis(delta for _, delta in rows.chunks()), _basis([rows.queries])
    if left.shape[1] == rows.d and right.shape[1] == rows.e:
        return None
    anchors = np.take_along_axis(rows.keys, rows.anchor[:, None, None], axis=1)
    keys = np.matmul(rows.keys - anchors, left)
    return Reduced(replace(rows, keys=keys, queries=rows.queries @ right), left, right)


def _basis(parts: Iterable[Float]) -> Float:
    """Orthonormal basis (k, r) of the span of all vectors along the last axis, by triangular factors."""
    triangle, count = np.zeros((0, 0)), 0
    for part in parts:
        vectors = part.reshape(-1, part.shape[-1])
        count += len(vectors)
        stacked = np.vstack([triangle, vectors]) if triangle.size else vectors
        triangle = np.asarray(np.linalg.qr(stacked, mode="r"))
    _, sigma, basis = np.linalg.svd(triangle, full_matrices=False)
    return basis[sigma > sigma[0] * max(count, basis.shape[1]) * np.finfo(float).eps].T
