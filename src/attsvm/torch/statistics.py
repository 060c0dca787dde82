"""What every query of softmax attention selects, without ever holding queries × keys.

Keys are read in blocks. What is kept of a query is relative to its winning key, so that nothing cancels once
softmax has saturated: with r_t = logit_t − largest and sums over the losing keys only,

    E = Σ e^{r_t},    F = Σ r_t e^{r_t},    G = Σ e^{2 r_t}
    logsumexp = largest + log(1 + E),    entropy = log(1 + E) − F/(1 + E),    1/Σs² = (1 + E)²/(1 + G).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attsvm.torch.logits import Logits, part

BLOCK = 2**20
"""Logits that the plain path holds at once."""

KEYS = 1_024
"""Keys of one block of it."""


class AttentionStatistics(NamedTuple):
    """One number per batch, head and query, each (batch, heads, queries).

    largest: the largest logit; where: its key (the first of equals, −1 where no key counts).
    margin: its lead over the next one, ∞ where there is no other key.
    logsumexp, entropy (nats), soft_sparsity 1/Σs²: of the softmax weights s over the keys that count.
    first: the share on key 0, which attention sinks take.
    """

    largest: Tensor
    where: Tensor
    margin: Tensor
    logsumexp: Tensor
    entropy: Tensor
    soft_sparsity: Tensor
    first: Tensor


class SelectionStatistics(NamedTuple):
    """`AttentionStatistics` and, last, `selected`: the share on the keys of a selection."""

    largest: Tensor
    where: Tensor
    margin: Tensor
    logsumexp: Tensor
    entropy: Tensor
    soft_sparsity: Tensor
    first: Tensor
    selected: Tensor


def attention_statistics(
    query: Tensor,
    key: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    mask: Tensor | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    selected: Tensor | None = None,
) -> AttentionStatistics | SelectionStatistics:
    """Largest logit, margin, log-sum-exp, entropy and sparsity of attention, in memory linear in the keys.

        logit = scale · query · key, soft-capped to c · tanh(logit/c) where soft_cap is c

    query: (batch, heads, t, d), key: (batch, groups, s, d), heads a multiple of groups: head h reads the keys
        of group h // (heads/groups). float64 is computed in float64, all other types in float32.
    scale: 1/√d unless given. causal: no key ahead of its query; the last query stands at the last key, as in
        decoding with a cache.
    mask: True counts, or numbers that are added to the logits; broadcasts to (batch, heads, t, s) and is not
        expanded. window: a query at position i sees the keys j with |i − j| < window.
    selected: booleans that broadcast like a mask; their share comes last, as `selected`.

    A Triton kernel on a GPU, blocks in plain torch elsewhere; one operator, which torch.compile keeps whole.
    Gradients do not pass: these are measurements.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else float(scale)
    return statistics_of(Logits(query, key, mask, scale, causal, window, soft_cap), selected)


def statistics_of(
    logits: Logits, selected: Tensor | None = None
) -> AttentionStatistics | SelectionStatistics:
    """The same of logits that are described already."""
    logits.broadcasts(selected, "selected")
    if selected is not None and selected.dtype != torch.bool:
        raise ValueError(f"selected is {selected.dtype}. Pass booleans, True on the selected keys.")
    how = logits.scale, logits.causal, logits.window, logits.soft_cap
    with torch.no_grad():
        found = torch.ops.attsvm.attention_statistics(logits.query, logits.key, logits.mask, selected, *how)
    return AttentionStatistics(*found[:-1]) if selected is None else SelectionStatistics(*found)


class State(NamedTuple):
    """Of the keys seen so far, each (batch, heads, queries)."""

    largest: Tensor  # −∞ where none counts
    where: Tensor
    second: Tensor
    E: Tensor
    F: Tensor
    G: Tensor
    chosen: Tensor  # Σ e^{r_t} over the selected keys, the winner's included


# ---------------------------------------------------------------------- details


def _measured(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    selected: Tensor | None,
    scale: float,
    causal: bool,
    window: int | None,
    soft_cap: float | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    logits = Logits(query, key, mask, scale, causal, window, soft_cap)
    kernel = _kernel(query)
    state = State(*kernel.state(logits, selected)) if kernel else _state(logits, selected)
    first = _to_first_key(logits)
    total, grown = 1 + state.E, torch.log1p(state.E)
    some = state.largest > -torch.inf
    return (
        state.largest,
        torch.where(some, state.where, -1),
        torch.where(state.second > -torch.inf, state.largest - state.second, torch.inf),
        state.largest + grown,
        grown - state.F / total,
        torch.where(some, total**2 / (1 + state.G), 0),
        torch.where(some, torch.exp(first - torch.where(some, state.largest, 0)) / total, 0),
        state.chosen / total,
    )


def _shapes(query, key, mask, selected, scale, causal, window, soft_cap):  # type: ignore[no-untyped-def]
    number = query.new_empty(query.shape[:3], dtype=Logits(query, key, None, scale).wide)
    return number, number.long(), *(torch.empty_like(number) for _ in range(6))


def _to_first_key(logits: Logits) -> Tensor:
    """The logits of key 0, some queries at a time, because they are widened."""
    batch, heads, t, _ = logits.shape
    length = max(1, 16 * BLOCK // max(1, batch * heads * logits.query.shape[-1]))
    starts = range(0, max(t, 1), length)
    parts = [logits.block(slice(i, min(i + length, t)), slice(0, 1))[..., 0] for i in starts]
    return torch.cat(parts, -1)


def _kernel(query: Tensor) -> Any:
    """The kernel's file, where there are a GPU, Triton, and a type and width that it knows."""
    if not query.is_cuda or query.dtype == torch.float64 or query.shape[-1] > 256:
        return None
    try:
        from attsvm.torch import statistics_kernel
    except ImportError:
        return None
    return statistics_kernel


def _state(logits: Logits, selected: Tensor | None) -> State:
    batch, heads, t, s = logits.shape
    length = max(1, BLOCK // max(1, batch * heads * min(s, KEYS)))
    parts = []
    for i in range(0, t, length):
        own = slice(i, min(i + length, t))
        low, high = logits.reach(own)
        state = None
        for j in range(low, high, KEYS):
            others = slice(j, min(j + KEYS, high))
            chosen = None if selected is None else part(selected, own, others)
            here = _summary(logits.block(own, others), chosen, j)
            state = here if state is None else _merged(state, here)
        parts.append(state)
    if not parts:
        parts = [_summary(logits.block(slice(0, 0), slice(0, 1)), None, 0)]
    return State(*(torch.cat(x, -1) for x in zip(*parts, strict=True)))


def _summary(logits: Tensor, selected: Tensor | None, start: int) -> State:
    """One block's say; the logits are overwritten."""
    largest, where = logits.max(-1)
    some, winner = largest > -torch.inf, where[..., None]
    losing = logits.scatter_(-1, winner, -torch.inf)
    second = losing.amax(-1)
    relative = losing.sub_(torch.where(some, largest, 0)[..., None])
    weights = relative.exp()
    chosen = torch.zeros_like(largest)
    if selected is not None:
        every = weights.scatter(-1, winner, some[..., None].to(weights))
        chosen = every.masked_fill_(~selected, 0).sum(-1)
    F = relative.masked_fill_(relative == -torch.inf, 0).mul_(weights).sum(-1)
    return State(largest, where + start, second, weights.sum(-1), F, weights.square_().sum(-1), chosen)


def _merged(a: State, b: State) -> State:
    """What two blocks say together; of equal logits that of the earlier one, a, wins."""
    first = a.largest >= b.largest
    won, lost = (
        State(*(torch.where(way, x, y) for x, y in zip(a, b, strict=True))) for way in (first, ~first)
    )
    some = lost.largest > -torch.inf
    gap = torch.where(some, lost.largest - won.largest, 0)
    share = torch.where(some, gap.exp(), 0)
    return State(
        won.largest,
        won.where,
        torch.maximum(won.second, lost.largest),
        won.E + share * (1 + lost.E),
        won.F + share * (lost.F + gap * (1 + lost.E)),
        won.G + share**2 * (1 + lost.G),
        won.chosen + share * lost.chosen,
    )


# One operator for torch.compile, which would unroll the blocks otherwise.
_NAME = "attsvm::attention_statistics"
_ASKED = "Tensor query, Tensor key, Tensor? mask, Tensor? selected"
_HOW = "float scale, bool causal, int? window, float? soft_cap"
torch.library.define(_NAME, f"({_ASKED}, {_HOW}) -> ({', '.join(8 * ['Tensor'])})")
torch.library.impl(_NAME, "CompositeExplicitAutograd", _measured)
torch.library.register_fake(_NAME, _shapes)
