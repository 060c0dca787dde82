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


class Mask:
    """The mask of eager attention, made for the queries that are asked for; `asked` as transformers asks."""

    def __init__(self, **asked: Any) -> None:
        self.asked = asked

    def rows(self, own: slice) -> Any:
        """Numbers to add to the logits of some queries (n, 1, own, T), or None."""
        from transformers.masking_utils import eager_mask

        asked = dict(self.asked)
        if "cache_position" in asked:  # transformers 5.0
            asked["cache_position"] = asked["cache_position"][own]
        else:
            asked |= {"q_length": own.stop - own.start, "q_offset": asked.get("q_offset", 0) + own.start}
        return eager_mask(**asked)


def rows(mask: Any, own: slice) -> Any:
    """Some rows of a mask, which may also be a tensor (n, 1 or heads, 1 or T, T) or None."""
    if isinstance(mask, Mask):
        return mask.rows(own)
    return mask if mask is None or mask.shape[2] == 1 else mask[:, :, own]


def attended(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    mask: Any,
    look: Callable[[slice, Any, Any], None] = lambda *_: None,
    **options: Any,
) -> Any:
    """What the model's own eager attention gives (n, T, heads, d); `look` sees the weights of every block.

    look: called with some queries, their attention (n, heads, own, T) and their rows of the mask.
    """
    import torch

    eager, parts = eager_function(module), []
    n, heads, T, _ = query.shape
    length = max(1, BLOCK // (n * heads * key.shape[2]))
    for start in range(0, T, length):
        own = slice(start, min(start + length, T))
        some = rows(mask, own)
        out, weights = eager(module, query[:, :, own], key, value, some, **options)
        look(own, weights, some)
        parts.append(out)
    return torch.cat(parts, dim=1)


@contextmanager
def attending(model: Any, function: Any) -> Iterator[None]:
    """Inside, the model computes attention with this function; its masks are `Mask`s, or tensors."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name, before = "attsvm", model.config._attn_implementation
    if not exchangeable(model):
        told = f"{type(model).__name__} has an attention of its own, which cannot be exchanged"
        raise UnsupportedModel(f"{told}: its heads can be read, not replaced or silenced.")
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, Mask)
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def exchangeable(model: Any) -> bool:
    """Whether the model computes attention with whatever function it is told."""
    return bool(model._can_set_attn_implementation())


def eager_function(module: Any) -> Any:
    """The model's own plain attention: every modeling file of transformers defines one."""
    home = sys.modules[type(module).__module__]
    found = getattr(home, "eager_attention_forward", None)
    if found is None:
        raise UnsupportedModel(f"{home.__name__} has no eager_attention_forward. {SUPPORTED}")
    return found


# ---------------------------------------------------------------------- what is kept of a block


class Selections(NamedTuple):
    """What queries select, each (n, heads, T) or, at named positions of one head, (k,).

    token: the one that a query attends to most; mass: attention on it; entropy: in nats;
    soft_sparsity: 1/Σs²; sink: attention on the first token and on special ones.
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


def joined(parts: Sequence[Selections], axis: int) -> Selections:
    """Blocks of queries (axis −1) or batches of texts (axis 0) as one."""
    return Selections(*(np.concatenate(arrays, axis) for arrays in zip(*parts, strict=True)))


def visible(mask: Bool, own: slice, some: Any) -> Bool:
    """Which tokens these queries may see (n, own, T): real ones that the model's mask allows."""
    seen = mask[:, own, None] & mask[:, None, :]
    if some is None:
        return seen
    allowed = some if str(some.dtype) == "torch.bool" else some > -1e4
    return np.asarray(seen & allowed[:, 0].cpu().numpy())


def measured(attention: Float, logits: Float, visible: Bool, drains: Bool) -> Selections:
    """The selections of a block.

    attention, logits (n, heads, own, T): the model's, and products of queries and keys; visible (n, own, T);
    drains (n, T): the first token and special ones.
    """
    with np.errstate(invalid="ignore"):  # padding sees nothing
        recomputed = softmax(np.where(visible[:, None], logits, -np.inf))
    seen = np.asarray(visible.any(-1))
    error = np.where(seen[:, None], np.abs(recomputed - attention).max(-1), 0.0)
    s = attention.astype(float)
    s /= s.sum(-1, keepdims=True)  # float32 rows sum to one up to 1e-7
    entropy = -(s * np.log(np.where(s > 0, s, 1.0))).sum(-1)
    low = visible.argmax(-1)
    high = np.where(seen, visible.shape[-1] - visible[..., ::-1].argmax(-1), low)
    if not np.array_equal(high - low, visible.sum(-1)):
        raise UnsupportedModel(f"a query sees tokens with gaps between them. {SUPPORTED}")
    sink = np.matmul(s, drains[:, None, :, None].astype(float))[..., 0]
    return Selections(s.argmax(-1), s.max(-1), entropy, 1 / (s * s).sum(-1), sink, error, low, high)
