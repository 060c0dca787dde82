"""What every query of softmax attention selects, in memory that does not grow as queries × keys.

Keys are read in blocks. The sums of a query are relative to its winning key, so that nothing cancels once
softmax has saturated: with r_t = logit_t − largest and sums over the losing keys only,

    E = Σ e^{r_t},    F = Σ r_t e^{r_t},    G = Σ e^{2 r_t}
    logsumexp = largest + log(1 + E),    entropy = log(1 + E) − F/(1 + E),    1/Σs² = (1 + E)²/(1 + G).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

BLOCK = 2**20
"""Logits that the computation in plain torch holds at once."""

KEYS = 1_024
"""Keys of one of its blocks."""


@dataclass(frozen=True)
class Logits:
    """scale · query · key, and which keys count; the fields are the arguments of `attention_statistics`.

    query (batch, heads, t, d), key (batch, groups, s, d), mask broadcasts to (batch, heads, t, s).
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None
    scale: float
    causal: bool = False
    window: int | None = None
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        query, key = self.query, self.key
        for name, array in (("query", query), ("key", key)):
            if not isinstance(array, Tensor):
                kind = f"{type(array).__module__}.{type(array).__name__}"
                raise TypeError(f"{name} is {kind}. Pass a tensor of torch: torch.as_tensor({name}).")
        shapes = f"query {tuple(query.shape)} and key {tuple(key.shape)}"
        if query.ndim != 4 or key.ndim != 4 or query.shape[::3] != key.shape[::3]:
            raise ValueError(f"{shapes}: expected (batch, heads, t, d) and (batch, groups, s, d).")
        if not query.is_floating_point() or query.dtype != key.dtype or query.device != key.device:
            types = f"query is {query.dtype} on {query.device}, key {key.dtype} on {key.device}"
            raise ValueError(f"{types}. Pass both in one floating type on one device.")
        if 0 in key.shape:
            raise ValueError(f"{shapes}: there is no key. Pass at least one.")
        if query.shape[1] % key.shape[1]:
            problem = f"{query.shape[1]} heads cannot share {key.shape[1]} groups of keys evenly"
            raise ValueError(
                f"{shapes}: {problem}. Pass so many heads that they are a multiple of the groups."
            )
        if self.window is not None and self.window < 1:
            raise ValueError(
                f"window is {self.window}. Pass the number of keys that a query sees, at least 1."
            )
        if self.soft_cap is not None and not self.soft_cap > 0:
            raise ValueError(f"soft_cap is {self.soft_cap}. Pass a positive number.")
        self.broadcasts(self.mask, "mask")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, t, _ = self.query.shape
        return batch, heads, t, self.key.shape[2]

    @property
    def allowed(self) -> Tensor | None:
        """The mask as booleans, without the numbers that it adds."""
        return self.mask if self.mask is None or self.mask.dtype == torch.bool else self.mask > -torch.inf

    @property
    def wide(self) -> torch.dtype:
        """The type of the computation."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    def broadcasts(self, mask: Tensor | None, name: str) -> None:
        """Refuse a mask that does not broadcast to the logits."""
        if mask is None:
            return
        axes = zip(reversed(mask.shape), reversed(self.shape), strict=False)
        if mask.ndim > 4 or not all(size in (1, length) for size, length in axes):
            raise ValueError(
                f"{name} has shape {tuple(mask.shape)}, which does not broadcast to {self.shape}."
            )

    def visible_keys(self, queries: slice) -> tuple[int, int]:
        """The keys, from and up to, that some query of a block may see."""
        _, _, t, s = self.shape
        low, high = 0, s
        if self.causal:
            high = queries.stop + s - t
        elif self.window is not None:
            high = queries.stop + s - t + self.window - 1
        if self.window is not None:
            low = queries.start + s - t - self.window + 1
        low = min(max(low, 0), s - 1)
        return low, min(max(high, low + 1), s)

    def block(self, queries: slice, keys: slice) -> Tensor:
        """Logits of some queries and keys (batch, heads, queries, keys), −∞ where a key does not count."""
        q = self.query[:, :, queries].to(self.wide).unflatten(1, (self.key.shape[1], -1))
        k = self.key[:, :, None, keys].to(self.wide)
        logits: Tensor = ((self.scale * q) @ k.mT).flatten(1, 2)
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        if self.mask is not None:
            mask = mask_block(self.mask, queries, keys)
            if mask.dtype == torch.bool:
                logits = logits.masked_fill(~mask, -torch.inf)
            else:
                logits = logits + mask.to(self.wide)
        return logits.masked_fill(self._hidden(queries, keys), -torch.inf)

    def _hidden(self, queries: slice, keys: slice) -> Any:
        """Keys ahead of their query or outside its window; the last query stands at the last key."""
        _, _, t, s = self.shape
        i, j = (torch.arange(x.start, x.stop, device=self.query.device) for x in (queries, keys))
        ahead = j - (i[:, None] + s - t)
        hidden = ahead > (0 if self.causal else s + t)
        return hidden if self.window is None else hidden | (ahead.abs() >= self.window)


class AttentionStatistics(NamedTuple):
    """One number per batch, head and query, each (batch, heads, queries).

    largest: the largest logit; where: its key (the first of equals, −1 where no key counts).
    margin: its lead over the next one, ∞ where there is no other key.
    logsumexp, entropy (nats), soft_sparsity 1/Σs²: of the softmax weights s over the keys that count.
    first: the share on key 0, which attention sinks take.
    selected: the share on the keys of a selection, where one was given.
    """

    largest: Tensor
    where: Tensor
    margin: Tensor
    logsumexp: Tensor
    entropy: Tensor
    soft_sparsity: Tensor
    first: Tensor
    selected: Tensor | None = None

    def __repr__(self) -> str:
        batch, heads, queries = self.largest.shape
        names = [name for name, value in zip(self._fields, self, strict=True) if value is not None]
        size = f"{heads} heads and {queries} queries of each of {batch} sequences"
        return f"AttentionStatistics({', '.join(names)} of {size})"


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
) -> AttentionStatistics:
    """Largest logit, margin, log-sum-exp, entropy and sparsity of attention, in memory linear in the keys.

        logit = scale · query · key, soft-capped to c · tanh(logit/c) where soft_cap is c

    query: (batch, heads, t, d), key: (batch, groups, s, d), heads a multiple of groups: head h reads the keys
        of group h // (heads/groups). float64 is computed in float64, all other types in float32.
    scale: 1/√d unless given. causal: no key ahead of its query; the last query stands at the last key, as in
        decoding with a cache.
    mask: True counts, or numbers that are added to the logits; broadcasts to (batch, heads, t, s) and is not
        expanded. window: a query at position i sees the keys j with |i − j| < window.
    selected: booleans that broadcast like a mask, for the share on them.

    Computed by a Triton kernel on a GPU, elsewhere in blocks by plain torch; to torch.compile it is one
    operator. The results have no gradient.
    """
    width = getattr(query, "shape", (1,))[-1]  # Logits refuses a query that is no tensor
    scale = width**-0.5 if scale is None else float(scale)
    return statistics_of(Logits(query, key, mask, scale, causal, window, soft_cap), selected)


def statistics_of(logits: Logits, selected: Tensor | None = None) -> AttentionStatistics:
    """`attention_statistics` of a `Logits`."""
    logits.broadcasts(selected, "selected")
    if selected is not None and selected.dtype != torch.bool:
        raise ValueError(f"selected is {selected.dtype}. Pass booleans, True on the selected keys.")
    options = logits.scale, logits.causal, logits.window, logits.soft_cap
    with torch.no_grad():
        values = torch.ops.attsvm.attention_statistics(
            logits.query, logits.key, logits.mask, selected, *options
        )
    return AttentionStatistics(*(values[:-1] if selected is None else values))


def block_statistics(logits: Tensor, selected: Tensor) -> AttentionStatistics:
    """The same of a block of logits with all of its keys (batch, heads, queries, s), −∞ where none counts."""
    first = logits[..., 0].clone()
    return AttentionStatistics(*_statistics(_block_sums(logits.clone(), selected, 0), first))


class WinnerSums(NamedTuple):
    """The winner among some keys, and sums relative to it, each (batch, heads, queries)."""

    largest: Tensor  # −∞ where no key counts
    where: Tensor
    second: Tensor
    E: Tensor
    F: Tensor
    G: Tensor
    selected: Tensor  # Σ e^{r_t} over the selected keys, the winner included


# ---------------------------------------------------------------------- details


def _operator(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    selected: Tensor | None,
    scale: float,
    causal: bool,
    window: int | None,
    soft_cap: float | None,
) -> tuple[Tensor, ...]:
    logits = Logits(query, key, mask, scale, causal, window, soft_cap)
    kernel = _kernel(query)
    sums = WinnerSums(*kernel.winner_sums(logits, selected)) if kernel else _winner_sums(logits, selected)
    return _statistics(sums, _first_key_logits(logits))


def _statistics(sums: WinnerSums, first: Tensor) -> tuple[Tensor, ...]:
    """The fields of `AttentionStatistics` from sums and the logits of key 0."""
    total, log_total = 1 + sums.E, torch.log1p(sums.E)
    any_key = sums.largest > -torch.inf
    return (
        sums.largest,
        torch.where(any_key, sums.where, -1),
        torch.where(sums.second > -torch.inf, sums.largest - sums.second, torch.inf),
        sums.largest + log_total,
        log_total - sums.F / total,
        torch.where(any_key, total**2 / (1 + sums.G), 0),
        torch.where(any_key, torch.exp(first - torch.where(any_key, sums.largest, 0)) / total, 0),
        sums.selected / total,
    )


def _shapes(query, key, mask, selected, scale, causal, window, soft_cap):  # type: ignore[no-untyped-def]
    number = query.new_empty(query.shape[:3], dtype=Logits(query, key, None, scale).wide)
    return number, number.long(), *(torch.empty_like(number) for _ in range(6))


def _first_key_logits(logits: Logits) -> Tensor:
    """The logits of key 0, in blocks of queries, because each block is converted to a wider type."""
    batch, heads, t, _ = logits.shape
    length = max(1, 16 * BLOCK // max(1, batch * heads * logits.query.shape[-1]))
    starts = range(0, max(t, 1), length)
    blocks = [logits.block(slice(i, min(i + length, t)), slice(0, 1))[..., 0] for i in starts]
    return torch.cat(blocks, -1)


def _kernel(query: Tensor) -> Any:
    """The module of the kernel, where there are a GPU and Triton, and the kernel takes the type and width."""
    if not query.is_cuda or query.dtype == torch.float64 or query.shape[-1] > 256:
        return None
    try:
        from attsvm.torch import statistics_kernel
    except ImportError:
        return None
    return statistics_kernel


def _winner_sums(logits: Logits, selected: Tensor | None) -> WinnerSums:
    """The sums of all queries, block by block."""
    batch, heads, t, s = logits.shape
    length = max(1, BLOCK // max(1, batch * heads * min(s, KEYS)))
    by_queries = []
    for i in range(0, t, length):
        queries = slice(i, min(i + length, t))
        low, high = logits.visible_keys(queries)
        sums = None
        for j in range(low, high, KEYS):
            keys = slice(j, min(j + KEYS, high))
            block_selected = None if selected is None else mask_block(selected, queries, keys)
            block_sums = _block_sums(logits.block(queries, keys), block_selected, j)
            sums = block_sums if sums is None else _merged(sums, block_sums)
        by_queries.append(sums)
    if not by_queries:
        by_queries = [_block_sums(logits.block(slice(0, 0), slice(0, 1)), None, 0)]
    return WinnerSums(*(torch.cat(x, -1) for x in zip(*by_queries, strict=True)))


def _block_sums(logits: Tensor, selected: Tensor | None, start: int) -> WinnerSums:
    """The sums of one block of keys, of which the first is key `start`; the logits are overwritten."""
    largest, where = logits.max(-1)
    any_key, winner = largest > -torch.inf, where[..., None]
    losing = logits.scatter_(-1, winner, -torch.inf)
    second = losing.amax(-1)
    relative = losing.sub_(torch.where(any_key, largest, 0)[..., None])
    weights = relative.exp()
    selected_sum = torch.zeros_like(largest)
    if selected is not None:
        with_winner = weights.scatter(-1, winner, any_key[..., None].to(weights))
        selected_sum = with_winner.masked_fill_(~selected, 0).sum(-1)
    F = relative.masked_fill_(relative == -torch.inf, 0).mul_(weights).sum(-1)
    E, G = weights.sum(-1), weights.square_().sum(-1)
    return WinnerSums(largest, where + start, second, E, F, G, selected_sum)


def _merged(a: WinnerSums, b: WinnerSums) -> WinnerSums:
    """The sums of two blocks of keys; of equal logits the one in the earlier block, a, wins."""
    a_wins = a.largest >= b.largest
    winner, loser = (
        WinnerSums(*(torch.where(order, x, y) for x, y in zip(a, b, strict=True)))
        for order in (a_wins, ~a_wins)
    )
    any_key = loser.largest > -torch.inf
    gap = torch.where(any_key, loser.largest - winner.largest, 0)
    share = torch.where(any_key, gap.exp(), 0)
    return WinnerSums(
        winner.largest,
        winner.where,
        torch.maximum(winner.second, loser.largest),
        winner.E + share * (1 + loser.E),
        winner.F + share * (loser.F + gap * (1 + loser.E)),
        winner.G + share**2 * (1 + loser.G),
        winner.selected + share * loser.selected,
    )


def mask_block(mask: Tensor, queries: slice, keys: slice) -> Tensor:
    """A mask's entries of some queries and keys; axes of length one stay."""
    mask = mask[(None,) * (4 - mask.ndim)]
    axes = zip((queries, keys), mask.shape[2:], strict=True)
    queries, keys = (block if size > 1 else slice(None) for block, size in axes)
    return mask[:, :, queries, keys]


# One operator, because torch.compile would unroll the loops over blocks.
_NAME = "attsvm::attention_statistics"
_TENSORS = "Tensor query, Tensor key, Tensor? mask, Tensor? selected"
_OPTIONS = "float scale, bool causal, int? window, float? soft_cap"
torch.library.define(_NAME, f"({_TENSORS}, {_OPTIONS}) -> ({', '.join(8 * ['Tensor'])})")
torch.library.impl(_NAME, "CompositeExplicitAutograd", _operator)
torch.library.register_fake(_NAME, _shapes)
