"""Reading a model: what its attention modules receive, one layer after the other, within a memory bound."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.heads.head import Head
from attsvm.heads.model import Reader, UnsupportedModel
from attsvm.heads.projections import Projections, attention_modules, projections
from attsvm.heads.texts import Texts
from attsvm.numbers import Bool, Float
from attsvm.tokens import Tokens

EXACT = 1e-5
"""Largest difference between recomputed and own attention, and of queries from their projection."""

MEMORY = 1 << 30
"""Bytes of recorded layers held at once."""

BATCH = 16
"""Texts per forward pass."""

SUPPORTED = (
    "Supported are models built on the attention interface of transformers whose logits are scaled "
    "products of queries and keys: BERT-like encoders, Llama, Mistral, Qwen, GPT-2 and their kin."
)


@dataclass(frozen=True, eq=False)
class LayerRecord:
    """What the attention of one layer saw and did on all texts.

    queries (n, heads, T, d_head), keys (n, groups, T, d_head): as they meet in the product.
    attention (n, heads, T, T), visible (n, T, T): which token a query may see (padding sees nothing).
    hidden (n, T, d): only where queries and keys are affine in it; projections: where known.
    """

    layer: int
    queries: Float
    keys: Float
    attention: Float
    visible: Bool
    scaling: float
    hidden: Float | None
    projections: Projections | None

    @property
    def heads(self) -> int:
        return self.queries.shape[1]

    def at(self, head: int, above: float = 0.0) -> NDArray[np.intp]:
        """Query positions (2, k) as text and position, with a choice and attention above a number."""
        sure = self.attention[:, head].max(-1) > above
        return np.array(np.nonzero(sure & (self.visible.sum(-1) > 1)))

    def head(self, head: int, at: NDArray[np.intp] | None = None) -> Head:
        """One head with one row per query position; `at` (2, k) as returned by the method of that name."""
        text, position = self.at(head) if at is None else at
        group = head * self.keys.shape[1] // self.heads
        visible = self.visible[text, position]
        attention = self.attention[text, head, position].astype(float)
        if self.hidden is None or self.projections is None:
            keys, queries = self.keys[text, group], self.queries[text, head, position]
            W: Float = self.scaling * np.eye(keys.shape[-1])
            tokens = Tokens(keys, queries, mask=visible)
            return Head(self.layer, head, "head", tokens, W, attention, text, position)
        keys, queries = _with_one(self.hidden[text]), _with_one(self.hidden[text, position])
        W = self.projections.weight(head, self.scaling)
        tokens = Tokens(keys, queries, mask=visible)
        return Head(self.layer, head, "hidden", tokens, W, attention, text, position)


def record(
    reader: Reader, texts: Texts, layers: Iterable[int] | None = None, memory: int = MEMORY
) -> Iterator[LayerRecord]:
    """The layers of a model on texts, in order, as many at a time as fit into `memory` bytes.

    Raises UnsupportedModel where the attention recomputed from queries and keys is not the model's.
    """
    config = reader.model.config
    count = config.num_hidden_layers
    wanted = sorted(set(range(count) if layers is None else layers))
    if not wanted or wanted[0] < 0 or wanted[-1] >= count:
        raise ValueError(f"layers are {wanted} but the model has layers 0 to {count - 1}.")
    n, T = texts.ids.shape
    numbers = n * T * (3 * config.hidden_size + config.num_attention_heads * T)
    group = max(1, memory // (4 * numbers))
    for start in range(0, len(wanted), group):
        yield from _pass(reader, texts, wanted[start : start + group])


def _pass(reader: Reader, texts: Texts, layers: Sequence[int]) -> list[LayerRecord]:
    """One sweep over the texts that keeps these layers."""
    import torch

    parts: dict[int, list[LayerRecord]] = {layer: [] for layer in layers}
    with torch.no_grad(), recording(reader.model, layers) as seen:
        for start in range(0, len(texts), BATCH):
            batch = slice(start, start + BATCH)
            ids, mask = (torch.as_tensor(x[batch]) for x in (texts.ids, texts.mask.astype(int)))
            seen.clear()
            reader.model(input_ids=ids, attention_mask=mask)
            if len(seen) != reader.model.config.num_hidden_layers:
                raise UnsupportedModel(
                    f"{type(reader.model).__name__} has {reader.model.config.num_hidden_layers} layers but "
                    f"called the attention interface {len(seen)} times. {SUPPORTED}"
                )
            for layer in layers:
                parts[layer].append(_batch(layer, seen[layer], texts.mask[batch]))
    return [_joined(parts[layer]) for layer in layers]


@contextmanager
def recording(model: Any, layers: Sequence[int]) -> Iterator[list[dict[str, Any]]]:
    """Inside, every forward pass appends what its attention modules received, one entry per layer.

    transformers lets a model call a registered attention function: ours calls the model's own eager
    function and keeps what went in and out, so that rotations, norms and biases are already applied.
    """
    seen: list[dict[str, Any]] = []

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        out, weights = eager_function(module)(module, query, key, value, mask, **options)
        call: dict[str, Any] = {}
        if len(seen) in layers:
            scaling = options.get("scaling") or query.shape[-1] ** -0.5
            call |= {"module": module, "query": query, "key": key, "mask": mask, "scaling": scaling}
            call |= {"attention": weights, "hidden": states.get(id(module))}
        seen.append(call)
        return out, weights

    with hidden_states(model) as states, attending(model, attend):
        yield seen


@contextmanager
def hidden_states(model: Any) -> Iterator[dict[int, Any]]:
    """Inside, the latest hidden states that entered each attention module, by the id of the module."""
    states: dict[int, Any] = {}
    hooks = [first.register_forward_pre_hook(_keeper(states, id(m))) for m, first in attention_modules(model)]
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def attending(model: Any, function: Any) -> Iterator[None]:
    """Inside, the model computes attention with this function, on the masks of eager attention."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    name, before = "attsvm", model.config._attn_implementation
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, eager_mask)
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise UnsupportedModel(f"{type(model).__name__} does not let its attention be read. {SUPPORTED}")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def eager_function(module: Any) -> Any:
    """The model's own plain attention: every modeling file of transformers defines one."""
    home = sys.modules[type(module).__module__]
    found = getattr(home, "eager_attention_forward", None)
    if found is None:
        raise UnsupportedModel(f"{home.__name__} has no eager_attention_forward. {SUPPORTED}")
    return found


# ---------------------------------------------------------------------- details


def _keeper(states: dict[int, Any], name: int) -> Any:
    def keep(_: Any, inputs: Any) -> None:
        states[name] = inputs[0]

    return keep


def _batch(layer: int, seen: dict[str, Any], mask: Bool) -> LayerRecord:
    """One batch as arrays, after checking that its attention is the softmax of the products."""
    query, key, weights = (seen[name].float().cpu().numpy() for name in ("query", "key", "attention"))
    n, T = mask.shape
    visible = np.broadcast_to(mask[:, None, :], (n, T, T))
    if seen["mask"] is not None:
        given = seen["mask"]
        allowed = given if given.dtype == bool or str(given.dtype) == "torch.bool" else given > -1e4
        visible = visible & allowed[:, 0].expand(n, T, T).cpu().numpy()
    visible = visible & mask[:, :, None]
    record = LayerRecord(layer, query, key, weights, visible, float(seen["scaling"]), None, None)
    _check(record)
    maps, hidden = projections(seen["module"], query.shape[-1]), seen["hidden"]
    if maps is None or hidden is None:
        return record
    states = hidden.float().cpu().numpy()
    exact = _affine(states, maps.query, query, mask) and _affine(states, maps.key, key, mask)
    return LayerRecord(layer, query, key, weights, visible, record.scaling, states if exact else None, maps)


def _check(record: LayerRecord) -> None:
    """Refuse attention that is not softmax(scaling · keyᵀ query) over the visible tokens."""
    keys = np.repeat(record.keys, record.heads // record.keys.shape[1], axis=1)
    logits = record.scaling * np.matmul(record.queries, keys.swapaxes(-1, -2))
    visible = record.visible[:, None]
    logits = np.where(visible, logits, -np.inf)
    with np.errstate(invalid="ignore"):
        weight = np.exp(logits - logits.max(-1, keepdims=True))
        weight = np.where(visible, weight / weight.sum(-1, keepdims=True), 0.0)
    rows = visible.any(-1, keepdims=True)
    error = float(np.abs(np.where(rows, weight - record.attention, 0.0)).max())
    if not error <= EXACT:
        raise UnsupportedModel(
            f"layer {record.layer}: attention recomputed from queries and keys differs from the model's by "
            f"{error:.1e} (allowed: {EXACT:.0e}), so its logits hold more than their product. {SUPPORTED}"
        )


def _affine(hidden: Float, maps: Float, states: Float, mask: Bool) -> bool:
    """Whether the projection of the hidden states is what meets in the product (no rotation, no norm)."""
    if len(maps) != states.shape[1]:
        return False
    computed = np.einsum("ntd,hkd->nhtk", _with_one(hidden), maps, optimize=True)
    real = mask[:, None, :, None]
    error = np.abs(np.where(real, computed - states, 0.0)).max()
    return bool(error <= EXACT * np.abs(states).max())


def _joined(parts: list[LayerRecord]) -> LayerRecord:
    """The batches of one layer as one record."""
    first = parts[0]
    arrays = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("queries", "keys", "attention", "visible")
    }
    exact = all(part.hidden is not None for part in parts)
    hidden = np.concatenate([part.hidden for part in parts]) if exact else None
    return LayerRecord(
        first.layer, scaling=first.scaling, hidden=hidden, projections=first.projections, **arrays
    )


def _with_one(hidden: Float) -> Float:
    return np.concatenate([hidden, np.ones((*hidden.shape[:-1], 1), hidden.dtype)], axis=-1)
