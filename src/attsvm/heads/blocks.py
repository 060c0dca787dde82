"""A model's own attention, some queries at a time: queries × keys of a long text are never held."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.heads.head import softmax
from attsvm.heads.model import UnsupportedModel
from attsvm.numbers import Bool, Float

BLOCK = 2**22
"""Attention weights held at once."""

SUPPORTED = (
    "Supported are models of transformers whose logits are scaled products of queries and keys: BERT-like "
    "encoders, Llama, Mistral, Qwen, GPT-2, GPT-NeoX, Falcon with rotary positions and their kin."
)


class BlockMask:
    """The mask of eager attention, made for some queries at a time from the arguments of transformers."""

    def __init__(self, **arguments: Any) -> None:
        self.arguments = arguments

    def rows(self, queries: slice) -> Any:
        """Numbers to add to the logits of some queries (n, 1, queries, T), or None."""
        from transformers.masking_utils import eager_mask

        arguments = dict(self.arguments)
        if "cache_position" in arguments:  # transformers 5.0
            arguments["cache_position"] = arguments["cache_position"][queries]
        else:
            offset = arguments.get("q_offset", 0) + queries.start
            arguments |= {"q_length": queries.stop - queries.start, "q_offset": offset}
        return eager_mask(**arguments)


def mask_rows(mask: Any, queries: slice) -> Any:
    """Some rows of a mask, which may also be a tensor (n, 1 or heads, 1 or T, T) or None."""
    if isinstance(mask, BlockMask):
        return mask.rows(queries)
    return mask if mask is None or mask.shape[2] == 1 else mask[:, :, queries]


def eager_attention(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    on_block: Callable[[slice, Any, Any], None] = lambda *_: None,
    **options: Any,
) -> Any:
    """The output of the model's own eager attention (n, T, heads, d), computed in blocks of queries.

    on_block: called with the queries, their attention (n, heads, queries, T) and their rows of the mask.
    """
    import torch

    eager, outputs = eager_function(module), []
    n, heads, T, _ = query.shape
    length = max(1, BLOCK // (n * heads * key.shape[2]))
    for start in range(0, T, length):
        queries = slice(start, min(start + length, T))
        block_mask = mask_rows(mask, queries)
        out, weights = eager(module, query[:, :, queries], key, value, block_mask, **options)
        on_block(queries, weights, block_mask)
        outputs.append(out)
    return torch.cat(outputs, dim=1)


@contextmanager
def attention_replaced(model: Any, function: Any) -> Iterator[None]:
    """Inside, the model computes attention with this function; its masks are `BlockMask`s, or tensors."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name, implementation = "attsvm", model.config._attn_implementation
    if not exchangeable(model):
        problem = f"{type(model).__name__} has an attention of its own, which cannot be exchanged"
        raise UnsupportedModel(f"{problem}: its heads can be read, not replaced or silenced.")
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, BlockMask)
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)


def exchangeable(model: Any) -> bool:
    """Whether the model lets its attention function be replaced."""
    return bool(model._can_set_attn_implementation())


def eager_function(module: Any) -> Any:
    """The model's own plain attention: every modeling file of transformers defines one."""
    modeling = sys.modules[type(module).__module__]
    function = getattr(modeling, "eager_attention_forward", None)
    if function is None:
        raise UnsupportedModel(f"{modeling.__name__} has no eager_attention_forward. {SUPPORTED}")
    return function


# ---------------------------------------------------------------------- what a block's queries select


class Selections(NamedTuple):
    """What queries select, each (n, heads, T) or, at given positions of one head, (k,).

    token: the one that a query attends to most; mass: attention on it; entropy: in nats;
    soft_sparsity: 1/Σs²; sink: attention on the first token and on special tokens.
    error: largest difference between the model's attention and the one recomputed from queries and keys.
    low, high (n, T): a query sees the tokens low … high − 1; padding sees none.
    """

    token: NDArray[np.intp]
    mass: Float
    entropy: Float
    soft_sparsity: Float
    sink: Float
    error: Float
    low: NDArray[np.intp]
    high: NDArray[np.intp]


def joined(selections: Sequence[Selections], axis: int) -> Selections:
    """Blocks of queries (axis −1) or batches of texts (axis 0) as one."""
    return Selections(*(np.concatenate(arrays, axis) for arrays in zip(*selections, strict=True)))


def visible(mask: Bool, queries: slice, block_mask: Any) -> Bool:
    """Which tokens these queries may see (n, queries, T): real ones that the model's mask allows."""
    real = mask[:, queries, None] & mask[:, None, :]
    if block_mask is None:
        return real
    allowed = block_mask if str(block_mask.dtype) == "torch.bool" else block_mask > -1e4
    return np.asarray(real & allowed[:, 0].cpu().numpy())


def measured(attention: Float, logits: Float, visible: Bool, sinks: Bool) -> Selections:
    """The selections of a block.

    attention, logits (n, heads, queries, T): the model's, and products of queries and keys;
    visible (n, queries, T); sinks (n, T): the first token and special tokens.
    """
    with np.errstate(invalid="ignore"):  # padding sees nothing
        recomputed = softmax(np.where(visible[:, None], logits, -np.inf))
    sees = np.asarray(visible.any(-1))
    error = np.where(sees[:, None], np.abs(recomputed - attention).max(-1), 0.0)
    s = attention.astype(float)
    s /= s.sum(-1, keepdims=True)  # float32 rows sum to one up to 1e-7
    entropy = -(s * np.log(np.where(s > 0, s, 1.0))).sum(-1)
    low = visible.argmax(-1)
    high = np.where(sees, visible.shape[-1] - visible[..., ::-1].argmax(-1), low)
    if not np.array_equal(high - low, visible.sum(-1)):
        raise UnsupportedModel(f"a query sees tokens with gaps between them. {SUPPORTED}")
    sink = np.matmul(s, sinks[:, None, :, None].astype(float))[..., 0]
    return Selections(s.argmax(-1), s.max(-1), entropy, 1 / (s * s).sum(-1), sink, error, low, high)
