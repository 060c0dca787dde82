"""Queries and keys of an attention module, recomputed from its inputs and its weights as they are now.

Three families are read: our AttentionPooling, torch.nn.MultiheadAttention, and Hugging Face's layers with
projections of queries and keys whose names `attsvm.query_key` knows. QueryKey describes a module of your own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attsvm.query_key import named, query_key_layers, width_of
from attsvm.torch.handed import ADDED, handed
from attsvm.torch.logits import Logits
from attsvm.torch.pooling import AttentionPooling
from attsvm.torch.projections import (
    Projected,
    product_norms,
    projected,
    scale_of,
    shrink_each,
    shrink_rows,
    split,
)
from attsvm.torch.selective import SelectiveAttention
from attsvm.torch.softmax_seen import FORBIDDEN

NORMS = ("q_norm", "q_layernorm")


class Look(NamedTuple):
    """What the heads of one module saw: its logits, asked for in blocks, and the weights."""

    logits: Logits
    norms: Tensor  # (heads,) ‖W_QK‖_F of the logits x_tᵀ W_QK z
    selfward: bool  # whether query i is token i, so that a padding token's row can be told
    shrink: Callable[
        [Tensor], None
    ]  # multiplies the logits of head h by a factor_h, (heads,), in the weights

    def own(self) -> Tensor | bool:
        """Whether a query's own token counts: the rows of padding tokens are left out."""
        allowed = self.logits.allowed
        if allowed is None or not self.selfward:
            return True
        return allowed.expand(self.logits.shape).diagonal(dim1=-2, dim2=-1)


Inputs = dict[str, Any]
Reader = Callable[[Any, Inputs], Look]


def reader_of(module: nn.Module) -> Reader | None:
    """How to read the module's logits, or None where it is no attention that we can read."""
    if isinstance(module, AttentionPooling):
        return read_pooling
    if isinstance(module, nn.MultiheadAttention):
        return read_multihead
    if (
        query_key_layers(module)
        and width_of(module)
        and "hidden_states" in inspect.signature(module.forward).parameters
    ):
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
        [x[None] for x in (Q, biases[0]) if x is not None],
        [x[None] for x in (K, biases[1]) if x is not None],
        heads,
    )
    return Look(logits, scale * product_norms(Q, K, heads, heads), selfward, shrink)


def read_projected(module: nn.Module, inputs: Inputs) -> Look:
    """Hugging Face's layers: queries and keys as they meet in the module's own attention."""
    pairs = query_key_layers(module)
    (q, k, mask, options), outputs = handed(module, inputs, {part.layer for pair in pairs for part in pair})
    scale = options.get("scaling")
    scale = scale_of(module, q.shape[-1]) if scale is None else float(scale)
    causal = options.get("is_causal")  # which CLIP's texts are told, and not the module
    causal = getattr(module, "is_causal", False) if causal is None else causal
    logits = masked(q, k, scale, mask, bool(causal), options.get(ADDED))
    cap, window = (
        options.get(option, getattr(module, name, None))
        for option, name in (("softcap", "attn_logit_softcapping"), ("sliding_window", "sliding_window"))
    )
    logits = replace(logits, soft_cap=cap, window=window if logits.causal else None)
    other, met = other_states(inputs), projected(pairs, q, k)
    hidden = inputs["hidden_states"]
    sources = [(first, hidden) for first, _ in pairs]
    sources += [(second, hidden if other is None else other) for _, second in pairs]
    for part, states in sources:
        if part.layer not in outputs:  # its weights were taken without a call
            outputs[part.layer] = part.layer(states)
    stretches = torch.stack([one.stretch(outputs) for one in met])
    norms = torch.stack([one.norms for one in met]) * stretches.nan_to_num(1.0)[:, None]
    shrink = partial(_shrunk, module, stretches, met)
    selfward = other is None and q.shape[2] == k.shape[2]
    return Look(logits, abs(scale) * torch.linalg.vector_norm(norms, dim=0), selfward, shrink)


def masked(q: Tensor, k: Tensor, scale: float, mask: Any, causal: bool, added: Any = None) -> Logits:
    """Logits under one of Hugging Face's masks: booleans (True counts) or numbers to add.

    A mask (n, 1 or heads, T, T) says everything; one of tokens (n, T), or none, leaves causality.
    added: more numbers (n or 1, heads, T, T) for the logits.
    """
    if mask is not None and mask.shape[-1] != k.shape[2]:
        raise ValueError(
            f"the last forward pass had {mask.shape[-1]} keys but {k.shape[2]} tokens (cached keys). "
            "Record after a pass over whole sequences."
        )
    causal = causal and (mask is None or mask.ndim != 4)
    if mask is not None and mask.ndim != 4:
        mask = mask.bool()[:, None, None]
    return Logits(q, k, _all_of([mask, added]), scale, causal)


# ---------------------------------------------------------------------- details


def other_states(inputs: Inputs) -> Tensor | None:
    """The states that the keys come from, in cross attention."""
    for name in ("encoder_hidden_states", "key_value_states"):
        if inputs.get(name) is not None:
            return inputs[name]
    return None


def _multihead_mask(padding: Tensor | None, mask: Tensor | None, heads: int) -> Tensor | None:
    """torch's masks as one of ours: there True means ignore; numbers are added to the logits."""
    if padding is not None:
        padding = padding[:, None, None] if padding.ndim == 2 else padding[None, None, None]
    if mask is not None and mask.ndim == 3:
        mask = mask.unflatten(0, (-1, heads))
    return _all_of(~m if m is not None and m.dtype == torch.bool else m for m in (padding, mask))


def _all_of(masks: Iterable[Tensor | None]) -> Tensor | None:
    """Masks as one: booleans where all are, True for what counts, else numbers to add."""
    given = [m if m.dtype == torch.bool else _added(m) for m in masks if m is not None]
    if len(given) < 2:
        return given[0] if given else None
    if all(m.dtype == torch.bool for m in given):
        return given[0] & given[1]
    first, second = (torch.where(m, 0.0, -torch.inf) if m.dtype == torch.bool else m for m in given)
    return first + second


def _added(mask: Tensor) -> Tensor:
    return mask.masked_fill(mask <= FORBIDDEN, -torch.inf)


def _shrunk(module: nn.Module, stretches: Tensor, met: Sequence[Projected], factors: Tensor) -> None:
    if named(module, NORMS) is not None or bool(stretches.isnan().any()):
        raise NotImplementedError(
            f"{type(module).__name__} normalises or limits queries and keys, so that its logits are not "
            "proportional to their weights: they are bounded by the weights of norms, or already."
        )
    for one in met:
        one.shrink(factors)
