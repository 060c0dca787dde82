"""Where the models of transformers keep their blocks, and their attention its queries and keys, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

PAIRS = (("query", "key"), ("q_proj", "k_proj"), ("q_lin", "k_lin"), ("query_proj", "key_proj"), ("q", "k"))
"""BERT-like, Llama-like, DistilBERT, DeBERTa-v2, T5."""

FUSED = ("c_attn", "qkv_proj", "Wqkv", "query_key_value")
"""One projection to queries, keys and values: GPT-2, Phi-3, ModernBERT, GPT-NeoX and Falcon."""

LATENT = ("kv_a_proj_with_mqa", "kv_b_proj")
"""Latent attention (DeepSeek): what gives latents and a shared rotary key, and what gives the other keys."""

WIDTHS = ("attention_head_size", "head_dim", "head_size", "qk_head_dim", "key_value_proj_dim")
"""What modules call the width of a head."""

BLOCKS, NORMS = ("layers", "h"), ("norm", "ln_f", "final_layer_norm")
"""The blocks of a language model, and the norm after the last."""


def named(module: Any, names: tuple[str, ...]) -> Any:
    """The first part of a module that has one of these names, or None."""
    return next((getattr(module, name) for name in names if getattr(module, name, None) is not None), None)


@dataclass(frozen=True)
class Part:
    """Some of the outputs of a layer as a layer of its own: start … stop − 1 of each of its equal blocks."""

    layer: Any
    start: int
    stop: int
    blocks: int = 1

    @property
    def weight(self) -> Any:
        """Its rows (out, in); a copy where there are several blocks."""
        rows = self._rows(matrix_of(self.layer))
        return rows.reshape(-1, rows.shape[-1])

    @property
    def bias(self) -> Any:
        whole = getattr(self.layer, "bias", None)
        return None if whole is None else self._rows(whole).reshape(-1)

    @property
    def tensors(self) -> list[Any]:
        """Views (blocks, rows, …) of what its outputs are linear in: the matrix, and the bias if any."""
        held = (matrix_of(self.layer), getattr(self.layer, "bias", None))
        return [self._rows(x) for x in held if x is not None]

    def of(self, outputs: Any) -> Any:
        """Its part of what the layer gave (…, out)."""
        cut = outputs.reshape(*outputs.shape[:-1], self.blocks, -1)[..., self.start : self.stop]
        return cut.reshape(*outputs.shape[:-1], -1)

    def _rows(self, x: Any) -> Any:
        return x.reshape(self.blocks, len(x) // self.blocks, *x.shape[1:])[:, self.start : self.stop]


Pair = tuple[Part, Part]


def matrix_of(layer: Any) -> Any:
    """The matrix (out, in) of a layer, or None; transformers' Conv1D holds it the other way round."""
    weight: Any = getattr(layer, "weight", None)
    if getattr(weight, "ndim", 0) != 2:
        return None
    return weight.T if type(layer).__name__ == "Conv1D" else weight


def width_of(module: Any) -> int:
    """Of a head; 0 where the module does not say it, and is no attention."""
    width = named(module, WIDTHS)
    return width if isinstance(width, int) else 0


def query_key_layers(module: Any) -> tuple[Pair, ...]:
    """What projects queries and what projects keys, or nothing where the module has none that we know.

    Latent attention has two pairs, for the coordinates of its heads in turn: without positions, and rotated.
    """
    for pair in PAIRS:
        layers = [getattr(module, name, None) for name in pair]
        rows = [len(matrix) for matrix in map(matrix_of, layers) if matrix is not None]
        if len(rows) == 2:
            query, key = (Part(layer, 0, count) for layer, count in zip(layers, rows, strict=True))
            heads, width = _heads(module), width_of(module)
            if rows[0] == 2 * heads * width:  # and after each query the gate of its head: Qwen3-Next
                query = Part(layers[0], 0, width, heads)
            return ((query, key),)
    if all(matrix_of(getattr(module, name, None)) is not None for name in LATENT):
        return _latent(module)
    fused = named(module, FUSED)
    return () if matrix_of(fused) is None or _hides(module) else (_fused(module, fused),)


def _heads(module: Any) -> int:
    heads = getattr(getattr(module, "config", None), "num_attention_heads", 0)
    return heads if isinstance(heads, int) else 0


def _fused(module: Any, layer: Any) -> Pair:
    """Queries and keys of one projection: all queries first, or block by block with the keys they share."""
    shared, blocks, out = getattr(module, "num_key_value_groups", 1), 1, len(matrix_of(layer))
    if getattr(module, "query_key_value", None) is not None or not getattr(module, "multi_query", True):
        heads = _heads(module)  # out = (heads + 2 blocks) · width
        blocks = (out // width_of(module) - heads) // 2
        shared = heads // blocks
    keys = out // blocks // (shared + 2)
    return Part(layer, 0, shared * keys, blocks), Part(layer, shared * keys, (shared + 1) * keys, blocks)


def _latent(module: Any) -> tuple[Pair, ...]:
    query, (latent, key) = named(module, ("q_b_proj", "q_proj")), (getattr(module, name) for name in LATENT)
    plain, whole = module.qk_nope_head_dim, module.qk_nope_head_dim + module.qk_rope_head_dim
    heads, out = len(matrix_of(query)) // whole, len(matrix_of(latent))
    rotary = Part(latent, out - module.qk_rope_head_dim, out)
    return (
        (Part(query, 0, plain, heads), Part(key, 0, plain, heads)),
        (Part(query, plain, whole, heads), rotary),
    )


def _hides(module: Any) -> bool:
    """Whether nobody can tell where one projection has its queries and keys.

    Cross attention has two of them. Where is_causal is absent (ImageGPT, CodeGen, MPT), the forward pass
    hides what it does with them.
    """
    return getattr(module, "is_cross_attention", False) or not hasattr(module, "is_causal")
