"""Features of tokens in which a probe may attend: RBF kernels by Nyström's method; several side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.numbers import Array, Float
from attsvm.numbers.stored.matrix import as_matrix
from attsvm.probe.data.arithmetic import Arithmetic, arithmetic
from attsvm.probe.data.standard import Standard
from attsvm.probe.data.store import TokenStore

LANDMARKS, SPREAD = 600, 0.5
"""Landmarks of a kernel; γ times the number of features, on standardised tokens."""


class FeatureMap:
    """Tokens → features."""

    @property
    def width(self) -> int:
        """How many features."""
        raise NotImplementedError

    def on(self, where: Arithmetic, raw: Array) -> Array:
        """Features (m, width) of a block as it is stored, where the arithmetic is."""
        raise NotImplementedError

    def transform(self, tokens: Array) -> Float:
        """Features (N, width) of tokens (N, d)."""
        rows = as_matrix(np.asarray(tokens))
        return np.asarray(self.on(arithmetic(rows), rows.read(slice(0, len(tokens)))))


@dataclass(frozen=True, eq=False)
class Same(FeatureMap):
    """The tokens themselves, beside other features; zeros (d,): what is taken off them."""

    zeros: Float

    @property
    def width(self) -> int:
        return len(self.zeros)

    def on(self, where: Arithmetic, raw: Array) -> Array:
        return where.centred(raw, where.factor(self.zeros))


@dataclass(frozen=True, eq=False)
class Rbf(FeatureMap):
    """φ(x) = K^(−1/2) (1 / (1 + γ ‖x − l_j‖²))_j for landmarks l_j among the training tokens, standardised.

    The rational quadratic kernel is a mixture of Gaussians of all widths: near tokens count as in a narrow
    one, far ones as in a wide one. φ(x)·φ(x') is the kernel on the landmarks' span (Williams & Seeger 2001).
    landmarks (m, d), mean, scale (d,), root (m, m); gamma and power: arrays of one number.
    Computed in float64, whatever the tokens are stored in: ‖x‖² + ‖l‖² − 2 x·l cancels where tokens are
    large, and the root multiplies errors by up to a thousand.
    """

    landmarks: Float
    mean: Float
    scale: Float
    root: Float
    gamma: Float
    power: Float

    @property
    def width(self) -> int:
        return len(self.landmarks)

    def on(self, where: Arithmetic, raw: Array) -> Array:
        arrays = (self.mean, self.scale, (self.landmarks**2).sum(1), -2 * self.landmarks.T, self.root)
        mean, scale, squares, across, root = map(where.put, arrays)
        same = where.factor(np.zeros(raw.shape[1]))
        parts = []
        for piece in where.pieces(len(raw), self.width):
            x = (where.widened(where.centred(raw[piece], same)) - mean) / scale
            apart = (x * x).sum(1)[:, None] + squares + x @ across
            near = kernel(where.xp.clip(apart, 0, None), self.gamma, self.power)
            parts.append(where.narrowed(near @ root))
        return where.xp.concatenate(parts)


def kernel(apart: Array, gamma: Float, power: Float) -> Array:
    """(1 + γ a)^(−power) of squared distances a."""
    return (1 + float(gamma[0]) * apart) ** -float(power[0])


class Together(FeatureMap):
    """Several maps side by side: the features of a probe that is the mean of several."""

    def __init__(self, maps: Sequence[FeatureMap]) -> None:
        self.maps = list(maps)

    @property
    def width(self) -> int:
        return sum(each.width for each in self.maps)

    def on(self, where: Arithmetic, raw: Array) -> Array:
        return where.xp.concatenate([each.on(where, raw) for each in self.maps], 1)


def rbf(store: TokenStore, standard: Standard) -> Rbf:
    """The kernel map whose landmarks are every so many-th token: the same data give the same map."""
    ends = np.cumsum(store.lengths)
    count = min(LANDMARKS, int(ends[-1]))
    place = (2 * np.arange(count) + 1) * int(ends[-1]) // (2 * count)
    sequence = np.searchsorted(ends, place, side="right")
    row = store.starts[sequence] + place - (ends - store.lengths)[sequence]
    tokens = np.concatenate([store.rows.numpy(store.rows.read(slice(r, r + 1))) for r in row.tolist()])
    landmarks = (tokens.astype(np.float64) - standard.mean) / standard.scale
    gamma, power, square = np.array([SPREAD / landmarks.shape[1]]), np.ones(1), (landmarks**2).sum(1)
    apart = np.maximum(square[:, None] + square - 2 * landmarks @ landmarks.T, 0.0)
    values, vectors = np.linalg.eigh(kernel(apart, gamma, power))
    root = (vectors / np.sqrt(np.maximum(values, 1e-6))) @ vectors.T
    return Rbf(landmarks, standard.mean, standard.scale, root, gamma, power)


def mapped(store: TokenStore, features: FeatureMap | None) -> TokenStore:
    """The store of the features of all tokens, in memory and in float32; None: the tokens themselves."""
    if features is None:
        return store
    where = arithmetic(store.rows)
    with where.scope():
        parts = [features.on(where, store.read(span)) for span in store.spans(where.part)]
        rows = as_matrix(where.xp.concatenate(parts))
    return TokenStore(rows, np.cumsum(store.lengths) - store.lengths, store.lengths, store.given_mask)
