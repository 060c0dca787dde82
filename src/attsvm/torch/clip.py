"""Logits kept below a limit while a model trains: queries and keys of a head that passed it shrink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attsvm.given import real
from attsvm.torch.query_key import QueryKey
from attsvm.torch.readers import Look
from attsvm.torch.statistics import statistics_of
from attsvm.torch.watched import Watched


class Clipped(NamedTuple):
    """A head whose largest logit passed the limit, and what that was before it shrank."""

    module: str
    head: int
    largest: float


class LogitClip:
    """Made by `clip_logits`; `step` shrinks the heads that passed the limit."""

    def __init__(self, watched: Watched, limit: float) -> None:
        self.limit, self._watched = limit, watched

    def step(self) -> list[Clipped]:
        """Shrink every head whose largest logit, on the inputs of the last pass, is above the limit."""
        clipped = []
        with torch.no_grad():
            for name, look in self._watched.looks():
                largest = _largest(look)
                over = largest > self.limit
                if bool(over.any()):
                    aim = _aim(self.limit, look.logits.query.dtype)
                    look.shrink(torch.where(over, aim / torch.where(over, largest, 1), 1))
                    heads = torch.nonzero(over)[:, 0].tolist()
                    clipped += [Clipped(name, head, float(largest[head])) for head in heads]
        return clipped

    def close(self) -> None:
        """Remove the hooks."""
        self._watched.close()

    def __enter__(self) -> LogitClip:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def clip_logits(
    model: nn.Module, limit: float, own: Mapping[type[nn.Module], QueryKey] | None = None
) -> LogitClip:
    """Keep the logits of every head at most `limit`: QK-clip, by the margins' own reading of a model.

        with clip_logits(model, 100.0) as clip:
            for batch in batches:
                loss(model(batch)).backward()
                optimizer.step()
                clip.step()

    After the optimizer's step the largest logit of every head is computed anew from the inputs of the last
    pass, at any length of context. Where it is above the limit the head's rows of W_Q and W_K, with their
    biases, are multiplied by √(limit/largest) each, so that it is the limit less its rounding (1e-5 of it,
    in bfloat16 3 %); where heads share keys, W_Q by limit/largest. Latent attention has keys of both kinds.
    Rotary positions and scales are the model's; models that normalise queries and keys are refused. Queries
    of padding tokens, and numbers that a mask or positions add, do not count.
    own: modules of your own, as for MarginMonitor. Reference: Kimi Team 2025, Kimi K2 (MuonClip).
    """
    if not (real(limit) and limit > 0):
        raise ValueError(f"limit is {limit!r}. Pass a positive number, such as 100.")
    return LogitClip(Watched(model, own), float(limit))


def _largest(look: Look) -> Tensor:
    """The largest product of query and key of every head, before a soft cap and what a mask adds."""
    largest = statistics_of(replace(look.logits, soft_cap=None, mask=look.logits.allowed)).largest
    return torch.where(torch.as_tensor(look.own(), device=largest.device), largest, -torch.inf).amax((0, 2))


def _aim(limit: float, dtype: torch.dtype) -> float:
    """Below the limit by four roundings, or by those of a long sum: a head put there does not pass again."""
    return limit * (1 - max(4 * torch.finfo(dtype).eps, 1e-5))
