"""Where the models of transformers keep their blocks, and their attention its queries and keys, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PAIRS = (("query", "key"), ("q_proj", "k_proj"), ("q_lin", "k_lin"))
"""BERT-like, Llama-like, DistilBERT."""

FUSED = ("c_attn", "qkv_proj", "Wqkv")
"""One projection to queries, keys and values side by side: GPT-2 and GPTBigCode, Phi-3, ModernBERT."""

BLOCKS, NORMS = ("layers", "h"), ("norm", "ln_f", "final_layer_norm")
"""The blocks of a language model, and the norm after the last."""


def named(module: Any, names: tuple[str, ...]) -> Any:
    """The first part of a module that has one of these names, or None."""
    return next((getattr(module, name) for name in names if getattr(module, name, None) is not None), None)


@dataclass(frozen=True)
class Part:
    """Some of the outputs of a layer, start … stop − 1, as a layer of its own."""

    layer: Any
    start: int
    stop: int

    @property
    def weight(self) -> Any:
        return matrix_of(self.layer)[self.start : self.stop]

    @property
    def bias(self) -> Any:
        whole = getattr(self.layer, "bias", None)
        return None if whole is None else whole[self.start : self.stop]

    def __call__(self, x: Any) -> Any:
        return self.layer(x)[..., self.start : self.stop]


def matrix_of(layer: Any) -> Any:
    """The matrix (out, in) of a layer, or None; transformers' Conv1D holds it the other way round."""
    weight: Any = getattr(layer, "weight", None)
    if getattr(weight, "ndim", 0) != 2:
        return None
    return weight.T if type(layer).__name__ == "Conv1D" else weight


def query_key_layers(module: Any) -> tuple[Part, ...]:
    """What projects queries and what projects keys, or nothing where the module has none that we know."""
    for pair in PAIRS:
        layers = [getattr(module, name, None) for name in pair]
        rows = [len(matrix) for matrix in map(matrix_of, layers) if matrix is not None]
        if len(rows) == 2:
            return tuple(Part(layer, 0, count) for layer, count in zip(layers, rows, strict=True))
    fused, shared = named(module, FUSED), getattr(module, "num_key_value_groups", 1)
    if matrix_of(fused) is None or _otherwise(module):
        return ()
    keys = len(matrix_of(fused)) // (shared + 2)
    return Part(fused, 0, shared * keys), Part(fused, shared * keys, (shared + 1) * keys)


def _otherwise(module: Any) -> bool:
    """Whether one projection is no queries, keys and values side by side.

    Cross attention has two of them, GPTBigCode without shared keys all three head by head. Where is_causal is
    absent (ImageGPT, CodeGen, MPT), the forward pass hides what it does with them.
    """
    crosses, shares = getattr(module, "is_cross_attention", False), getattr(module, "multi_query", True)
    return crosses or not shares or not hasattr(module, "is_causal")
