"""Fewer coordinates: a weight lives in the span of the key differences and of the queries of its rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

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
    def exactly(cls, program: Constraints) -> Span:
        """The span of all rows, however many: tokens from a small vocabulary span less than the space."""
        return cls(
            _rank_revealing(delta for _, delta in program.chunks()), _rank_revealing([program.queries])
        )

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

    def rows(self, program: Constraints) -> Constraints:
        """The program in these coordinates; keys are taken relative to the anchors."""
        anchors = np.take_along_axis(program.keys, program.anchor[:, None, None], axis=1)
        keys = np.matmul(program.keys - anchors, self.left)
        return replace(program, keys=keys, queries=program.queries @ self.right)


def basis(vectors: Float) -> Float:
    """Orthonormal columns (d, r) whose span holds all vectors (k, d); the identity where k ≥ d."""
    count, d = vectors.shape
    return np.eye(d) if count >= d else np.asarray(np.linalg.qr(vectors.T)[0])


def _rank_revealing(parts: Iterable[Float]) -> Float:
    """Orthonormal basis (k, r) of the span of all vectors along the last axis, by triangular factors."""
    triangle, count = np.zeros((0, 0)), 0
    for part in parts:
        vectors = part.reshape(-1, part.shape[-1])
        count += len(vectors)
        stacked = np.vstack([triangle, vectors]) if triangle.size else vectors
        triangle = np.asarray(np.linalg.qr(stacked, mode="r"))
    _, sigma, found = np.linalg.svd(triangle, full_matrices=False)
    return found[sigma > sigma[0] * max(count, found.shape[1]) * np.finfo(float).eps].T
