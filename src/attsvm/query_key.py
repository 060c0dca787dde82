"""Where the models of transformers keep their blocks, and their attention its queries and keys, by name."""

from __future__ import annotations

from typing import Any

PAIRS = (("query", "key"), ("q_proj", "k_proj"), ("q_lin", "k_lin"))
"""BERT-like, Llama-like, DistilBERT."""

FUSED = "c_attn"
"""One projection to queries, keys and values side by side: GPT-2."""

BLOCKS, NORMS = ("layers", "h"), ("norm", "ln_f", "final_layer_norm")
"""The blocks of a language model, and the norm after the last."""


def named(module: Any, names: tuple[str, ...]) -> Any:
    """The first part of a module that has one of these names, or None."""
    return next((getattr(module, name) for name in names if getattr(module, name, None) is not None), None)


def query_key_layers(module: Any) -> tuple[Any, ...]:
    """The layers that project queries and keys, or nothing where the module has none by these names."""
    for pair in PAIRS:
        layers = tuple(getattr(module, name, None) for name in pair)
        if all(getattr(getattr(layer, "weight", None), "ndim", 0) == 2 for layer in layers):
            return layers
    return ()
