"""The probes on one layer of a decoder, and the tokens that they have not read yet."""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from attsvm.torch.probe import Panel, Probe, RunningBatch

HELD, NUMBERS = 256, 2**22
"""So many tokens, and so many numbers of theirs, are held before the probes read them."""


class Layer:
    """Running scores of one layer's probes; those that can be are one product.

    A prompt is read at once. A token that follows is only copied, which is one launch on a GPU; up to 256
    of them are read together, or fewer where somebody asks: reading one takes forty launches, and so does
    reading all.
    """

    def __init__(self, given: Any) -> None:
        self.single = not isinstance(given, Mapping)
        named = {"": given} if self.single else dict(given)
        if not named:
            raise ValueError("a layer has no probes. Pass a probe, or {name: probe}.")
        modules = {name: _as_module(probe) for name, probe in named.items()}
        alone = [name for name, one in modules.items() if len(one.maps) or one.head.shape[2] > 1]
        together = [name for name in named if name not in alone]
        self.parts: dict[tuple[str, ...], Probe] = {(name,): modules[name] for name in alone}
        if together:
            panel = [modules[name] for name in together]
            self.parts[tuple(together)] = Panel(panel) if len(panel) > 1 else panel[0]
        self.names = list(named)
        self.classes = {name: modules[name].head.shape[2] for name in named}
        self.start()

    def start(self) -> None:
        """Before the first pass over new sequences."""
        self.filled, self.room, self._held = 0, 1, torch.empty(0)
        self._rows: list[Tensor] = []
        self._states: dict[tuple[str, ...], RunningBatch] = {}
        self._scores: dict[tuple[str, ...], list[Tensor]] = {names: [] for names in self.parts}

    def read(self, states: Tensor, counts: Tensor) -> None:
        """A block (n, T, d), which has one score, that after its last token; counts (n, T)."""
        for names, one in self._ready(states).items():
            with torch.no_grad(), torch.autocast(states.device.type, enabled=False):
                self._states[names], scores = one.step(self._states[names], states, counts.to(states.device))
            self._scores[names].append(scores[:, None])

    def hold(self, states: Tensor, row: int) -> None:
        """Copy a token of each sequence (n, 1, d)."""
        if not self._rows:
            self._make_room(states)
        self._rows[row].copy_(states.detach() if states.requires_grad else states)
        self.filled = row + 1

    def catch_up(self, counts: Tensor) -> None:
        """Read the first tokens held, counts (n, T), with a score after each; forget the others."""
        tokens = self._held[: counts.shape[1], :, 0].transpose(0, 1)
        for names, one in self._ready(tokens).items():
            with torch.no_grad(), torch.autocast(tokens.device.type, enabled=False):
                self._states[names], scores = one.trail(self._states[names], tokens, counts.to(tokens.device))
            self._scores[names].append(scores)
        self.filled = 0

    def told(self, last: int | None = None) -> dict[str, Tensor]:
        """The scores by name, (n, passes) or (n, passes, k): all, or those after the last so many passes."""
        found: dict[str, Tensor] = {}
        for names, blocks in self._scores.items():
            if not blocks:
                raise RuntimeError(
                    "the model has not run since the watch began. Call it, or generate, first."
                )
            whole = _ending(blocks, last)
            found |= dict(zip(names, whole.unbind(2), strict=True)) if len(names) > 1 else {names[0]: whole}
        return {name: found[name] for name in self.names}

    def _ready(self, states: Tensor) -> dict[tuple[str, ...], Probe]:
        """The probes, where the states are."""
        if not self._states:
            for names, one in self.parts.items():
                self._states[names] = one.to(states.device).start(len(states))
        return self.parts

    def _make_room(self, states: Tensor) -> None:
        n, _, d = states.shape
        heads = max(one.head.shape[1] for one in self.parts.values())
        room = min(HELD, NUMBERS // (n * d), math.isqrt(NUMBERS // (n * heads)))
        self.room = max(room, 1)
        with torch.inference_mode(False):  # else a later pass outside of it could not write here
            self._held = torch.empty((self.room, n, 1, d), dtype=states.dtype, device=states.device)
        self._rows = list(self._held)


def _as_module(probe: Any) -> Probe:
    """A module of our own: the caller's stays where it is."""
    module = deepcopy(probe) if isinstance(probe, Probe) else getattr(probe, "to_torch", lambda: None)()
    if not isinstance(module, Probe):
        raise TypeError(f"a probe is {type(probe).__name__}. Pass a fitted AttentionProbe or its to_torch().")
    return module


def _ending(blocks: list[Tensor], last: int | None) -> Tensor:
    """The last so many columns of blocks side by side."""
    if last is None:
        return torch.cat(blocks, 1)
    needed, begin = last, len(blocks)
    while needed > 0 and begin:
        begin -= 1
        needed -= blocks[begin].shape[1]
    return torch.cat(blocks[begin:], 1)[:, -last:]
