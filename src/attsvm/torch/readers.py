"""Queries and keys of an attention module, recomputed from its inputs and its weights as they are now.

Three families are read: our AttentionPooling, torch.nn.MultiheadAttention, and Hugging Face's layers with
projections of queries and keys (BERT, DistilBERT, ViT; Llama, Mistral, Qwen and their kin with rotary
positions and grouped keys; GPT-2, GPTBigCode, Phi-3 and ModernBERT, whose projections are one layer).
QueryKey describes a module of your own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attsvm.query_key import named, query_key_layers
from attsvm.torch.logits import Logits
from attsvm.torch.pooling import AttentionPooling
from attsvm.torch.projections import (
    product_norms,
    scale_of,
    shrink_each,
    shrink_rows,
    split,
    tensors_of,
)
from attsvm.torch.selective import SelectiveAttention

CHANGES_LOGITS = (
    *("sinks", "distance_embedding", "relative_position_bias", "relative_k_proj", "gru_rel_pos_linear"),
    *("sinusoidal_pos", "embed_positions", "rotary_embeddings"),  # RoFormer, GPT-J, ESM: they rotate inside
    *("layout_query", "w2e_query", "query_global"),  # LiLT, LUKE, Longformer: queries of two kinds
    *("sequence_reduction", "spatial_reduction", "sr"),  # SegFormer, PVT, GLPN: keys of fewer tokens
)
"""Parts and inputs of a module that make its logits more than products of what we know."""

NORMS = {"query": ("q_norm", "q_layernorm"), "key": ("k_norm", "k_layernorm")}

FORBIDDEN = -9_999.0
"""A mask that adds less forbids the token: models write −10,000, −1e9, their dtype's minimum or −∞."""


class Look(NamedTuple):
    """What the heads of one module saw: its logits, asked for in blocks, and the weights."""

    logits: Logits
    norms: Tensor  # (heads,) ‖W_QK‖_F of the logits x_tᵀ W_QK z
    selfward: bool  # whether query i is token i, so that a padding token's row can be told
    shrink: Callable[
        [Tensor], None
    ]  # multiplies the logits of head h by a factor_h, (heads,), in the weights


Inputs = dict[str, Any]
Reader = Callable[[Any, Inputs], Look]


def reader_of(module: nn.Module) -> Reader | None:
    """How to read the module's logits, or None where it is no attention that we can read."""
    if isinstance(module, AttentionPooling):
        return read_pooling
    if isinstance(module, nn.MultiheadAttention):
        return read_multihead
    if query_key_layers(module) and "hidden_states" in inspect.signature(module.forward).parameters:
        return read_projected
    return None


def read_pooling(module: AttentionPooling, inputs: Inputs) -> Look:
    tokens, mask = inputs["tokens"], inputs.get("mask")
    more = (mask, inputs.get("positions")) if isinstance(module, SelectiveAttention) else ()
    key = module.logits(tokens, inputs.get("queries"), *more)[..., None]  # one query, which is 1
    kept = None if mask is None else mask[:, None, None]
    logits = Logits(torch.ones_like(key[:, :, :1]), key, kept, 1.0)
    norms = torch.stack([torch.linalg.matrix_norm(W) for W in module.weights])
    return Look(logits, norms, False, partial(shrink_each, list(module.weights)))


def read_multihead(module: nn.MultiheadAttention, inputs: Inputs) -> Look:
    if module.bias_k is not None or module.add_zero_attn:
        raise NotImplementedError("MultiheadAttention with bias_kv or add_zero_attn cannot be monitored.")
    query, key = inputs["query"], inputs["key"]
    selfward = query is key
    query, key = ((x if x.ndim == 3 else x[None]) for x in (query, key))
    if not module.batch_first and inputs["query"].ndim == 3:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    Q, K, *_ = (
        module.in_proj_weight.chunk(3)
        if module.in_proj_weight is not None
        else (module.q_proj_weight, module.k_proj_weight)
    )
    biases = (None, None) if module.in_proj_bias is None else module.in_proj_bias.chunk(3)[:2]
    q, k = (nn.functional.linear(x, w, b) for x, w, b in zip((query, key), (Q, K), biases, strict=True))
    heads, scale = module.num_heads, module.head_dim**-0.5
    mask = _multihead_mask(inputs.get("key_padding_mask"), inputs.get("attn_mask"), heads)
    logits = Logits(split(q, heads), split(k, heads), mask, scale)
    shrink = partial(
        shrink_rows,
        [x for x in (Q, biases[0]) if x is not None],
        [x for x in (K, biases[1]) if x is not None],
        heads,
    )
    return Look(logits, scale * product_norms(Q, K, heads, heads), selfward, shrink)


def read_projected(module: nn.Module, inputs: Inputs) -> Look:
    """Hugging Face's layers: projections, norms of queries and keys, rotary positions, grouped keys."""
    for name in CHANGES_LOGITS:
        if getattr(module, name, None) is not None or inputs.get(name) is not None:
            raise NotImplementedError(f"{type(module).__name__} has {name}, which the monitor cannot read.")
    first, second = query_key_layers(module)
    hidden, other = inputs["hidden_states"], _other_states(inputs)
    width = getattr(module, "attention_head_size", None) or module.head_dim
    heads, groups = first.weight.shape[0] // width, second.weight.shape[0] // width
    q = _normed(module, "query", first(hidden), heads)
    k = _normed(module, "key", second(hidden if other is None else other), groups)
    q, k = _rotated(module, q, k, inputs.get("position_embeddings"))
    scale = scale_of(module, width)
    logits = masked(q, k, scale, inputs.get("attention_mask"), bool(getattr(module, "is_causal", False)))
    cap, window = (getattr(module, name, None) for name in ("attn_logit_softcapping", "sliding_window"))
    logits = replace(logits, soft_cap=cap, window=window if logits.causal else None)
    norms = abs(scale) * product_norms(first.weight, second.weight, heads, groups)
    shrink = partial(shrink_rows, tensors_of(first), tensors_of(second), groups)
    if named(module, NORMS["query"]) is not None:
        shrink = partial(_no_shrinking, type(module).__name__)
    return Look(logits, norms, other is None, shrink)


def masked(q: Tensor, k: Tensor, scale: float, mask: Any, causal: bool) -> Logits:
    """Logits under one of Hugging Face's masks: booleans (True counts) or numbers to add.

    A mask (n, 1 or heads, T, T) says everything; one of tokens (n, T), or none, leaves causality.
    """
    if mask is not None and mask.shape[-1] != k.shape[2]:
        raise ValueError(
            f"the last forward pass had {mask.shape[-1]} keys but {k.shape[2]} tokens (cached keys). "
            "Record after a pass over whole sequences."
        )
    if mask is not None and mask.ndim == 4:
        return Logits(q, k, mask if mask.dtype == torch.bool else _added(mask), scale)
    return Logits(q, k, None if mask is None else mask.bool()[:, None, None], scale, causal)


# ---------------------------------------------------------------------- details


def _other_states(inputs: Inputs) -> Tensor | None:
    """The states that the keys come from, in cross attention."""
    for name in ("encoder_hidden_states", "key_value_states"):
        if inputs.get(name) is not None:
            return inputs[name]
    return None


def _normed(module: nn.Module, kind: str, x: Tensor, heads: int) -> Tensor:
    """Heads as the module's norm leaves them, which is one of all heads or of each."""
    norm = named(module, NORMS[kind])
    if norm is None:
        return split(x, heads)
    weight = getattr(norm, "weight", None)
    whole = weight is not None and weight.numel() == x.shape[-1]
    return split(norm(x), heads) if whole else norm(split(x, heads))


def _rotated(module: nn.Module, q: Tensor, k: Tensor, positions: Any) -> tuple[Tensor, Tensor]:
    """Rotary positions by the model's own function: families differ in which entries they pair."""
    if positions is None:
        return q, k
    rotate = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if rotate is None or positions[0].shape[-1] != q.shape[-1]:
        raise NotImplementedError(f"the rotary positions of {type(module).__name__} cannot be read.")
    return rotate(q, k, *positions)


def _multihead_mask(padding: Tensor | None, mask: Tensor | None, heads: int) -> Tensor | None:
    """torch's masks as one of ours: there True means ignore; numbers are added to the logits."""
    if padding is not None:
        padding = padding[:, None, None] if padding.ndim == 2 else padding[None, None, None]
    if mask is not None and mask.ndim == 3:
        mask = mask.unflatten(0, (-1, heads))
    given = [~m if m.dtype == torch.bool else _added(m) for m in (padding, mask) if m is not None]
    if len(given) < 2:
        return given[0] if given else None
    if all(m.dtype == torch.bool for m in given):
        return given[0] & given[1]
    first, second = (torch.where(m, 0.0, -torch.inf) if m.dtype == torch.bool else m for m in given)
    return first + second


def _added(mask: Tensor) -> Tensor:
    return mask.masked_fill(mask <= FORBIDDEN, -torch.inf)


def _no_shrinking(kind: str, factors: Tensor) -> None:
    raise NotImplementedError(
        f"{kind} normalises queries and keys, so that the size of their weights does not matter: its logits "
        "are bounded by the weights of these norms."
    )
