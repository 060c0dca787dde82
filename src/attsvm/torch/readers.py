"""The logits of an attention module, recomputed from its inputs and its weights as they are now.

Three families are read: our AttentionPooling, torch.nn.MultiheadAttention, and Hugging Face's layers with
projections of queries and keys (BERT, DistilBERT, ViT; Llama, Mistral, Qwen and their kin with rotary
positions and grouped keys; GPT-2, whose projections are one layer). QueryKey describes a module of your own.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attsvm.torch.pooling import AttentionPooling
from attsvm.torch.projections import everything, layers_of, product_norms, scale_of, split
from attsvm.torch.selective import SelectiveAttention

CHANGES_LOGITS = ("attn_logit_softcapping", "sinks", "distance_embedding", "relative_position_bias")

FORBIDDEN = -9_999.0
"""A mask that adds less forbids the token: models write −10,000, −1e9, their dtype's minimum or −∞."""


class Look(NamedTuple):
    """What the heads of one module saw: logits, which tokens each query may attend to, and the weights."""

    logits: Tensor  # (n, heads, queries, T)
    allowed: Tensor  # bool, broadcasts to the logits
    norms: Tensor  # (heads,) ‖W_QK‖_F of the logits x_tᵀ W_QK z
    selfward: bool  # whether query i is token i, so that a padding token's row can be told


Inputs = dict[str, Any]
Reader = Callable[[Any, Inputs], Look]


def reader_of(module: nn.Module) -> Reader | None:
    """How to read the module's logits, or None where it is no attention that we can read."""
    if isinstance(module, AttentionPooling):
        return read_pooling
    if isinstance(module, nn.MultiheadAttention):
        return read_multihead
    if layers_of(module) and "hidden_states" in inspect.signature(module.forward).parameters:
        return read_projected
    return None


def read_pooling(module: AttentionPooling, inputs: Inputs) -> Look:
    tokens, mask = inputs["tokens"], inputs.get("mask")
    more = (mask, inputs.get("positions")) if isinstance(module, SelectiveAttention) else ()
    logits = module.logits(tokens, inputs.get("queries"), *more)[:, :, None]
    allowed = everything(logits) if mask is None else mask[:, None, None]
    norms = torch.stack([torch.linalg.matrix_norm(W) for W in module.weights])
    return Look(logits, allowed, norms, selfward=False)


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
    logits = scale * split(q, heads) @ split(k, heads).mT
    logits, allowed = _with_ignored(logits, inputs.get("key_padding_mask"), (-1, 1, 1, k.shape[1]))
    shape = (-1, heads if getattr(inputs.get("attn_mask"), "ndim", 0) == 3 else 1, *logits.shape[-2:])
    logits, more = _with_ignored(logits, inputs.get("attn_mask"), shape)
    return Look(logits, allowed & more, scale * product_norms(Q, K, heads, heads), selfward)


def read_projected(module: nn.Module, inputs: Inputs) -> Look:
    """Hugging Face's layers: projections, norms of queries and keys, rotary positions, grouped keys."""
    for name in CHANGES_LOGITS:
        if getattr(module, name, None) is not None:
            raise NotImplementedError(f"{type(module).__name__} has {name}, which the monitor cannot read.")
    first, second = layers_of(module)
    hidden, other = inputs["hidden_states"], _other_states(inputs)
    width = getattr(module, "attention_head_size", None) or module.head_dim
    heads, groups = first.weight.shape[0] // width, second.weight.shape[0] // width
    q = _normed(module, "q_norm", first(hidden), heads)
    k = _normed(module, "k_norm", second(hidden if other is None else other), groups)
    q, k = _rotated(module, q, k, inputs.get("position_embeddings"))
    scale = scale_of(module, width)
    logits = scale * q @ k.repeat_interleave(heads // groups, 1).mT
    causal = bool(getattr(module, "is_causal", False))
    logits, allowed = with_mask(logits, inputs.get("attention_mask"), causal)
    norms = abs(scale) * product_norms(first.weight, second.weight, heads, groups)
    return Look(logits, allowed, norms, selfward=other is None)


# ---------------------------------------------------------------------- details


def _other_states(inputs: Inputs) -> Tensor | None:
    """The states that the keys come from, in cross attention."""
    for name in ("encoder_hidden_states", "key_value_states"):
        if inputs.get(name) is not None:
            return inputs[name]
    return None


def _normed(module: nn.Module, name: str, x: Tensor, heads: int) -> Tensor:
    norm = getattr(module, name, None)
    if norm is None:
        return split(x, heads)
    return split(norm(x), heads) if norm.weight.numel() == x.shape[-1] else norm(split(x, heads))


def _rotated(module: nn.Module, q: Tensor, k: Tensor, positions: Any) -> tuple[Tensor, Tensor]:
    """Rotary positions by the model's own function: families differ in which entries they pair."""
    if positions is None:
        return q, k
    rotate = getattr(sys.modules[type(module).__module__], "apply_rotary_pos_emb", None)
    if rotate is None or positions[0].shape[-1] != q.shape[-1]:
        raise NotImplementedError(f"the rotary positions of {type(module).__name__} cannot be read.")
    return rotate(q, k, *positions)


def _with_ignored(logits: Tensor, mask: Tensor | None, shape: Any) -> tuple[Tensor, Tensor]:
    """torch's masks: True means ignore; numbers are added to the logits."""
    if mask is None:
        return logits, everything(logits)
    mask = mask.reshape(shape)
    return (logits, ~mask) if mask.dtype == torch.bool else _added(logits, mask)


def _added(logits: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    allowed = mask > FORBIDDEN
    return logits + torch.where(allowed, mask, 0), allowed


def with_mask(logits: Tensor, mask: Any, causal: bool) -> tuple[Tensor, Tensor]:
    """Hugging Face's masks: booleans (True counts) or numbers to add (…, T); None leaves causality."""
    if mask is not None and mask.shape[-1] != logits.shape[-1]:
        raise ValueError(
            f"the last forward pass had {mask.shape[-1]} keys but {logits.shape[-1]} tokens (cached keys). "
            "Record after a pass over whole sequences."
        )
    if mask is not None and mask.ndim == 4:
        return (logits, mask) if mask.dtype == torch.bool else _added(logits, mask)
    allowed = everything(logits)
    if causal:
        allowed = allowed.tril()
    return logits, allowed if mask is None else allowed & mask.bool()[:, None, None]
