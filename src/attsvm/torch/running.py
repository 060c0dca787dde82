"""Running scores of growing sequences: each layer's probes as one product, and the softmax so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.torch.probe import Probe

MAX_PENDING, MAX_ENTRIES = 256, 2**22
"""At most so many tokens of each sequence, and so many entries of their states, are read at once."""

ENDED = 2**40
"""Subtracted from the number of a text's tokens once the text has ended, so that no later token counts."""


class Panel(nn.Module):
    """Probes on the same tokens as columns of one product: tokens (n, t, d) → logits and values (n, t, 2, H).

    A probe of h heads and k classes has h·k columns. Its scores are sums of these columns after the softmax,
    member (H, K), plus an intercept (K,). The first probe's centre (d,) is subtracted before the product.
    """

    centre: Tensor
    columns: Tensor

    def __init__(self, probes: Sequence[Probe]) -> None:
        super().__init__()
        self.maps, centre = probes[0].maps, probes[0].centre.double()
        columns, intercepts, members = [], [], []
        for probe in probes:
            head = probe.head.detach().double()
            _, h, k = head.shape
            prompts = probe.prompts.detach()[:, :, None].expand_as(head)
            columns.append(torch.stack([prompts, head], 1).flatten(2))
            shift = torch.einsum("d,dhk->k", centre - probe.centre.double(), head)
            intercepts.append(probe.intercept.detach() + shift)
            members.append(torch.eye(k, device=head.device).repeat(h, 1))
        self.register_buffer("centre", centre.float())
        self.register_buffer("columns", torch.cat(columns, 2).flatten(1).float())
        self.member, self.intercept = torch.block_diag(*members).double(), torch.cat(intercepts)

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
    """Scores of n growing sequences from H columns of logits l and values v.

        L = log Σ_t e^{l_t},   m = Σ_t e^{l_t − L} v_t,   scores = m member + intercept

    To a softmax all tokens read so far are one token of logit L and value m; before the first token, L is the
    smallest number of the type. member (H, K), intercept (K,): K scores as sums of columns.
    Computed in float64 where the device has it: L is rounded at every read, which may be at every token.
    """

    def __init__(self, member: Tensor, intercept: Tensor, n: int, device: torch.device) -> None:
        dtype = torch.float32 if device.type == "mps" else torch.float64
        self.member, self.intercept = (x.to(device, dtype) for x in (member, intercept))
        self.one_column_each = len(member) == len(intercept)
        self.no_token = torch.tensor([[-torch.inf], [0.0]], dtype=dtype, device=device)
        empty = self.no_token.clamp_min(torch.finfo(dtype).min).expand(n, 1, 2, len(member))
        self.total, self.mean = empty.unbind(2)  # L and m, (n, 1, H)
        self.scores: list[Tensor] = []

    def read(self, products: Tensor, counts: Tensor, every_token: bool) -> None:
        """Read more tokens: their products (n, t, 2, H), and which of the tokens count (n, t).

        every_token: append a score after every token. Else append one score, after the last token.
        """
        logits, values = torch.where(counts[..., None, None], products, self.no_token).unbind(2)
        if counts.shape[1] == 1:
            total = torch.logaddexp(self.total, logits)
            pooled = torch.lerp(self.mean, values, torch.sigmoid(logits - self.total))
        else:
            logits, values = torch.cat([self.total, logits], 1), torch.cat([self.mean, values], 1)
            total = logits.logcumsumexp(1)
            if every_token:
                pooled = _pooled_after_each(logits, values, total)
            else:
                pooled = (logits.softmax(1) * values).sum(1, True)
        scores = ((pooled if self.one_column_each else pooled @ self.member) + self.intercept).float()
        # The state changes only now: a read that fails for want of memory can be tried again.
        self.total, self.mean = total[:, -1:], pooled[:, -1:]
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


def counted_tokens(
    n_read: Tensor, count: int, real: Tensor | None, generated: Tensor | None, end_ids: Tensor, skip: int
) -> tuple[Tensor, Tensor]:
    """Which of the next tokens count (n, count), and how many tokens of each text are read then (n, 1).

    Not counted are padding (real (n, count) is 0 there), the first `skip` tokens of a text, and all tokens
    from its end on: generated (n, count) are ids that the model chose, end_ids those that end a text.
    """
    real = None if real is None else real.bool()
    number = n_read + (torch.arange(1, count + 1, device=n_read.device) if real is None else real.cumsum(1))
    if generated is not None:
        number = torch.add(number, torch.isin(generated, end_ids).cumsum(1), alpha=-ENDED)
    counts = number > skip
    return (counts if real is None else counts & real), number[:, -1:]


def pending_limit(n: int, width: int) -> int:
    """How many tokens of n sequences may be pending."""
    return max(1, min(MAX_PENDING, MAX_ENTRIES // (n * width)))


def concatenated(tensors: list[Tensor], axis: int) -> Tensor:
    """The tensors side by side; a single tensor is returned uncopied."""
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors, axis)


# ---------------------------------------------------------------------- details


def _pooled_after_each(logits: Tensor, values: Tensor, totals: Tensor) -> Tensor:
    """The pooled values after every token but the first, of t + 1 tokens.

    Sums are kept as logarithms, those of positive and of negative values apart, so that no sum loses digits
    to a later and larger logit.
    """
    log_sums = (logits + torch.stack([values, -values]).clamp_min(0).log()).logcumsumexp(2)
    positive, negative = (log_sums - totals).exp()
    return (positive - negative)[:, 1:]


def _as_module(probe: Any) -> Probe:
    """The probe as a module. A module of the caller is copied, because the watch changes its device."""
    probe_type = probe if isinstance(probe, type) else type(probe)
    convert = None if isinstance(probe, type) else getattr(probe, "to_torch", None)
    module = deepcopy(probe) if isinstance(probe, Probe) else convert and convert()
    if not isinstance(module, Probe):
        raise TypeError(f"a probe is {probe_type.__name__}. Pass a fitted AttentionProbe or its to_torch().")
    return module.cpu()
