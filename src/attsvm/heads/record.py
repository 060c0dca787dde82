"""Reading a model: what its attention modules receive, one layer after the other, within a memory bound."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.heads.blocks import (
    SUPPORTED,
    Selections,
    attended,
    attending,
    exchangeable,
    joined,
    measured,
    visible,
)
from attsvm.heads.eager import seen_in_eager
from attsvm.heads.head import Head, Space, softmax
from attsvm.heads.model import Reader, UnsupportedModel
from attsvm.heads.projections import Projections, hidden_states, projections
from attsvm.heads.texts import Texts
from attsvm.numbers import Bool, Float
from attsvm.tokens import Tokens

EXACT = 1e-5
"""Largest difference between recomputed and own attention, and of queries from their projection."""

MEMORY = 1 << 30
"""Bytes of recorded layers held at once."""


@dataclass(frozen=True, eq=False)
class LayerRecord:
    """What the attention of one layer saw and did on all texts, in memory linear in their length.

    queries (n, heads, T, d_head), keys (n, groups, T, d_head): as they meet in the product.
    selections: what every query selects; hidden (n, T, d): only where queries and keys are affine in it;
    projections: where known.
    """

    layer: int
    queries: Float
    keys: Float
    selections: Selections
    scaling: float
    hidden: Float | None
    projections: Projections | None

    @property
    def heads(self) -> int:
        return self.queries.shape[1]

    def at(self, head: int, above: float = 0.0) -> NDArray[np.intp]:
        """Query positions (2, k) as text and position, with a choice and attention above a number."""
        all_ = self.selections
        return np.array(np.nonzero((all_.mass[:, head] > above) & (all_.high - all_.low > 1)))

    def selected(self, head: int, at: NDArray[np.intp]) -> Selections:
        """What one head's queries at (2, k) select."""
        text, position = at
        arrays = (x if x.ndim == 2 else x[:, head] for x in self.selections)
        return Selections(*(x[text, position] for x in arrays))

    def visible(self, at: NDArray[np.intp]) -> Bool:
        """Which tokens the queries at (2, k) see: (k, T)."""
        low, high = (x[at[0], at[1], None] for x in (self.selections.low, self.selections.high))
        token = np.arange(self.keys.shape[2])
        return np.asarray((low <= token) & (token < high))

    def attention(self, head: int, at: NDArray[np.intp]) -> Float:
        """Attention of one head's queries at (2, k), recomputed from queries and keys: (k, T)."""
        text, position = at
        logits = np.empty((len(text), self.keys.shape[2]))
        for one in np.unique(text):
            mine = text == one
            queries = self.queries[one, head, position[mine]].astype(float)
            logits[mine] = self.scaling * queries @ self.keys[one, self._group(head)].T.astype(float)
        return softmax(np.where(self.visible(at), logits, -np.inf))

    def head(self, head: int, at: NDArray[np.intp] | None = None) -> Head:
        """One head with one row per query position; `at` (2, k) as returned by the method of that name."""
        at = self.at(head) if at is None else at
        text, position = at
        if self.hidden is None or self.projections is None:
            keys, queries = self.keys[text, self._group(head)], self.queries[text, head, position]
            W: Float = self.scaling * np.eye(keys.shape[-1])
        else:
            keys, queries = _with_one(self.hidden[text]), _with_one(self.hidden[text, position])
            W = self.projections.weight(head, self.scaling)
        tokens = Tokens(keys, queries, mask=self.visible(at))
        apart, attention = self.selected(head, at).error, self.attention(head, at)
        return Head(self.layer, head, self.space, tokens, W, attention, text, position, apart)

    @property
    def space(self) -> Space:
        """Where the heads' tokens live."""
        return "head" if self.hidden is None or self.projections is None else "hidden"

    def _group(self, head: int) -> int:
        return head * self.keys.shape[1] // self.heads


def record(
    reader: Reader, texts: Texts, layers: Iterable[int] | None = None, memory: int = MEMORY
) -> Iterator[LayerRecord]:
    """The layers of a model on texts, in order, as many at a time as fit into `memory` bytes.

    Raises UnsupportedModel where the attention recomputed from queries and keys is not the model's.
    """
    config = reader.model.config
    if getattr(config, "is_encoder_decoder", False) and hasattr(reader.model.base_model, "decoder"):
        told = f"{type(reader.model).__name__} is an encoder with a decoder, which read two texts at once"
        raise UnsupportedModel(f"{told}. Pass its encoder: load(model.get_encoder(), tokenizer).")
    count = config.num_hidden_layers
    wanted = sorted(set(range(count) if layers is None else layers))
    if not wanted or wanted[0] < 0 or wanted[-1] >= count:
        raise ValueError(f"layers are {wanted} but the model has layers 0 to {count - 1}.")
    if texts.lengths.max() < 2:
        raise ValueError("every text is one token, so that no query has a choice. Pass longer texts.")
    n, T = texts.ids.shape
    numbers = n * T * (3 * config.hidden_size + 12 * config.num_attention_heads)
    group = max(1, memory // (4 * numbers))
    for start in range(0, len(wanted), group):
        yield from _pass(reader, texts, wanted[start : start + group])


def _pass(reader: Reader, texts: Texts, layers: Sequence[int]) -> list[LayerRecord]:
    """One sweep over the texts that keeps these layers."""
    import torch

    parts: dict[int, list[LayerRecord]] = {layer: [] for layer in layers}
    body = reader.model.base_model  # without a language model's predictions, which are wider than its states
    for batch in texts.batches():
        ids, mask = (torch.as_tensor(x[batch]) for x in (texts.ids, texts.mask.astype(int)))
        if exchangeable(reader.model):
            with torch.no_grad(), recording(reader.model, layers, texts, batch) as seen:
                body(input_ids=ids, attention_mask=mask)
        else:
            seen = seen_in_eager(body, ids, mask, texts.drains[batch])
        if len(seen) != reader.model.config.num_hidden_layers:
            raise UnsupportedModel(
                f"{type(reader.model).__name__} has {reader.model.config.num_hidden_layers} layers but "
                f"called the attention interface {len(seen)} times. {SUPPORTED}"
            )
        for layer in layers:
            parts[layer].append(_batch(layer, seen[layer], texts.mask[batch]))
    return [_joined(parts[layer]) for layer in layers]


@contextmanager
def recording(
    model: Any, layers: Sequence[int], texts: Texts, batch: slice
) -> Iterator[list[dict[str, Any]]]:
    """Inside, a forward pass of these texts appends what its attention modules received, an entry per layer.

    transformers lets a model call a registered attention function: ours calls the model's own eager
    function, some queries at a time, and keeps what went in and what they selected, so that rotations,
    norms and biases are already applied.
    """
    seen: list[dict[str, Any]] = []
    mask, drains = texts.mask[batch], texts.drains[batch]

    def attend(module: Any, query: Any, key: Any, value: Any, masked: Any, **options: Any) -> Any:
        if len(seen) not in layers:
            seen.append({})
            return attended(module, query, key, value, masked, **options), None
        scaling = float(options.get("scaling") or query.shape[-1] ** -0.5)
        queries, keys = (x.float().cpu().numpy() for x in (query, key))
        across = np.repeat(keys, queries.shape[1] // keys.shape[1], axis=1).swapaxes(-1, -2).astype(float)
        parts: list[Selections] = []

        def look(own: slice, weights: Any, some: Any) -> None:
            logits = scaling * np.matmul(queries[:, :, own].astype(float), across)
            parts.append(measured(weights.float().cpu().numpy(), logits, visible(mask, own, some), drains))

        out = attended(module, query, key, value, masked, look, **options)
        call = {"module": module, "queries": queries, "keys": keys, "scaling": scaling}
        seen.append(call | {"selections": joined(parts, -1), "hidden": states.get(id(module))})
        return out, None

    with hidden_states(model) as states, attending(model, attend):
        yield seen


# ---------------------------------------------------------------------- details


def _batch(layer: int, seen: dict[str, Any], mask: Bool) -> LayerRecord:
    """One batch as arrays, after checking that its attention is softmax(scaling · keyᵀ query)."""
    query, key, selections = seen["queries"], seen["keys"], seen["selections"]
    error = float(selections.error.max())
    if not error <= EXACT:
        raise UnsupportedModel(
            f"layer {layer}: attention recomputed from queries and keys differs from the model's by "
            f"{error:.1e} (allowed: {EXACT:.0e}), so its logits hold more than their product (biases of "
            f"positions, soft caps, sinks), which no W gives. {SUPPORTED} attsvm.torch.MarginMonitor reads "
            "entropy and gaps of logits with biases and caps, too."
        )
    maps, hidden = projections(seen["module"], query.shape[-1]), seen["hidden"]
    if maps is None or hidden is None:
        return LayerRecord(layer, query, key, selections, seen["scaling"], None, None)
    states = hidden.float().cpu().numpy()
    exact = _affine(states, maps.query, query, mask) and _affine(states, maps.key, key, mask)
    states = states if exact else None
    return LayerRecord(layer, query, key, selections, seen["scaling"], states, maps)


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
    queries, keys = (np.concatenate([getattr(part, name) for part in parts]) for name in ("queries", "keys"))
    exact = all(part.hidden is not None for part in parts)
    hidden = np.concatenate([part.hidden for part in parts]) if exact else None
    selections = joined([part.selections for part in parts], 0)
    return LayerRecord(
        first.layer, queries, keys, selections, first.scaling, hidden, projections=first.projections
    )


def _with_one(hidden: Float) -> Float:
    return np.concatenate([hidden, np.ones((*hidden.shape[:-1], 1), hidden.dtype)], axis=-1)
