"""Names under which models of transformers hold their blocks and their query and key projections."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PAIRS = (("query", "key"), ("q_proj", "k_proj"), ("q_lin", "k_lin"), ("query_proj", "key_proj"), ("q", "k"))
"""BERT-like, Llama-like, DistilBERT, DeBERTa-v2, T5."""

VALUES = ("value", "v_proj", "v_lin", "value_proj", "v")
"""Layers of values beside them."""

FUSED = ("c_attn", "qkv_proj", "Wqkv", "query_key_value")
"""One layer for queries, keys and values: GPT-2, Phi-3, ModernBERT, GPT-NeoX and Falcon."""

LATENT = ("kv_a_proj_with_mqa", "kv_b_proj")
"""Latent attention (DeepSeek): one layer for latents and the shared rotary key, one for the other keys."""

WIDTHS = ("attention_head_size", "head_dim", "head_size", "qk_head_dim", "key_value_proj_dim")
"""Attributes that hold the width of a head."""

BLOCKS, NORMS = ("layers", "h"), ("norm", "ln_f", "final_layer_norm")
"""The blocks of a language model, and the norm after the last block."""


def first_attribute(module: Any, names: tuple[str, ...]) -> Any:
    """The first of these attributes of the module that is not None, or None."""
    return next((getattr(module, name) for name in names if getattr(module, name, None) is not None), None)


@dataclass(frozen=True)
class LayerSlice:
    """Outputs start … stop − 1 of each of the equal blocks of a layer, as a separate layer."""

    layer: Any
    start: int
    stop: int
    blocks: int = 1

    @property
    def weight(self) -> Any:
        """The rows of the matrix (out, in); a copy if there are several blocks."""
        rows = self._rows(matrix_of(self.layer))
        return rows.reshape(-1, rows.shape[-1])

    @property
    def bias(self) -> Any:
        bias = getattr(self.layer, "bias", None)
        return None if bias is None else self._rows(bias).reshape(-1)

    @property
    def tensors(self) -> list[Any]:
        """Views (blocks, rows, …) of the parameters: the matrix, and the bias if there is one."""
        parameters = (matrix_of(self.layer), getattr(self.layer, "bias", None))
        return [self._rows(x) for x in parameters if x is not None]

    def of(self, outputs: Any) -> Any:
        """The outputs of this slice among all outputs (…, out) of the layer."""
        selected = outputs.reshape(*outputs.shape[:-1], self.blocks, -1)[..., self.start : self.stop]
        return selected.reshape(*outputs.shape[:-1], -1)

    def _rows(self, x: Any) -> Any:
        return x.reshape(self.blocks, len(x) // self.blocks, *x.shape[1:])[:, self.start : self.stop]


QueryKeySlices = tuple[LayerSlice, LayerSlice]


def matrix_of(layer: Any) -> Any:
    """The matrix (out, in) of a layer, or None. The Conv1D of transformers stores its transpose."""
    weight: Any = getattr(layer, "weight", None)
    if getattr(weight, "ndim", 0) != 2:
        return None
    return weight.T if type(layer).__name__ == "Conv1D" else weight


def width_of(module: Any) -> int:
    """The width of a head; 0 if the module has no such attribute, and so is no attention."""
    width = first_attribute(module, WIDTHS)
    return width if isinstance(width, int) else 0


def query_key_layers(module: Any) -> tuple[QueryKeySlices, ...]:
    """The layers of queries and keys; empty if the module holds them under no known name.

    Latent attention has two pairs: the coordinates without positions, then the rotated ones.
    """
    for pair in PAIRS:
        layers = [getattr(module, name, None) for name in pair]
        rows = [len(matrix) for matrix in map(matrix_of, layers) if matrix is not None]
        if len(rows) == 2:
            query, key = (LayerSlice(layer, 0, count) for layer, count in zip(layers, rows, strict=True))
            heads, width = _heads(module), width_of(module)
            if rows[0] == 2 * heads * width:  # Qwen3-Next: the gate of each head follows its query
                query = LayerSlice(layers[0], 0, width, heads)
            return ((query, key),)
    if all(matrix_of(getattr(module, name, None)) is not None for name in LATENT):
        return _latent(module)
    fused = first_attribute(module, FUSED)
    return () if matrix_of(fused) is None or _layout_unknown(module) else (_fused(module, fused),)


def _heads(module: Any) -> int:
    heads = getattr(getattr(module, "config", None), "num_attention_heads", 0)
    return heads if isinstance(heads, int) else 0


def _fused(module: Any, layer: Any) -> QueryKeySlices:
    """Queries and keys of a fused layer: all queries first, or blocks of queries with their shared keys."""
    per_key, blocks, out = getattr(module, "num_key_value_groups", 1), 1, len(matrix_of(layer))
    if getattr(module, "query_key_value", None) is not None or not getattr(module, "multi_query", True):
        heads = _heads(module)  # out = (heads + 2 blocks) · width
        blocks = (out // width_of(module) - heads) // 2
        per_key = heads // blocks
    keys = out // blocks // (per_key + 2)
    queries = per_key * keys
    return LayerSlice(layer, 0, queries, blocks), LayerSlice(layer, queries, queries + keys, blocks)


def _latent(module: Any) -> tuple[QueryKeySlices, ...]:
    query = first_attribute(module, ("q_b_proj", "q_proj"))
    latent, key = (getattr(module, name) for name in LATENT)
    plain, width = module.qk_nope_head_dim, module.qk_nope_head_dim + module.qk_rope_head_dim
    heads, out = len(matrix_of(query)) // width, len(matrix_of(latent))
    rotary = LayerSlice(latent, out - module.qk_rope_head_dim, out)
    return (
        (LayerSlice(query, 0, plain, heads), LayerSlice(key, 0, plain, heads)),
        (LayerSlice(query, plain, width, heads), rotary),
    )


def _layout_unknown(module: Any) -> bool:
    """Whether nothing tells which rows of a fused layer are queries and which are keys.

    Cross attention has two such layers. Where `is_causal` is absent (ImageGPT, CodeGen, MPT), only the code
    of the forward pass divides the rows.
    """
    return getattr(module, "is_cross_attention", False) or not hasattr(module, "is_causal")
