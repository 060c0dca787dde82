"""Head surgery: give a head another QK weight and see what its selections, attention and model do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.heads.blocks import attended, attending, rows
from attsvm.heads.extract import sample
from attsvm.heads.head import Head, Place, Space, softmax
from attsvm.heads.model import Reader, load
from attsvm.heads.projections import hidden_states
from attsvm.heads.record import LayerRecord, record
from attsvm.heads.texts import LENGTH, Texts
from attsvm.norms import Norm, as_norm
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
    """A head's other weight W (d, e), what it changes on the texts, and on held-out ones if there are any."""

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
        told = f"Replacement({self.layer}·{self.head}, rank {np.linalg.matrix_rank(self.W)}: {self.change}"
        return told + (f"; held out: {self.held_out})" if self.held_out else ")")


def replace_head(
    model: Any,
    texts: Sequence[str],
    layer: int,
    head: int,
    weight: Norm | int | Float,
    *,
    held_out: Sequence[str] | None = None,
    queries: int = 32,
    length: int = LENGTH,
    seed: int = 0,
) -> Replacement:
    """Give one head another weight and say what its selections, its attention and the model do then.

    weight: a norm, for the max-margin weight of the head's own selections in that norm; a rank, for the best
        approximation of its W of that rank; or the weight itself, (d, e) in the head's space (`Head.space`).
        The first two come at the scale that fits the head's attention best.
    queries: so many of the head's confident queries (attention above one half; all where none is) make the
        weight, drawn with the seed. held_out: other texts, on which it is tried too.
    """
    reader = load(model)
    seen = reader.tokenise(texts, length)
    count = reader.model.config.num_attention_heads
    if not 0 <= head < count:
        raise ValueError(f"head is {head} but the model's layers have heads 0 to {count - 1}.")
    record = layer_of(reader, seen, layer)
    at = record.at(head, 0.5)
    one = record.head(head, sample(at if at.size else record.at(head), queries, seed))
    W = _weight(one, weight)
    changed = change(reader, seen, record, head, W, output(reader, seen))
    other = None
    if held_out is not None:
        unseen = reader.tokenise(held_out, length)
        said = output(reader, unseen)
        other = change(reader, unseen, layer_of(reader, unseen, layer), head, W, said)
    return Replacement(reader, layer, head, one.space, W, changed, other)


def _weight(head: Head, weight: Norm | int | Float) -> Float:
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
    from attsvm.program.max_margin import max_margin  # heavy, and no part of reading a model

    return fitted(head, max_margin(head.tokens, head.selected, norm).W)


def fitted(head: Head, W: Float) -> Float:
    """c W with the c > 0 that minimises the mean KL(model's attention ‖ softmax(c xᵀ W z))."""
    from scipy.optimize import minimize_scalar

    tokens = head.tokens
    logits = np.matmul(tokens.keys, (tokens.queries @ W.T)[..., None])[..., 0]
    size = np.abs(np.where(tokens.mask, logits, 0.0)).max()

    def miss(log_scale: float) -> float:
        scaled = np.where(tokens.mask, np.exp(log_scale) * logits / size, -np.inf)
        return float(divergence(head.attention, softmax(scaled)).mean())

    found = minimize_scalar(miss, bounds=(-5.0, 12.0), method="bounded")
    return np.asarray(np.exp(found.x) / size * W)


def divergence(before: Float, after: Float) -> Float:
    """KL(before ‖ after) over the last axis; weights below 1e-30 count as 1e-30."""
    ratio = np.log(np.maximum(before, 1e-30)) - np.log(np.maximum(after, 1e-30))
    return np.asarray((before * ratio).sum(-1))


# ---------------------------------------------------------------------- the operation


@contextmanager
def operated(reader: Reader, weights: Mapping[Place, Float], hidden: bool) -> Iterator[None]:
    """Inside, these heads of the model compute their logits with other weights.

    hidden: whether the weights act on hidden states with a 1 appended, or on the head's own queries
    and keys (see `Head.space`).
    """
    import torch

    calls = [0]

    def attend(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        layer = calls[0] % reader.model.config.num_hidden_layers
        calls[0] += 1
        mine = {head: W for (at, head), W in weights.items() if at == layer}
        if not mine:
            return attended(module, query, key, value, mask, **options), None
        groups = query.shape[1] // key.shape[1]
        keys, values = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        scaling = options.get("scaling") or query.shape[-1] ** -0.5
        logits = scaling * query @ keys.transpose(2, 3)
        for head, W in mine.items():
            x = z = states.get(id(module))
            if not hidden:
                x, z = keys[:, head], query[:, head]
            logits[:, head] = _logits(x, torch.as_tensor(W, dtype=query.dtype), z, hidden)
        masked = rows(mask, slice(0, query.shape[2]))
        attention = (logits if masked is None else logits + masked).softmax(-1)
        return (attention @ values).transpose(1, 2).contiguous(), attention

    with hidden_states(reader.model) as states, attending(reader.model, attend):
        yield


def _logits(x: Any, W: Any, z: Any, hidden: bool) -> Any:
    """zᵀ Wᵀ x for every pair of query and token (n, T, T)."""
    if not hidden:
        return z @ W.T @ x.transpose(1, 2)
    keys = x @ W[:-1] + W[-1]  # the appended 1 of the token picks the last row
    return (z @ keys[..., :-1].transpose(1, 2)) + keys[..., -1][:, None, :]


# ---------------------------------------------------------------------- what changed


def output(reader: Reader, texts: Texts) -> Float:
    """What the model says: pooled states (n, c), or log-probabilities of the next token (k, vocabulary)."""
    import torch

    parts = []
    with torch.no_grad():
        for batch in texts.batches():
            ids, mask = (torch.as_tensor(x[batch]) for x in (texts.ids, texts.mask.astype(int)))
            said = reader.model(input_ids=ids, attention_mask=mask)
            if reader.generates:
                parts.append(said.logits[mask.bool()].log_softmax(-1))
            else:
                weight = mask[..., None] / mask.sum(1)[:, None, None]
                parts.append((said.last_hidden_state * weight).sum(1))
    return np.asarray(torch.cat(parts).numpy())


def difference(reader: Reader, before: Float, after: Float) -> float:
    """Mean KL of predictions, or 1 − mean cosine of pooled states."""
    if reader.generates:
        return float((np.exp(before) * (before - after)).sum(-1).mean())
    size = np.linalg.norm(before, axis=-1) * np.linalg.norm(after, axis=-1)
    return float(1 - ((before * after).sum(-1) / size).mean())


def change(reader: Reader, texts: Texts, layer: LayerRecord, head: int, W: Float, said: Float) -> Change:
    """What happens on these texts when one head gets the weight W.

    layer: the record of the head's layer on these texts; said: the untouched model's `output`.
    The head's own numbers are taken on its untouched inputs, so they are those of the head alone.
    """
    hidden = layer.hidden is not None
    kept, sure, divergences = [], [], []
    at = layer.at(head)
    for text in np.unique(at[0]):  # one text at a time: all queries of all texts would not fit
        one = layer.head(head, at[:, at[0] == text])
        logits = np.matmul(one.tokens.keys, (one.tokens.queries @ W.T)[..., None])[..., 0]
        logits = np.where(one.tokens.mask, logits, -np.inf)
        kept.append(logits.argmax(-1) == one.attention.argmax(-1))
        sure.append(one.attention.max(-1) > 0.5)
        divergences.append(divergence(one.attention, softmax(logits)))
    same, confident = np.concatenate(kept), np.concatenate(sure)
    with operated(reader, {(layer.layer, head): W}, hidden):
        moved = difference(reader, said, output(reader, texts))
    firm = float(same[confident].mean()) if confident.any() else float("nan")
    return Change(float(same.mean()), firm, float(np.concatenate(divergences).mean()), moved)


def layer_of(reader: Reader, texts: Texts, layer: int) -> LayerRecord:
    """The record of one layer."""
    return next(iter(record(reader, texts, [layer])))
