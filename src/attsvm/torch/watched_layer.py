"""The probes on one layer of a decoder, and the tokens that they have not read yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.given import whole
from attsvm.query_key import BLOCKS, NORMS, named
from attsvm.torch.probe import Probe
from attsvm.torch.running import joined

HELD, NUMBERS = 256, 2**22
"""So many tokens, and so many numbers of theirs, are read at once."""


class Panel(nn.Module):
    """Probes on the same tokens as columns of one product: tokens (n, t, d) → logits and values (n, t, 2, H).

    A probe of h heads and k classes has h·k columns. Its scores are sums of them after the softmax,
    member (H, K), and an intercept (K,). centre (d,), the first one's, is subtracted before the product.
    """

    centre: Tensor
    columns: Tensor

    def __init__(self, probes: Sequence[Probe]) -> None:
        super().__init__()
        self.maps, centre = probes[0].maps, probes[0].centre.double()
        columns, bases, members = [], [], []
        for probe in probes:
            head = probe.head.detach().double()
            _, h, k = head.shape
            prompts = probe.prompts.detach()[:, :, None].expand_as(head)
            columns.append(torch.stack([prompts, head], 1).flatten(2))
            moved = torch.einsum("d,dhk->k", centre - probe.centre.double(), head)
            bases.append(probe.intercept.detach() + moved)
            members.append(torch.eye(k, device=head.device).repeat(h, 1))
        self.register_buffer("centre", centre.float())
        self.register_buffer("columns", torch.cat(columns, 2).flatten(1).float())
        self.member, self.intercept = torch.block_diag(*members).double(), torch.cat(bases)

    def forward(self, tokens: Tensor) -> Tensor:
        if len(self.maps):
            tokens = torch.cat([each(tokens) for each in self.maps], -1)
        x = (tokens - self.centre).to(self.centre.dtype)  # of a half type the difference is a float32 already
        return (x @ self.columns).unflatten(-1, (2, -1))


class Layer:
    """One layer's probes and what they have yet to read.

    Of a block, such as a prompt, the products are kept. A token that follows is only copied, which is one
    launch on a GPU: hundreds are read together in as many launches as one.
    """

    def __init__(self, given: Any) -> None:
        self.single = not isinstance(given, Mapping)
        named = {"": given} if self.single else dict(given)
        if not named:
            raise ValueError("a layer has no probes. Pass a probe, or {name: probe}.")
        modules = {name: _as_module(probe) for name, probe in named.items()}
        widths = {name: one.width for name, one in modules.items()}
        if len(set(widths.values())) > 1:
            raise ValueError(f"probes of one layer have different widths: {widths}. Pass one width.")
        self.width = next(iter(widths.values()))
        plain = {name: one for name, one in modules.items() if not len(one.maps)}
        mapped = {name: one for name, one in modules.items() if len(one.maps)}
        groups = ([[*plain.values()]] if plain else []) + [[one] for one in mapped.values()]
        self.panels = [Panel(group) for group in groups]
        self.classes = {name: one.head.shape[2] for name, one in (plain | mapped).items()}  # as columns lie
        self.names = list(named)
        self.held: list[Tensor] = []

    def take(self, states: Tensor, block: bool) -> None:
        """A block (n, t, d), or the next token of each sequence (n, 1, d)."""
        if not block:
            self.held.append((states.detach() if states.requires_grad else states).clone())
            return
        with torch.no_grad(), torch.autocast(states.device.type, enabled=False):
            self.held.append(self.products(states))

    def read(self, passes: int, block: bool) -> Tensor:
        """The products of what is held, of so many passes."""
        return self.held[0] if block else self.products(joined(self.held[:passes], 1))

    def products(self, states: Tensor) -> Tensor:
        """Logits and values of states (n, t, d), all probes side by side: (n, t, 2, H)."""
        n, t, width = states.shape
        if width != self.width:
            raise ValueError(
                f"a layer has states of {width} features, its probe was fitted on {self.width}. "
                "Fit it on states of this model: heads.activations."
            )
        if self.panels[0].centre.device != states.device:
            for panel in self.panels:
                panel.to(states.device)
        most = max(1, NUMBERS // (n * width))
        some = states.split(most, 1) if t > most else [states]
        return joined([joined([panel(part) for panel in self.panels], -1) for part in some], 1)


def decoder(model: nn.Module) -> tuple[nn.Module, nn.ModuleList, nn.Module]:
    """The module that runs the blocks, the blocks, and the norm after the last."""
    for body in model.modules():
        blocks, norm = named(body, BLOCKS), named(body, NORMS)
        if isinstance(blocks, nn.ModuleList) and isinstance(norm, nn.Module):
            return body, blocks, norm
    raise ValueError(
        f"{type(model).__name__} has no blocks ({' or '.join(BLOCKS)}) with a norm after them "
        f"({', '.join(NORMS)}). Pass a decoder of transformers."
    )


def place(layer: int, count: int) -> int:
    """A layer, which may be counted from the end, as transformers numbers its hidden_states."""
    if not whole(layer) or not -count - 1 <= layer <= count:
        numbers = f"0 (embeddings) to {count}, or from the end"
        raise ValueError(f"layer {layer!r} of a model of {count} blocks. Pass a whole number: {numbers}.")
    return int(layer) % (count + 1)


def room(n: int, width: int) -> int:
    """How many tokens of n sequences may wait."""
    return max(1, min(HELD, NUMBERS // (n * width)))


def _as_module(probe: Any) -> Probe:
    """A module of our own: the caller's stays where it is."""
    given = probe if isinstance(probe, type) else type(probe)
    convert = None if isinstance(probe, type) else getattr(probe, "to_torch", None)
    module = deepcopy(probe) if isinstance(probe, Probe) else convert and convert()
    if not isinstance(module, Probe):
        raise TypeError(f"a probe is {given.__name__}. Pass a fitted AttentionProbe or its to_torch().")
    return module.cpu()
