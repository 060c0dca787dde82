"""Running scores of growing texts: probes as one product, the softmax so far, and which tokens count.

Nothing here knows a model: `watch.py` hands in the inputs and the states of its passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attsvm.torch.probe import Probe, SoftmaxState, by_place

MAX_PENDING, MAX_ENTRIES = 256, 2**22
"""At most so many tokens of each sequence, and so many entries of their states, are read at once."""

ENDED = 2**40
"""Subtracted from the number of a text's tokens once the text has ended, so that no later token counts."""


NO_TOKEN = "Pass at least one each; a text that is empty may begin with the tokenizer's bos_token."


class Panel(nn.Module):
    """Probes on the same tokens as columns of one product: tokens (n, t, d) → logits and values (n, t, 2, H).

    A probe of h prompts and k classes has h·k columns. Its scores are sums of these columns after the
    softmax, member (H, K), plus an intercept (K,). The first probe's centre (d,) is subtracted before.
    slopes (H,): what a logit gets from one token to the next, where a head reads the last token.
    """

    centre: Tensor
    columns: Tensor

    def __init__(self, probes: Sequence[Probe]) -> None:
        super().__init__()
        self.maps, centre = probes[0].maps, probes[0].centre.double()
        columns, intercepts, members, slopes = [], [], [], []
        for probe in probes:
            value_map = probe.head.detach().double()
            _, h, k = value_map.shape
            prompts = probe.prompts.detach()[:, :, None].expand_as(value_map)
            columns.append(torch.stack([prompts, value_map], 1).flatten(2))
            shift = torch.einsum("d,dhk->k", centre - probe.centre.double(), value_map)
            intercepts.append(probe.intercept.detach() + shift)
            members.append(torch.eye(k, device=value_map.device).repeat(h, 1))
            slopes.append(probe.slopes.repeat_interleave(k))
        self.register_buffer("centre", centre.float())
        self.register_buffer("columns", torch.cat(columns, 2).flatten(1).float())
        self.member, self.intercept = torch.block_diag(*members).double(), torch.cat(intercepts)
        self.slopes = torch.cat(slopes).double()

    def forward(self, tokens: Tensor) -> Tensor:
        if len(self.maps):
            tokens = torch.cat([feature_map(tokens) for feature_map in self.maps], -1)
        x = (tokens - self.centre).to(self.centre.dtype)  # half precision minus float32 is float32 already
        return (x @ self.columns).unflatten(-1, (2, -1))


class LayerProbes:
    """The probes on one layer of a decoder, and the tokens that they have not read yet.

    The products of a block of tokens, such as a prompt, are computed at once. A token that follows is only
    copied, which is one launch on a GPU: hundreds are read together in as many launches as one.
    """

    def __init__(self, probes: Any) -> None:
        self.single = not isinstance(probes, Mapping)
        by_name = {"": probes} if self.single else dict(probes)
        if not by_name:
            raise ValueError("a layer has no probes. Pass a probe, or {name: probe}.")
        modules = {name: _as_module(probe) for name, probe in by_name.items()}
        widths = {name: module.width for name, module in modules.items()}
        if len(set(widths.values())) > 1:
            raise ValueError(f"probes of one layer have different widths: {widths}. Pass one width.")
        self.width = next(iter(widths.values()))
        plain = {name: module for name, module in modules.items() if not len(module.maps)}
        mapped = {name: module for name, module in modules.items() if len(module.maps)}
        groups = ([[*plain.values()]] if plain else []) + [[module] for module in mapped.values()]
        self.panels = [Panel(group) for group in groups]
        # In the order of the columns: probes with feature maps come last.
        self.classes = {name: module.head.shape[2] for name, module in (plain | mapped).items()}
        self.names = list(by_name)
        self.pending: list[Tensor] = []

    def check_width(self, width: int | None, layer: str) -> None:
        """Refuse states of another width than that of the probes; None where the width is not known yet."""
        if width not in (None, self.width):
            raise ValueError(
                f"{layer} has states of {width} features, its probe was fitted on {self.width}. "
                "Fit it on states of this model: heads.activations."
            )

    def add(self, states: Tensor, block: bool) -> None:
        """Keep a block (n, t, d), or the next token of each sequence (n, 1, d), until it is read."""
        if not block:
            self.pending.append((states.detach() if states.requires_grad else states).clone())
            return
        with torch.no_grad(), torch.autocast(states.device.type, enabled=False):
            self.pending.append(self.products(states))

    def pending_products(self, passes: int, block: bool) -> Tensor:
        """Logits and values of the first pending passes."""
        return self.pending[0] if block else self.products(concatenated(self.pending[:passes], 1))

    def products(self, states: Tensor) -> Tensor:
        """Logits and values of states (n, t, d), all probes side by side: (n, t, 2, H)."""
        n, t, width = states.shape
        self.check_width(width, "a layer")
        if self.panels[0].centre.device != states.device:
            for panel in self.panels:
                panel.to(states.device)
        length = max(1, MAX_ENTRIES // (n * width))
        blocks = states.split(length, 1) if t > length else [states]
        return concatenated(
            [concatenated([panel(block) for panel in self.panels], -1) for block in blocks], 1
        )


class RunningScores:
    """Scores of n growing sequences from H columns of logits and values.

        scores = mean member + intercept

    member (H, K), intercept (K,): K scores as sums of columns. slopes (H,): what a logit gets from one token
    to the next.
    """

    def __init__(
        self, member: Tensor, intercept: Tensor, n: int, device: torch.device, slopes: Tensor | None = None
    ) -> None:
        self.state = SoftmaxState.empty(n, member.shape[:1], member.shape[:1], device)
        dtype = self.state.total.dtype
        self.member, self.intercept = (x.to(device, dtype) for x in (member, intercept))
        self.slopes = None if slopes is None or not slopes.any() else slopes.to(device, dtype)
        self.one_column_each = len(member) == len(intercept)
        self.no_token = torch.tensor([[-torch.inf], [0.0]], dtype=dtype, device=device)
        self.scores: list[Tensor] = []

    def read(self, products: Tensor, counts: Tensor, every_token: bool) -> None:
        """Read more tokens: their products (n, t, 2, H), and which of the tokens count (n, t).

        every_token: append a score after every token. Else append one score, after the last token.
        """
        logits, values = torch.where(counts[..., None, None], products, self.no_token).unbind(2)
        before = self.state
        if self.slopes is not None:
            logits, before = by_place(logits, self.slopes), before.moved(counts.shape[1], self.slopes)
        after = before.extended(logits, values, every_token)
        mean = after.mean if self.one_column_each else after.mean @ self.member
        scores = (mean + self.intercept).float()
        # The state changes only now: a read that fails for want of memory can be tried again.
        self.state = SoftmaxState(after.total[:, -1:], after.mean[:, -1:])
        self.scores.append(scores)

    def recent(self, passes: int | None) -> Tensor:
        """Scores (n, passes, K) after the last so many passes; None: after all."""
        if not self.scores:
            raise RuntimeError("the model has not run since the watch began. Call it, or generate, first.")
        missing, start = passes, 0
        if missing is not None:
            start = len(self.scores)
            while missing > 0 and start:
                start -= 1
                missing -= self.scores[start].shape[1]
        scores = concatenated(self.scores[start:], 1)
        return scores if passes is None else scores[:, -passes:]


class DecoderPass(NamedTuple):
    """The inputs of one pass of a decoder: t tokens of each of n texts, after `cached` tokens.

    ids (n, t): None where the decoder is given embeddings. mask (n, cached + t): 0 on padding.
    """

    n: int
    t: int
    device: torch.device
    ids: Tensor | None
    mask: Tensor | None
    cached: int


@dataclass
class PendingPasses:
    """Passes that the probes have not read: one over a block of tokens, or some of one token each.

    begun: how many; the last one may break off. t, mask: its tokens and its mask.
    generated: the tokens (n, 1) of each pass, where a token can end a text.
    """

    begun: int = 0
    t: int = 1
    block: bool = False
    mask: Tensor | None = None
    generated: list[Tensor] = field(default_factory=list)


class TokenCounts(NamedTuple):
    """Which of some tokens count (n, t), and how many tokens of each text are read after them (n, 1)."""

    counts: Tensor
    n_read: Tensor


class ReadTokens(NamedTuple):
    """The products of some tokens (n, t, 2, H), and which of the tokens counted (n, t)."""

    products: Tensor
    counts: Tensor


class TextReader:
    """Reads the n texts of a batch pass by pass, and keeps their running scores.

    A block of tokens (a prompt, or an addition to it) is read by itself. Passes of one token each wait, and
    are read together.
    layers: in the order of the score columns; last: the one that a pass reaches last.
    skip: so many first tokens of each text do not count.
    """

    def __init__(self, layers: Sequence[LayerProbes], last: LayerProbes, skip: int) -> None:
        self.layers, self.last_layer, self.skip = layers, last, skip
        panels = [panel for layer in layers for panel in layer.panels]
        self.member = torch.block_diag(*(panel.member for panel in panels))
        self.intercept = torch.cat([panel.intercept for panel in panels])
        self.slopes = torch.cat([panel.slopes for panel in panels])
        self.blocks_read = 0
        self.start(0, torch.device("cpu"))

    def start(self, n: int, device: torch.device) -> None:
        """Before the first pass over n new texts."""
        self.n, self.length = n, 0
        entries = max(1, n * max(layer.width for layer in self.layers))
        self.pending_limit = max(1, min(MAX_PENDING, MAX_ENTRIES // entries))
        self.answer: list[ReadTokens] = []  # tokens read since the last block
        self.running = RunningScores(self.member, self.intercept, n, device, self.slopes)
        self.n_read = torch.zeros((n, 1), dtype=torch.long, device=device)
        self._clear_pending()

    def begin(self, new: DecoderPass, block_next: bool, eos_token_id: Any) -> None:
        """Before a pass: read what is pending if this pass cannot wait with it.

        block_next: this pass reads a block even if it is one token. eos_token_id: what ends a text from a
        block on.
        """
        if len(self.last_layer.pending) < self.pending.begun:  # the pass before broke off
            self.read_pending()
        self._start_or_continue(new)
        block = new.cached == 0 or new.t > 1 or block_next
        if self.pending.begun and (block or self.pending.block or not self._can_wait(new.mask)):
            self.read_pending()
        if block:
            end_ids = [] if eos_token_id is None else eos_token_id
            self.end_ids = torch.as_tensor(end_ids, dtype=torch.long, device=new.device).flatten()
            self.blocks_read, self.can_end = self.blocks_read + 1, len(self.end_ids) > 0
        pending = self.pending
        pending.begun, pending.t = pending.begun + 1, new.t
        pending.block, pending.mask = block, new.mask
        self.length += new.t
        if self.can_end and not block:
            ids = torch.full((new.n, 1), -1, device=new.device) if new.ids is None else new.ids.clone()
            pending.generated.append(ids)

    def read_pending(self) -> None:
        """Let the probes read what is pending; a pass that broke off does not count."""
        passes, pending = len(self.last_layer.pending), self.pending
        if passes:
            device = self.n_read.device
            with torch.no_grad(), torch.autocast(device.type, enabled=False):
                of_layers = [layer.pending_products(passes, pending.block) for layer in self.layers]
                products = concatenated([x.to(device) for x in of_layers], -1)
                if pending.block:
                    self._read_block(products)
                else:
                    self._read_tokens(products, passes)
        if passes < pending.begun:
            self.length -= pending.t
        self._clear_pending()

    def end(self, rows: Tensor) -> None:
        """No further token of these texts counts: booleans (n,)."""
        self.n_read = self.n_read.masked_fill(rows[:, None], -ENDED)

    def _clear_pending(self) -> None:
        self.pending = PendingPasses()
        for layer in self.layers:
            layer.pending = []

    def _start_or_continue(self, new: DecoderPass) -> None:
        """Start new texts where the cache is empty; else refuse a cache that is not of the texts so far."""
        if new.cached == 0:
            if new.mask is not None and not bool(new.mask.any(1).all()):
                empty = int(new.mask.any(1).int().argmin())
                raise ValueError(f"the mask leaves no token of text {empty}. {NO_TOKEN}")
            self.start(new.n, new.device)
        elif new.cached != self.length or new.n != self.n:
            raise RuntimeError(
                f"the model goes on after {new.cached} tokens of {new.n} sequences, the watch has seen "
                f"{self.length} of {self.n}. Begin before the first pass; keep the rows."
            )

    def _can_wait(self, mask: Tensor | None) -> bool:
        """Whether another token can be pending; the last mask must cover all pending tokens."""
        pending = self.pending
        if mask is None or pending.mask is None:
            return mask is pending.mask and pending.begun < self.pending_limit
        return pending.begun < min(self.pending_limit, mask.shape[1])

    def _read_tokens(self, products: Tensor, passes: int) -> None:
        """Read generated tokens. Those of a text that has ended do not count until another turn begins."""
        mask, generated = self.pending.mask, self.pending.generated
        real = None if mask is None else mask[:, -self.pending.begun :][:, :passes]
        ids = concatenated(generated[:passes], 1) if generated else None
        counts, n_read = counted_tokens(self.n_read, passes, real, ids, self.end_ids, self.skip)
        self.running.read(products, counts, True)
        self.n_read = n_read
        self.answer.append(ReadTokens(products, counts))

    def _read_block(self, products: Tensor) -> None:
        """Read a prompt, or an addition to it: a text that had ended goes on.

        Tokens of the last answer that did not count then count now where the mask has them.
        """
        products = concatenated([*(tokens.products for tokens in self.answer), products], 1)
        count, mask = products.shape[1], self.pending.mask
        real = None if mask is None else mask[:, -count:]
        n_read = torch.full_like(self.n_read, self.length - count)
        n_read = n_read if mask is None else mask[:, :-count].sum(1, True)
        counts, n_read = counted_tokens(n_read, count, real, None, self.end_ids, self.skip)
        if self.answer:
            counted = concatenated([tokens.counts for tokens in self.answer], 1)
            counts[:, : counted.shape[1]] &= ~counted
        self.running.read(products, counts, False)
        self.n_read, self.answer = n_read, []


def counted_tokens(
    n_read: Tensor, count: int, real: Tensor | None, generated: Tensor | None, end_ids: Tensor, skip: int
) -> TokenCounts:
    """Which of the next `count` tokens of texts count, of which n_read (n, 1) tokens are read.

    Not counted are padding (real (n, count) is 0 there), the first `skip` tokens of a text, and all tokens
    from its end on: generated (n, count) are ids that the model chose, end_ids those that end a text.
    """
    real = None if real is None else real.bool()
    number = n_read + (torch.arange(1, count + 1, device=n_read.device) if real is None else real.cumsum(1))
    if generated is not None:
        number = torch.add(number, torch.isin(generated, end_ids).cumsum(1), alpha=-ENDED)
    counts = number > skip
    return TokenCounts(counts if real is None else counts & real, number[:, -1:])


def concatenated(tensors: list[Tensor], axis: int) -> Tensor:
    """The tensors side by side; a single tensor is returned uncopied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, axis)


# ---------------------------------------------------------------------- details


def _as_module(probe: Any) -> Probe:
    """The probe as a module. A module of the caller is copied, because the watch changes its device."""
    probe_type = probe if isinstance(probe, type) else type(probe)
    convert = None if isinstance(probe, type) else getattr(probe, "to_torch", None)
    module = deepcopy(probe) if isinstance(probe, Probe) else convert and convert()
    if not isinstance(module, Probe):
        raise TypeError(f"a probe is {probe_type.__name__}. Pass a fitted AttentionProbe or its to_torch().")
    return module.cpu()
