"""Feature maps of tokens: a rational quadratic kernel by Nyström's method, and several maps side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.numbers import Array, Float, Index
from attsvm.numbers.stored.matrix import as_matrix
from attsvm.probe.data.backends import Backend, backend_of
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.objective import Standard

LANDMARKS, SPREAD = 600, 0.5
"""Landmarks of a kernel; γ times the number of features, on standardised tokens."""


class FeatureMap:
    """Tokens → features."""

    @property
    def width(self) -> int:
        """How many features."""
        raise NotImplementedError

    def on(self, backend: Backend, raw: Array) -> Array:
        """Features (m, width) of a block of stored tokens, on the backend."""
        raise NotImplementedError

    def transform(self, tokens: Array) -> Float:
        """Features (N, width) of tokens (N, d)."""
        rows = as_matrix(np.asarray(tokens))
        return np.asarray(self.on(backend_of(rows), rows.read(slice(0, len(tokens)))))


@dataclass(frozen=True, eq=False)
class Same(FeatureMap):
    """The tokens themselves, beside other features; zeros (d,): a mean that is not subtracted."""

    zeros: Float

    @property
    def width(self) -> int:
        return len(self.zeros)

    def on(self, backend: Backend, raw: Array) -> Array:
        return backend.centred(raw, backend.operand(self.zeros))


@dataclass(frozen=True, eq=False)
class Rbf(FeatureMap):
    """φ(x) = K^(−1/2) (1 / (1 + γ ‖x − l_j‖²))_j for landmarks l_j among the training tokens, standardised.

    The rational quadratic kernel is a mixture of Gaussians of all widths: it resolves near tokens like a
    narrow one, and reaches far tokens like a wide one. φ(x)·φ(x') is the kernel on the landmarks' span
    (Williams & Seeger 2001). landmarks (m, d), mean, scale (d,), root (m, m); gamma, power: one number each.
    Computed in float64, whatever the tokens are stored in: ‖x‖² + ‖l‖² − 2 x·l cancels for large tokens, and
    the root multiplies errors by up to a thousand.
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

    def on(self, backend: Backend, raw: Array) -> Array:
        arrays = (self.mean, self.scale, (self.landmarks**2).sum(1), -2 * self.landmarks.T, self.root)
        mean, scale, squares, matrix, root = map(backend.put, arrays)
        zeros = backend.operand(np.zeros(raw.shape[1]))
        features = []
        for piece in backend.pieces(len(raw), self.width):
            x = (backend.widened(backend.centred(raw[piece], zeros)) - mean) / scale
            distances = (x * x).sum(1)[:, None] + squares + x @ matrix
            similarities = kernel(backend.xp.clip(distances, 0, None), self.gamma, self.power)
            features.append(backend.narrowed(similarities @ root))
        return backend.xp.concatenate(features)


def kernel(distances: Array, gamma: Float, power: Float) -> Array:
    """(1 + γ a)^(−power) of squared distances a."""
    return (1 + float(gamma[0]) * distances) ** -float(power[0])


class SideBySide(FeatureMap):
    """The features of several maps, joined: those of a probe that is the mean of several probes."""

    def __init__(self, maps: Sequence[FeatureMap]) -> None:
        self.maps = list(maps)

    @property
    def width(self) -> int:
        return sum(features.width for features in self.maps)

    def on(self, backend: Backend, raw: Array) -> Array:
        return backend.xp.concatenate([features.on(backend, raw) for features in self.maps], 1)


def rbf(store: TokenStore, standard: Standard) -> Rbf:
    """The kernel map whose landmarks are tokens at equal distances, copies of a sequence left out.

    The same data give the same map, and a weight of two the map of two copies.
    """
    store = store[distinct_sequences(store)]
    ends = np.cumsum(store.lengths)
    count = min(LANDMARKS, int(ends[-1]))
    place = (2 * np.arange(count) + 1) * int(ends[-1]) // (2 * count)
    sequence = np.searchsorted(ends, place, side="right")
    row = store.starts[sequence] + place - (ends - store.lengths)[sequence]
    tokens = np.concatenate([store.rows.numpy(store.rows.read(slice(r, r + 1))) for r in row.tolist()])
    landmarks = (tokens.astype(np.float64) - standard.mean) / standard.scale
    gamma, power, square = np.array([SPREAD / landmarks.shape[1]]), np.ones(1), (landmarks**2).sum(1)
    distances = np.maximum(square[:, None] + square - 2 * landmarks @ landmarks.T, 0.0)
    values, vectors = np.linalg.eigh(kernel(distances, gamma, power))
    root = (vectors / np.sqrt(np.maximum(values, 1e-6))) @ vectors.T
    return Rbf(landmarks, standard.mean, standard.scale, root, gamma, power)


def distinct_sequences(store: TokenStore) -> Index:
    """Places of the sequences that are no copy of an earlier one."""
    by_end: dict[bytes, list[int]] = {}
    for i, token in enumerate(store.last_tokens.numpy(slice(0, len(store)))):
        by_end.setdefault(token.tobytes(), []).append(i)
    distinct = []
    for places in by_end.values():  # sequences of equal ends are rare, and only they are read whole
        first: dict[bytes, int] = {}
        for i in places:
            first.setdefault(store[i].tobytes() if len(places) > 1 else b"", i)
        distinct += first.values()
    return np.sort(distinct)


def mapped(store: TokenStore, features: FeatureMap | None) -> TokenStore:
    """The features of all tokens in memory, in the precision of products; None: the tokens as stored."""
    if features is None:
        return store
    backend = backend_of(store.rows)
    with backend.scope():
        blocks = [features.on(backend, store.read(span)) for span in store.spans(backend.block)]
        rows = as_matrix(backend.xp.concatenate(blocks))
    return TokenStore(rows, np.cumsum(store.lengths) - store.lengths, store.lengths, store.given_mask)
