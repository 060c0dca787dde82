"""The affine maps from hidden states to a head's queries and keys, where a module has them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm._support.architectures import LayerSlice, query_key_layers
from attsvm.numbers import Float


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
        # KᵀQ has the singular values of the product of the two triangles, which is only d_head × d_head.
        R_K, R_Q = np.linalg.qr(K.T).R, np.linalg.qr(Q.T).R
        sigma = np.linalg.svd(R_K @ R_Q.T, compute_uv=False)
        return mean, variance, float((sigma**2).sum() / max(sigma[0] ** 2, 1e-300))

    def _key(self, head: int) -> Float:
        return self.key[head * len(self.key) // len(self.query)]


def attention_modules(model: Any) -> Iterator[tuple[Any, Any]]:
    """Every module with projections, and its query layer, whose input is the hidden state."""
    for module in model.modules():
        for query, _ in query_key_layers(module)[:1]:
            yield module, query.layer


@contextmanager
def hidden_states(model: Any) -> Iterator[dict[int, Any]]:
    """Inside, the latest hidden states that entered each attention module, by the id of the module."""
    states: dict[int, Any] = {}
    hooks = [
        query_layer.register_forward_pre_hook(_save_input(states, id(module)))
        for module, query_layer in attention_modules(model)
    ]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


def projections(module: Any, width: int) -> Projections | None:
    """The projections of a module with heads `width` wide; None unless it has one pair of known layers."""
    pairs = query_key_layers(module)
    matrices = [_affine(layer) for layer in pairs[0]] if len(pairs) == 1 else []
    if not matrices or any(len(matrix) % width for matrix in matrices):
        return None
    query, key = (matrix.reshape(-1, width, matrix.shape[1]) for matrix in matrices)
    return Projections(query, key)


def _affine(layer: LayerSlice) -> Float:
    """[weight bias] (out, in + 1) in float64."""
    weight = layer.weight.detach().double().cpu().numpy()
    column = np.zeros(len(weight)) if layer.bias is None else layer.bias.detach().double().cpu().numpy()
    return np.column_stack([weight, column])


def _save_input(states: dict[int, Any], key: int) -> Any:
    def pre_hook(_: Any, inputs: Any) -> None:
        states[key] = inputs[0]

    return pre_hook
