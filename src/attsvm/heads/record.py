"""The queries, keys and selections of a model's attention heads, layer after layer, within a memory bound.

Two kinds of models are read: those that call an attention function of transformers, which is replaced, and
those with an attention of their own (Falcon, GPT-J, RoFormer), by what enters their softmax.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from attsvm.data.tokens import Tokens
from attsvm.heads.attention import (
    SUPPORTED,
    Projections,
    Selections,
    attention_replaced,
    eager_attention,
    exchangeable,
    hidden_states,
    joined,
    measured,
    projections,
    visible,
)
from attsvm.heads.head import Head, Space
from attsvm.heads.model import Reader, UnsupportedModel, depends_on_padding, load
from attsvm.heads.texts import LENGTH, Texts
from attsvm.numbers import Bool, Float
from attsvm.numbers.library import out_of_memory

EXACT = 1e-5
"""Largest difference between recomputed and model attention, and between queries and their projection."""

MEMORY = 1 << 30
"""Bytes of recorded layers held at once."""


class AttentionCall(NamedTuple):
    """The inputs and the selections of one attention module; hidden: torch states (n, T, d), where known."""

    module: Any
    queries: Float
    keys: Float
    scaling: float
    selections: Selections
    hidden: Any


@dataclass(frozen=True, eq=False)
class LayerRecord:
    """The attention of one layer on all texts, in memory linear in their length.

    queries (n, heads, T, d_head), keys (n, groups, T, d_head): as they enter the product.
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
        """Text and position (2, k) of the queries that see several tokens, with attention above a number."""
        mass, low, high = self.selections.mass, self.selections.low, self.selections.high
        return np.array(np.nonzero((mass[:, head] > above) & (high - low > 1)))

    def selected(self, head: int, at: NDArray[np.intp]) -> Selections:
        """The selections of one head's queries at (2, k)."""
        text, position = at
        arrays = (x if x.ndim == 2 else x[:, head] for x in self.selections)
        return Selections(*(x[text, position] for x in arrays))

    def visible(self, at: NDArray[np.intp]) -> Bool:
        """Which tokens the queries at (2, k) see (k, T)."""
        low, high = (x[at[0], at[1], None] for x in (self.selections.low, self.selections.high))
        token = np.arange(self.keys.shape[2])
        return np.asarray((low <= token) & (token < high))

    def attention(self, head: int, at: NDArray[np.intp]) -> Float:
        """Attention of one head's queries at (2, k), recomputed from queries and keys: (k, T)."""
        text, position = at
        logits = np.empty((len(text), self.keys.shape[2]))
        for i in np.unique(text):
            in_text = text == i
            queries = self.queries[i, head, position[in_text]].astype(float)
            logits[in_text] = self.scaling * queries @ self.keys[i, self._group(head)].T.astype(float)
        return np.asarray(softmax(np.where(self.visible(at), logits, -np.inf), axis=-1))

    def head(self, head: int, at: NDArray[np.intp] | None = None) -> Head:
        """One head with a row per query position; `at` (2, k) as returned by the method of that name."""
        at = self.at(head) if at is None else at
        text, position = at
        if self.hidden is None or self.projections is None:
            keys, queries = self.keys[text, self._group(head)], self.queries[text, head, position]
            W: Float = self.scaling * np.eye(keys.shape[-1])
        else:
            keys, queries = _with_one(self.hidden[text]), _with_one(self.hidden[text, position])
            W = self.projections.weight(head, self.scaling)
        tokens = Tokens(keys, queries, mask=self.visible(at))
        error, attention = self.selected(head, at).error, self.attention(head, at)
        return Head(self.layer, head, self.space, tokens, W, attention, text, position, error)

    @property
    def space(self) -> Space:
        """The space of the heads' tokens."""
        return "head" if self.hidden is None else "hidden"

    def _group(self, head: int) -> int:
        return head * self.keys.shape[1] // self.heads


def extract(
    model: Any,
    texts: Sequence[str],
    *,
    layers: Iterable[int] | None = None,
    queries: int | None = 256,
    above: float = 0.0,
    length: int = LENGTH,
    seed: int = 0,
) -> Iterator[Head]:
    """Every head of a model as `Tokens` and the W that gives the model's own attention.

    model: hub name, folder, `.gguf` file, or `load(model, tokenizer)`.
    queries: at most so many query positions per head, drawn with the seed; None takes all.
    above: only queries whose largest attention exceeds this number. A head without any is left out.
    length: at most so many tokens are read of each text; warns CutTexts where one is longer.
    Raises UnsupportedModel where no W gives the model's attention.
    """
    reader = load(model)
    for layer in record(reader, reader.tokenise(texts, length), layers):
        for head in range(layer.heads):
            at = sample(layer.at(head, above), queries, seed)
            if at.size:
                yield layer.head(head, at)


def sample(at: NDArray[np.intp], limit: int | None, seed: int) -> NDArray[np.intp]:
    """At most `limit` of the positions (2, k), without repetition, in their order."""
    if limit is None or at.shape[1] <= limit:
        return at
    return at[:, np.sort(np.random.default_rng(seed).choice(at.shape[1], limit, replace=False))]


def record(
    reader: Reader, texts: Texts, layers: Iterable[int] | None = None, memory: int = MEMORY
) -> Iterator[LayerRecord]:
    """The layers of a model on texts, in order, as many at a time as fit into `memory` bytes.

    Raises UnsupportedModel where the attention recomputed from queries and keys is not the model's.
    """
    config = reader.model.config
    if getattr(config, "is_encoder_decoder", False) and hasattr(reader.body, "decoder"):
        problem = f"{type(reader.model).__name__} is an encoder with a decoder, which read two texts at once"
        raise UnsupportedModel(f"{problem}. Pass its encoder: load(model.get_encoder(), tokenizer).")
    if getattr(config, "attention_type", None) == "block_sparse":
        # BigBird switches to full attention for good at its first short text, and has no maps before.
        problem = f"{type(reader.model).__name__} attends to blocks of a long text and to all of a short one"
        raise UnsupportedModel(f"{problem}. Load it with attention_type='original_full'.")
    count = config.num_hidden_layers
    indices = sorted(set(range(count) if layers is None else layers))
    if not indices or indices[0] < 0 or indices[-1] >= count:
        raise ValueError(f"layers are {indices} but the model has layers 0 to {count - 1}.")
    if texts.lengths.max() < 2:
        raise ValueError("every text is one token, so that no query has a choice. Pass longer texts.")
    n, T = texts.ids.shape
    numbers = n * T * (3 * config.hidden_size + 12 * config.num_attention_heads)
    group = max(1, memory // (4 * numbers))
    for start in range(0, len(indices), group):
        yield from _pass(reader, texts, indices[start : start + group])


def _pass(reader: Reader, texts: Texts, layers: Sequence[int]) -> list[LayerRecord]:
    """One pass over the texts, which records these layers.

    If padding changes the model's states, each text is read alone. Else the shortest text is read alone, too,
    and the difference that padding makes enters the errors of its queries.
    """
    with _as_unsupported(reader):
        shortest = int(texts.lengths.argmin())
        ids, T = texts.ids[shortest, texts.mask[shortest]], texts.ids.shape[1]
        one_by_one = depends_on_padding(reader, ids, T)
        batches = [_read(reader, batch, layers) for batch in texts.batches(one_by_one)]
        records = [_joined([_padded(batch, T) for batch in layer]) for layer in zip(*batches, strict=True)]
        if one_by_one or len(ids) == T or len(ids) < 2:
            return records
        (unpadded,) = texts.rows(slice(shortest, shortest + 1)).batches(one_by_one=True)
        pairs = zip(records, _read(reader, unpadded, layers), strict=True)
        return [_with_padding_error(*pair, shortest) for pair in pairs]


@contextmanager
def _as_unsupported(reader: Reader) -> Iterator[None]:
    """Inside, errors of a model that cannot be read become UnsupportedModel."""
    try:
        yield
    except UnsupportedModel:
        raise
    except (ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and out_of_memory(error):
            raise
        reason = (str(error).splitlines() or [""])[0].strip(" .") or type(error).__name__
        problem = f"{type(reader.model).__name__} cannot be read ({reason})"
        raise UnsupportedModel(f"{problem}. {SUPPORTED}") from error


def _read(reader: Reader, texts: Texts, layers: Sequence[int]) -> list[LayerRecord]:
    """These layers of one forward pass."""
    import torch

    ids, mask = torch.as_tensor(texts.ids), torch.as_tensor(texts.mask.astype(int))
    if exchangeable(reader.model):
        with torch.no_grad(), _recorded_calls(reader.model, layers, texts) as calls:
            reader.body(input_ids=ids, attention_mask=mask)
    else:
        calls = _eager_calls(reader.body, ids, mask, texts.sinks)
    if len(calls) != reader.model.config.num_hidden_layers:
        raise UnsupportedModel(
            f"{type(reader.model).__name__} has {reader.model.config.num_hidden_layers} layers but "
            f"called the attention interface {len(calls)} times. {SUPPORTED}"
        )
    return [_layer_record(layer, calls[layer], texts.mask) for layer in layers]


@contextmanager
def _recorded_calls(model: Any, layers: Sequence[int], texts: Texts) -> Iterator[list[AttentionCall | None]]:
    """Inside, a forward pass of these texts appends an entry per layer, None for a layer not to record.

    transformers lets a model call a registered attention function: ours calls the model's own eager
    function, some queries at a time, and records its inputs and what the queries select. Rotations, norms
    and biases are already applied to these inputs.
    """
    calls: list[AttentionCall | None] = []
    mask, sinks = texts.mask, texts.sinks

    def attend(module: Any, query: Any, key: Any, value: Any, model_mask: Any, **options: Any) -> Any:
        if len(calls) not in layers:
            calls.append(None)
            return eager_attention(module, query, key, value, model_mask, **options), None
        scaling = float(options.get("scaling") or query.shape[-1] ** -0.5)
        queries, keys = (x.float().cpu().numpy() for x in (query, key))
        transposed = _keys_by_head(keys, queries.shape[1])
        blocks: list[Selections] = []

        def measure(block: slice, weights: Any, block_mask: Any) -> None:
            logits = scaling * np.matmul(queries[:, :, block].astype(float), transposed)
            sees = visible(mask, block, block_mask)
            blocks.append(measured(weights.float().cpu().numpy(), logits, sees, sinks))

        out = eager_attention(module, query, key, value, model_mask, measure, **options)
        selections, hidden = joined(blocks, -1), states.get(id(module))
        calls.append(AttentionCall(module, queries, keys, scaling, selections, hidden))
        return out, None

    with hidden_states(model) as states, attention_replaced(model, attend):
        yield calls


def _eager_calls(model: Any, ids: Any, mask: Any, sinks: Bool) -> list[AttentionCall | None]:
    """The calls of a model with an attention of its own, read from what enters its softmax.

    The maps of all these texts are held at once, as the model itself holds them.
    """
    import torch

    from attsvm.torch.attention_hooks import AttentionHooks

    try:
        hooks = AttentionHooks(model)
    except ValueError:
        name = type(model).__name__
        problem = f"{name} does not let its attention be read. It has one of its own, in modules"
        raise UnsupportedModel(f"{problem} that do not say where queries and keys are. {SUPPORTED}") from None
    calls: list[AttentionCall | None] = []
    with closing(hooks), torch.no_grad(), _eager_implementation(model), hidden_states(model) as states:
        maps = model(input_ids=ids, attention_mask=mask, output_attentions=True).attentions
        try:
            for (module, reading), attention in zip(hooks.module_readings(), maps, strict=True):
                logits, hidden = reading.logits, states.get(id(module))
                queries, keys = (x.float().cpu().numpy() for x in (logits.query, logits.key))
                transposed = _keys_by_head(keys, queries.shape[1])
                products = logits.scale * np.matmul(queries.astype(float), transposed)
                sees = visible(mask.numpy().astype(bool), slice(0, mask.shape[1]), logits.allowed)
                selections = measured(attention.float().cpu().numpy(), products, sees, sinks)
                calls.append(AttentionCall(module, queries, keys, logits.scale, selections, hidden))
        except NotImplementedError as error:
            raise UnsupportedModel(str(error)) from error
    return calls


@contextmanager
def _eager_implementation(model: Any) -> Iterator[None]:
    """Inside, the model's attention is the eager one, which returns maps."""
    config = model.config
    implementation = config._attn_implementation_internal
    config._attn_implementation_internal = "eager"
    try:
        yield
    finally:
        config._attn_implementation_internal = implementation


# ---------------------------------------------------------------------- details


def _keys_by_head(keys: Float, heads: int) -> Float:
    """The transposed keys of every head (n, heads, d_head, T), in float64."""
    return np.repeat(keys, heads // keys.shape[1], axis=1).swapaxes(-1, -2).astype(float)


def _layer_record(layer: int, call: AttentionCall | None, mask: Bool) -> LayerRecord:
    """One batch as arrays, after checking that its attention is softmax(scaling · keyᵀ query)."""
    assert call is not None  # None stands only for layers that are not to be recorded
    query, key, selections, scaling = call.queries, call.keys, call.selections, call.scaling
    error = float(selections.error.max())
    if not error <= EXACT:
        raise UnsupportedModel(
            f"layer {layer}: attention recomputed from queries and keys differs from the model's by "
            f"{error:.1e} (allowed: {EXACT:.0e}), so its logits hold more than their product (biases of "
            f"positions, soft caps, sinks), which no W gives. {SUPPORTED} attsvm.torch.MarginMonitor reads "
            "entropy and gaps of logits with biases and caps, too."
        )
    maps = projections(call.module, query.shape[-1])
    if maps is None or call.hidden is None:
        return LayerRecord(layer, query, key, selections, scaling, None, None)
    states = call.hidden.float().cpu().numpy()
    exact = _affine(states, maps.query, query, mask) and _affine(states, maps.key, key, mask)
    return LayerRecord(layer, query, key, selections, scaling, states if exact else None, maps)


def _affine(hidden: Float, maps: Float, states: Float, mask: Bool) -> bool:
    """Whether the projection of the hidden states is what enters the product (no rotation, no norm)."""
    if len(maps) != states.shape[1]:
        return False
    computed = np.einsum("ntd,hkd->nhtk", _with_one(hidden), maps, optimize=True)
    real = mask[:, None, :, None]
    error = np.abs(np.where(real, computed - states, 0.0)).max()
    return bool(error <= EXACT * np.abs(states).max())


def _padded(batch: LayerRecord, T: int) -> LayerRecord:
    """A batch padded to T tokens; the padding sees nothing."""

    def to_length(array: Any, axis: int) -> Any:
        widths = [(0, 0)] * array.ndim
        widths[axis] = (0, T - array.shape[axis])
        return np.pad(array, widths) if widths[axis][1] else array

    selections = Selections(*(to_length(array, -1) for array in batch.selections))
    hidden = None if batch.hidden is None else to_length(batch.hidden, 1)
    queries, keys = to_length(batch.queries, 2), to_length(batch.keys, 2)
    return replace(batch, queries=queries, keys=keys, selections=selections, hidden=hidden)


def _with_padding_error(padded: LayerRecord, unpadded: LayerRecord, text: int) -> LayerRecord:
    """The padded record, with the distance of a text's attention from that of the text alone as its error."""
    error = padded.selections.error.copy()
    T = unpadded.keys.shape[2]
    at = np.array([np.full(T, text), np.arange(T)])
    for head in range(padded.heads):
        attention = unpadded.attention(head, np.stack([np.zeros(T, int), at[1]]))
        difference = np.abs(padded.attention(head, at)[:, :T] - attention).max(-1)
        error[text, head, :T] = np.maximum(error[text, head, :T], difference)
    return replace(padded, selections=padded.selections._replace(error=error))


def _joined(batches: Sequence[LayerRecord]) -> LayerRecord:
    """The batches of one layer as one record."""
    hidden = [batch.hidden for batch in batches if batch.hidden is not None]
    return replace(
        batches[0],
        queries=np.concatenate([batch.queries for batch in batches]),
        keys=np.concatenate([batch.keys for batch in batches]),
        selections=joined([batch.selections for batch in batches], 0),
        hidden=np.concatenate(hidden) if len(hidden) == len(batches) else None,
    )


def _with_one(hidden: Float) -> Float:
    return np.concatenate([hidden, np.ones((*hidden.shape[:-1], 1), hidden.dtype)], axis=-1)
