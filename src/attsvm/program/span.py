"""Fewer coordinates: a weight lives in the span of the key differences and of the queries of its rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.numbers import Bool, Float
from attsvm.program.constraints import Constraints


@dataclass(frozen=True, eq=False)
class Span:
    """Orthonormal bases left (d, d') of the differences and right (e, e') of the queries.

    Projecting W on these spans changes no margin and makes no singular value larger, so that
    W = left · W' · rightᵀ loses nothing in any norm of the singular values.
    """

    left: Float
    right: Float

    @classmethod
    def of(cls, program: Constraints, chosen: Bool | None = None) -> Span:
        """The span of the chosen rows (n, T), all by default; the whole space where they are many."""
        chosen = program.active if chosen is None else chosen
        some = np.count_nonzero(chosen) < program.d
        left = basis(program.differences(*np.nonzero(chosen))) if some else np.eye(program.d)
        return cls(left, basis(program.queries[chosen.any(1)]))

    @classmethod
    def exactly(cls, delta: Float, queries: Float) -> Span:
        """The span of all rows, however many: tokens from a small vocabulary span less than the space."""
        return cls(_rank_revealing(delta), _rank_revealing(queries))

    @property
    def shape(self) -> tuple[int, int]:
        """(d', e')."""
        return self.left.shape[1], self.right.shape[1]

    def reduce(self, W: Float) -> Float:
        """(d, e) → (d', e')."""
        return self.left.T @ W @ self.right

    def expand(self, W: Float) -> Float:
        """(d', e') → (d, e)."""
        return self.left @ W @ self.right.T


def basis(vectors: Float) -> Float:
    """Orthonormal columns (d, r) whose span holds all vectors (k, d); the identity where k ≥ d."""
    count, d = vectors.shape
    return np.eye(d) if count >= d else np.asarray(np.linalg.qr(vectors.T)[0])


def _rank_revealing(vectors: Float) -> Float:
    """Orthonormal basis (d, r) of the span of vectors (k, d), by a triangular factor."""
    _, sigma, found = np.linalg.svd(np.linalg.qr(vectors, mode="r"), full_matrices=False)
    return np.asarray(found[sigma > sigma[0] * max(vectors.shape) * np.finfo(float).eps].T)
