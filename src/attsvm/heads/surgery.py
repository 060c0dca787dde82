"""Surgery on attention heads: replace a head's QK weight, or silence it, and measure what that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any

import numpy as np
from scipy.special import softmax

from attsvm.heads.attention import attention_replaced, eager_attention, hidden_states, mask_rows
from attsvm.heads.head import Head, Place, Space
from attsvm.heads.model import Reader, load
from attsvm.heads.record import LayerRecord, record, sample
from attsvm.heads.texts import LENGTH, Texts
from attsvm.norms import Norm
from attsvm.norms.names import as_norm
from attsvm.numbers import Float


@dataclass(frozen=True)
class Change:
    """What a replacement does to a head and to its model.

    kept: share of queries that select the same token as before, and kept_confident: of those whose
        attention exceeded one half. divergence: mean KL(before ‖ after) of the attention, in nats.
    output: for an encoder 1 − mean cosine of the mean-pooled last hidden states, for a model that
        predicts the next token the mean KL of its predictions, in nats.
    """

    kept: float
    kept_confident: float
    divergence: float
    output: float


@dataclass(frozen=True, eq=False, repr=False)
class Replacement:
    """A head's new weight W (d, e), and what it changes on the texts, and on held-out texts if given."""

    reader: Reader
    layer: int
    head: int
    space: Space
    W: Float
    change: Change
    held_out: Change | None

    @contextmanager
    def applied(self) -> Iterator[Reader]:
        """Inside, the model runs with this weight."""
        with operated(self.reader, {(self.layer, self.head): self.W}, self.space == "hidden"):
            yield self.reader

    def __repr__(self) -> str:
        rank = np.linalg.matrix_rank(self.W)
        held_out = f"; held out: {self.held_out}" if self.held_out else ""
        return f"Replacement({self.layer}·{self.head}, rank {rank}: {self.change}{held_out})"


def replace_head(
    model: Any,
    texts: Sequence[str],
    place: Place,
    weight: Norm | int | Float,
    *,
    held_out: Sequence[str] | None = None,
    queries: int = 32,
    length: int = LENGTH,
    seed: int = 0,
) -> Replacement:
    """Give one head another weight and measure how its selections, its attention and the model change.

    place: layer and head.
    weight: a norm, for the max-margin weight of the head's own selections in that norm; a rank, for the best
        approximation of its W of that rank; or the weight itself, (d, e) in the head's space (`Head.space`).
        The first two are scaled to fit the head's attention best.
    queries: so many of the head's confident queries (attention above one half; of all queries where none is)
        determine the weight, drawn with the seed. held_out: other texts on which the change is measured, too.
    """
    reader, (layer, head) = load(model), place
    tokenised = reader.tokenise(texts, length)
    count = reader.model.config.num_attention_heads
    if not 0 <= head < count:
        raise ValueError(f"head is {head} but the model's layers have heads 0 to {count - 1}.")
    record = layer_of(reader, tokenised, layer)
    at = record.at(head, 0.5)
    problem = record.head(head, sample(at if at.size else record.at(head), queries, seed))
    W = _weight(problem, weight)
    changed = change(reader, tokenised, record, head, W, output(reader, tokenised))
    changed_held_out = None
    if held_out is not None:
        tokenised = reader.tokenise(held_out, length)
        reference = output(reader, tokenised)
        changed_held_out = change(reader, tokenised, layer_of(reader, tokenised, layer), head, W, reference)
    return Replacement(reader, layer, head, problem.space, W, changed, changed_held_out)


def _weight(head: Head, weight: Norm | str | int | Float) -> Float:
    if isinstance(weight, Norm | str):
        return separating(head, as_norm(weight))
    if isinstance(weight, int | np.integer):
        if not 1 <= weight <= min(head.W.shape):
            raise ValueError(
                f"weight is the rank {weight}. Pass 1 to {min(head.W.shape)}, a norm, or a matrix."
            )
        return fitted(head, truncated(head, int(weight)))
    W = np.asarray(weight, dtype=float)
    if W.shape != head.W.shape:
        raise ValueError(f"weight has shape {W.shape}, but heads in {head.space} space need {head.W.shape}.")
    return W


# ---------------------------------------------------------------------- other weights


def truncated(head: Head, rank: int) -> Float:
    """The best approximation of the head's W by a matrix of this rank (Eckart–Young): (d, e)."""
    U, sigma, Vt = np.linalg.svd(head.W)
    return np.asarray((U[:, :rank] * sigma[:rank]) @ Vt[:rank])


def separating(head: Head, norm: Norm) -> Float:
    """The max-margin weight of the head's own selections, at the scale that fits its attention best."""
    from attsvm.program.max_margin import max_margin  # slow to import, and not needed to read a model

    return fitted(head, max_margin(head.tokens, head.selected, norm).W)


def fitted(head: Head, W: Float) -> Float:
    """c W with the c > 0 that minimises the mean KL(model's attention ‖ softmax(c xᵀ W z))."""
    from scipy.optimize import minimize_scalar

    logits = replace(head, W=W).logits
    size = np.abs(logits[head.tokens.mask]).max()

    def mean_divergence(log_scale: float) -> float:
        return float(divergence(head.attention, softmax(np.exp(log_scale) * logits / size, axis=-1)).mean())

    log_scale = minimize_scalar(mean_divergence, bounds=(-5.0, 12.0), method="bounded").x
    return np.asarray(np.exp(log_scale) / size * W)


def divergence(p: Float, q: Float) -> Float:
    """KL(p ‖ q) over the last axis; weights below 1e-30 count as 1e-30."""
    ratio = np.log(np.maximum(p, 1e-30)) - np.log(np.maximum(q, 1e-30))
    return np.asarray((p * ratio).sum(-1))


# ---------------------------------------------------------------------- the operation


@contextmanager
def operated(reader: Reader, weights: Mapping[Place, Float], hidden: bool) -> Iterator[None]:
    """Inside, these heads of the model compute their logits with other weights.

    hidden: whether the weights act on hidden states with a 1 appended, or on the head's own queries
    and keys (see `Head.space`).
    """
    import torch

    layers = _layers_in_turn(reader)

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        current = next(layers)
        by_head = {head: W for (layer, head), W in weights.items() if layer == current}
        if not by_head:
            return eager_attention(module, query, key, value, mask, **options), None
        groups = query.shape[1] // key.shape[1]
        keys, values = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        scaling = options.get("scaling") or query.shape[-1] ** -0.5
        logits = scaling * query @ keys.transpose(2, 3)
        for head, W in by_head.items():
            x = z = states.get(id(module))
            if not hidden:
                x, z = keys[:, head], query[:, head]
            logits[:, head] = _logits(x, torch.as_tensor(W, dtype=query.dtype), z, hidden)
        offsets = mask_rows(mask, slice(0, query.shape[2]))
        attention = (logits if offsets is None else logits + offsets).softmax(-1)
        return (attention @ values).transpose(1, 2).contiguous(), attention

    with hidden_states(reader.model) as states, attention_replaced(reader.model, attend):
        yield


@contextmanager
def silenced(reader: Reader, places: Iterable[Place]) -> Iterator[None]:
    """Inside, the outputs of these heads of the model are zero."""
    layers, silent = _layers_in_turn(reader), set(places)

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        current = next(layers)
        out = eager_attention(module, query, key, value, mask, **options)
        out[:, :, [head for layer, head in silent if layer == current]] = 0
        return out, None

    with attention_replaced(reader.model, attend):
        yield


def _layers_in_turn(reader: Reader) -> Iterator[int]:
    """The layer of every call of the attention function: each pass calls it once per layer, in order."""
    return cycle(range(reader.model.config.num_hidden_layers))


def _logits(x: Any, W: Any, z: Any, hidden: bool) -> Any:
    """zᵀ Wᵀ x for every pair of query and token (n, T, T)."""
    if not hidden:
        return z @ W.T @ x.transpose(1, 2)
    keys = x @ W[:-1] + W[-1]  # the appended 1 of the token picks the last row
    return (z @ keys[..., :-1].transpose(1, 2)) + keys[..., -1][:, None, :]


# ---------------------------------------------------------------------- what changed


def output(reader: Reader, texts: Texts) -> Float:
    """The model's output: pooled states (n, c), or log-probabilities of the next token (k, vocabulary)."""
    import torch

    outputs = []
    with torch.no_grad():
        for batch in texts.batches():
            ids, mask = torch.as_tensor(batch.ids), torch.as_tensor(batch.mask.astype(int))
            out = reader.model(input_ids=ids, attention_mask=mask)
            if reader.generates:
                outputs.append(out.logits[mask.bool()].log_softmax(-1))
            else:
                weight = mask[..., None] / mask.sum(1)[:, None, None]
                outputs.append((out.last_hidden_state * weight).sum(1))
    return np.asarray(torch.cat(outputs).numpy())


def difference(reader: Reader, reference: Float, changed: Float) -> float:
    """Mean KL of predictions, or 1 − mean cosine of pooled states."""
    if reader.generates:
        return float((np.exp(reference) * (reference - changed)).sum(-1).mean())
    size = np.linalg.norm(reference, axis=-1) * np.linalg.norm(changed, axis=-1)
    return float(1 - ((reference * changed).sum(-1) / size).mean())


def change(reader: Reader, texts: Texts, layer: LayerRecord, head: int, W: Float, reference: Float) -> Change:
    """What changes on these texts when one head gets the weight W.

    layer: the record of the head's layer on these texts; reference: the unchanged model's `output`.
    Selections and attention are computed from the inputs of the unchanged model, so that they show the
    change of this head alone.
    """
    hidden = layer.hidden is not None
    retained, confident, divergences = [], [], []
    at = layer.at(head)
    for text in np.unique(at[0]):  # one text at a time, because the queries of all texts would not fit
        problem = layer.head(head, at[:, at[0] == text])
        logits = replace(problem, W=W).logits
        retained.append(logits.argmax(-1) == problem.attention.argmax(-1))
        confident.append(problem.attention.max(-1) > 0.5)
        divergences.append(divergence(problem.attention, softmax(logits, axis=-1)))
    is_retained, is_confident = np.concatenate(retained), np.concatenate(confident)
    with operated(reader, {(layer.layer, head): W}, hidden):
        output_change = difference(reader, reference, output(reader, texts))
    confident_share = float(is_retained[is_confident].mean()) if is_confident.any() else float("nan")
    mean_divergence = float(np.concatenate(divergences).mean())
    return Change(float(is_retained.mean()), confident_share, mean_divergence, output_change)


def ablation(
    reader: Reader, texts: Texts, places: Iterable[Place], on_head: Callable[[], None] = lambda: None
) -> dict[Place, float]:
    """How far the model's output moves when one head's output is set to zero, for every head by itself.

    For a language model the mean KL of its predictions in nats, for an encoder 1 − mean cosine of its
    mean-pooled states. Costs one forward pass of the texts per head; `on_head` is called after each.
    """
    with silenced(reader, []):  # the same attention function as below, because others round differently
        reference = output(reader, texts)
    distances = dict[Place, float]()
    for place in places:
        with silenced(reader, [place]):
            distances[place] = difference(reader, reference, output(reader, texts))
        on_head()
    return distances


def layer_of(reader: Reader, texts: Texts, layer: int) -> LayerRecord:
    """The record of one layer."""
    return next(iter(record(reader, texts, [layer])))
