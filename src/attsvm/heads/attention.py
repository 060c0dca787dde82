"""A model's own attention: computed some queries at a time, measured, and the projections before it.

Attention weights of all queries and keys of a long text are never held at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from attsvm._support.architectures import LayerSlice, query_key_layers
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
    """The selections of a block, from logits: attention in float32 loses the losing tokens' digits.

    attention, logits (n, heads, queries, T): the model's, and products of queries and keys;
    visible (n, queries, T); sinks (n, T): the first token and special tokens.
    """
    import torch

    from attsvm.torch.statistics import block_statistics

    seen_logits, sees = np.where(visible[:, None], logits, -np.inf), np.asarray(visible.any(-1))
    with np.errstate(invalid="ignore"):  # padding sees nothing
        recomputed = softmax(seen_logits, axis=-1)
    error = np.where(sees[:, None], np.abs(recomputed - attention).max(-1), 0.0)
    found: Any = block_statistics(torch.as_tensor(seen_logits), torch.as_tensor(sinks)[:, None, None])
    mass = torch.exp(found.largest - found.logsumexp).nan_to_num(0)
    low = visible.argmax(-1)
    high = np.where(sees, visible.shape[-1] - visible[..., ::-1].argmax(-1), low)
    if not np.array_equal(high - low, visible.sum(-1)):
        raise UnsupportedModel(f"a query sees tokens with gaps between them. {SUPPORTED}")
    return Selections(
        token=found.where.clamp_min(0).numpy(),
        mass=mass.numpy(),
        entropy=found.entropy.numpy(),
        soft_sparsity=found.soft_sparsity.numpy(),
        sink=found.selected.numpy(),
        error=error,
        low=low,
        high=high,
    )


# ---------------------------------------------------------------------- hidden states, queries and keys


class Spectrum(NamedTuple):
    """Mean and variance of the eigenvalues of W, and its stable rank; NaN where W is not known."""

    mean: float = np.nan
    variance: float = np.nan
    stable_rank: float = np.nan


@dataclass(frozen=True, eq=False)
class Projections:
    """Weights with the bias as last column: query (heads, d_head, d+1), key (groups, d_head, d+1)."""

    query: Float
    key: Float

    def weight(self, head: int, scaling: float) -> Float:
        """W (d+1, d+1) = [W_K b_K]ᵀ [W_Q b_Q] · scaling of one head; heads of a group share their key."""
        return np.asarray(self._key(head).T @ self.query[head] * scaling)

    def spectrum(self, head: int, scaling: float) -> Spectrum:
        """The spectrum of W without biases (d, d).

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
        return Spectrum(mean, variance, float((sigma**2).sum() / max(sigma[0] ** 2, 1e-300)))

    def _key(self, head: int) -> Float:
        return self.key[head * len(self.key) // len(self.query)]


@contextmanager
def hidden_states(model: Any) -> Iterator[dict[int, Any]]:
    """Inside, the latest hidden states that entered each attention module, by the id of the module.

    They are the input of the module's query layer.
    """
    states: dict[int, Any] = {}
    with ExitStack() as hooks:
        for module in model.modules():
            for query, _ in query_key_layers(module)[:1]:
                save = partial(_save_input, states, id(module))
                hooks.enter_context(query.layer.register_forward_pre_hook(save))
        yield states


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


def _save_input(states: dict[int, Any], key: int, _: Any, inputs: Any) -> None:
    states[key] = inputs[0]
