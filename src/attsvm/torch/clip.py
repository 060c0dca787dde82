"""Logits kept below a limit while a model trains: queries and keys of a head above the limit shrink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attsvm._support.validation import is_finite
from attsvm.torch.attention_hooks import AttentionHooks
from attsvm.torch.readers import AttentionReading, QueryKey
from attsvm.torch.statistics import statistics_of


class Clipped(NamedTuple):
    """A head whose largest logit was above the limit, and that logit before the head shrank."""

    module: str
    head: int
    largest: float


class LogitClip:
    """Made by `clip_logits`; `step` shrinks the heads above the limit."""

    def __init__(self, watched: AttentionHooks, limit: float) -> None:
        self.limit, self._hooks = limit, watched

    def step(self) -> list[Clipped]:
        """Shrink every head whose largest logit, on the inputs of the last pass, is above the limit."""
        clipped = []
        with torch.no_grad():
            for name, reading in self._hooks.readings():
                largest = _largest(reading)
                over = largest > self.limit
                if bool(over.any()):
                    target = _target(self.limit, reading.logits.query.dtype)
                    reading.shrink(torch.where(over, target / torch.where(over, largest, 1), 1))
                    heads = torch.nonzero(over)[:, 0].tolist()
                    clipped += [Clipped(name, head, float(largest[head])) for head in heads]
        return clipped

    def close(self) -> None:
        """Remove the hooks."""
        self._hooks.close()

    def __enter__(self) -> LogitClip:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def clip_logits(
    model: nn.Module, limit: float, own: Mapping[type[nn.Module], QueryKey] | None = None
) -> LogitClip:
    """Keep the logits of every head at most `limit`: QK-clip, which reads a model as MarginMonitor does.

        with clip_logits(model, 100.0) as clip:
            for batch in batches:
                loss(model(batch)).backward()
                optimizer.step()
                clip.step()

    After the optimizer's step the largest logit of every head is computed anew from the inputs of the last
    pass, at any length of context. Where that logit is above the limit, the head's rows of W_Q and W_K, with
    their biases, are multiplied by √(limit/largest) each. The logit then is the limit less its rounding (1e-5
    of the limit, in bfloat16 3 %). Where heads share keys, W_Q is multiplied by limit/largest; latent
    attention has keys of both kinds. Rotary positions and scales are the model's. Models that normalise
    queries and keys (QK-norm) have the gains of these norms multiplied instead: where heads share gains, as
    in Qwen3, all heads of the module shrink with the largest logit. Queries of padding tokens, and numbers
    that a mask or positions add, do not count.
    own: modules of your own, as for MarginMonitor. Reference: Kimi Team 2025, Kimi K2 (MuonClip).
    """
    if not (is_finite(limit) and limit > 0):
        raise ValueError(f"limit is {limit!r}. Pass a positive number, such as 100.")
    return LogitClip(AttentionHooks(model, own), float(limit))


def _largest(reading: AttentionReading) -> Tensor:
    """The largest product of query and key of every head, before a soft cap and what a mask adds."""
    largest = statistics_of(replace(reading.logits, soft_cap=None, mask=reading.logits.allowed)).largest
    counts = torch.as_tensor(reading.query_counts(), device=largest.device)
    return torch.where(counts, largest, -torch.inf).amax((0, 2))


def _target(limit: float, dtype: torch.dtype) -> float:
    """Below the limit by four roundings, or by the rounding of a long sum, so that a head is clipped once."""
    return limit * (1 - max(4 * torch.finfo(dtype).eps, 1e-5))
