"""The affine maps from hidden states to a head's queries and keys, where a module has them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.numbers import Float
from attsvm.query_key import FUSED, query_key_layers


@dataclass(frozen=True, eq=False)
class Projections:
    """Weights with the bias as last column: query (heads, d_head, d+1), key (groups, d_head, d+1)."""

    query: Float
    key: Float

    def weight(self, head: int, scaling: float) -> Float:
        """W (d+1, d+1) = [W_K b_K]ᵀ [W_Q b_Q] · scaling of one head; heads of a group share their key."""
        return np.asarray(self._key(head).T @ self.query[head] * scaling)

    def spectrum(self, head: int, scaling: float) -> tuple[float, float, float]:
        """Eigenvalue mean and variance, and stable rank, of W without biases (d, d).

            mean = tr W / d,   variance = tr W² / d − mean²,   stable rank = ‖W‖_F² / ‖W‖²

        tr W and tr W² are those of the d_head × d_head product in the other order.
        Reference: Bao, Hataya, Karakida 2024, "Self-attention networks localize when
        QK-eigenspectrum concentrates".
        """
        K, Q = self._key(head)[:, :-1], self.query[head][:, :-1] * scaling
        small, d = Q @ K.T, K.shape[1]
        mean = float(np.trace(small)) / d
        variance = float(np.trace(small @ small)) / d - mean**2
        # The singular values of KᵀQ are those of the product of the two triangles: d_head × d_head.
        left, right = np.linalg.qr(K.T).R, np.linalg.qr(Q.T).R
        sigma = np.linalg.svd(left @ right.T, compute_uv=False)
        return mean, variance, float((sigma**2).sum() / max(sigma[0] ** 2, 1e-300))

    def _key(self, head: int) -> Float:
        return self.key[head * len(self.key) // len(self.query)]


def attention_modules(model: Any) -> Iterator[tuple[Any, Any]]:
    """Every module with projections, and the first projection: what enters it is the hidden state."""
    for module in model.modules():
        for first in _layers(module)[:1]:
            yield module, first


def projections(module: Any, width: int) -> Projections | None:
    """The projections of a module whose heads are `width` wide; None where the names are unknown."""
    layers = _layers(module)
    if not layers:
        return None
    if len(layers) == 2:
        found = [_affine(layer) for layer in layers]
    else:
        stacked = _affine(layers[0], transposed=True)
        found = [part[: len(stacked) // 3] for part in (stacked, stacked[len(stacked) // 3 :])]
    if any(len(matrix) % width for matrix in found):
        return None
    query, key = (matrix.reshape(-1, width, matrix.shape[1]) for matrix in found)
    return Projections(query, key)


def _layers(module: Any) -> tuple[Any, ...]:
    """The layers of queries and of keys, the one of both, or none."""
    fused = getattr(module, FUSED, None)
    return query_key_layers(module) or ((fused,) if hasattr(fused, "weight") else ())


def _affine(layer: Any, transposed: bool = False) -> Float:
    """[weight bias] (out, in + 1) in float64."""
    weight = layer.weight.detach().double().cpu().numpy()
    weight = weight.T if transposed else weight
    bias = getattr(layer, "bias", None)
    column = np.zeros(len(weight)) if bias is None else bias.detach().double().cpu().numpy()
    return np.column_stack([weight, column])
