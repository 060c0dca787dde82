"""Training steps. On a GPU a step of known shapes is replayed as one CUDA graph: launching its few hundred
kernels one by one takes longer than running them."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from optimizers import Together

PART = 50
"""Batches whose mean loss says whether it is low enough: 5,000 reviews, a fifth of an epoch."""


class Steps:
    """Loss, gradient and optimizer of one batch after the other, and their sums of losses and right answers.

    graphs: the first batch of each shape is computed as always, the second one is recorded, and the others
    replay it with its random numbers going on. Where a step cannot be recorded all are computed as always.
    """

    def __init__(self, task: Any, model: nn.Module, rule: Together, graphs: bool = False) -> None:
        self.task, self.model, self.rule, self.graphs = task, model, rule, graphs
        self.total, self.right = (torch.zeros((), device=task.device) for _ in range(2))
        self._seen: set[Any] = set()
        self._recorded: dict[Any, tuple[Any, list[Tensor]]] = {}
        self._pool = torch.cuda.graph_pool_handle() if graphs else None
        self._stream = torch.cuda.Stream() if graphs else None

    def epoch(self, batches: Any, enough: float = 0.0) -> dict[str, float]:
        """Mean loss and share of right answers over some batches, which are trained on.

        enough: stop after a part of the batches whose mean loss is at most this; then also that part's loss
        and the number of batches.
        """
        self.model.train()
        self.total.zero_()
        self.right.zero_()
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            if self._stream is not None:
                self._stream.wait_stream(torch.cuda.default_stream())
            count, sums_after = 0, (0.0, 0)
            record: dict[str, float] = {}
            for number, batch in enumerate(batches, 1):
                self._step(batch)
                count += len(batch[-1])
                if enough and number % PART == 0:
                    sums_before, sums_after = sums_after, (float(self.total), count)
                    record = {
                        "part_loss": (sums_after[0] - sums_before[0]) / (sums_after[1] - sums_before[1]),
                        "batches": number,
                    }
                    if record["part_loss"] <= enough:
                        break
            record |= {"train_loss": float(self.total) / count, "train_accuracy": float(self.right) / count}
        if self._stream is not None:
            torch.cuda.default_stream().wait_stream(self._stream)
        return record

    def _step(self, batch: tuple[Tensor, ...]) -> None:
        shapes = tuple(x.shape for x in batch)
        if self.graphs and shapes in self._seen and shapes not in self._recorded:
            self._record(shapes, batch)
        if shapes in self._recorded:
            graph, inputs = self._recorded[shapes]
            for x, new in zip(inputs, batch, strict=True):
                x.copy_(new)
            graph.replay()
        else:
            self._seen.add(shapes)
            self._plain(batch)

    def _plain(self, batch: tuple[Tensor, ...]) -> None:
        self.rule.zero_grad()
        loss, right = self.task.loss(self.model, batch)
        loss.backward()
        self.rule.step()
        self.total += loss.detach() * (1 if self.task.summed else len(batch[-1]))
        self.right += right

    def _record(self, shapes: Any, batch: tuple[Tensor, ...]) -> None:
        graph, inputs = torch.cuda.CUDAGraph(), [x.clone() for x in batch]
        self.rule.zero_grad()  # gradients belong to the recording
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                self._plain(tuple(inputs))
            self._recorded[shapes] = graph, inputs
        except RuntimeError as error:
            print(f"not recorded: {str(error)[:200]}", file=sys.stderr)
            self.graphs = False
        self.rule.zero_grad()
