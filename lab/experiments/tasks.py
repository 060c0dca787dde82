"""What is trained: reviews or images, as a model, shuffled batches with a loss, and a test.

All data lie on the device as small integers. An epoch's order is drawn from (seed, epoch) alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attend import Line
from data import Images, Reviews
from models import SentimentEncoder, VisionTransformer

PUBLISHED_STEPS = {
    "mirror:1.1": {3: 8e-4, 4: 6e-4, 6: 1e-3},
    "mirror:2": {3: 4e-4, 4: 4e-4, 6: 1e-3},
    "mirror:3": {3: 4e-6, 4: 6e-6, 6: 1e-5},
}
OUR_STEPS = {"adam": 1e-4, "sign": 1e-4, "spectral": 2e-3}
"""Not published and not tuned: sign as Adam, spectral with about the same root mean square step."""
Batch = tuple[Tensor, ...]
IMAGE_STEPS = {"mirror:1.1": 5e-2, "adam": 1e-4}


def order(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))


class Sentiment:
    """Movie reviews; binary cross-entropy summed over a batch, as published.

    fill: batches are filled up to a multiple of so many tokens by two texts without meaning, which nothing
    else attends to and no loss counts: a few shapes instead of as many as batches, for `steps.py`. Texts of
    one length need none. unmasked: all are padded to the model's length, and padding counts as text.
    """

    summed, compiled = True, True
    """Whether a batch's loss is the sum of its examples' or their mean; whether compiling blocks pays."""

    def __init__(
        self,
        halves: tuple[Reviews, Reviews],
        size: int,
        device: Any,
        batch: int = 100,
        unmasked: bool = False,
        **model: Any,
    ):
        self.make = lambda: SentimentEncoder(size, mean=unmasked, **model)
        if unmasked:
            places = self.make().places.num_embeddings
            halves = halves[0].padded(places), halves[1].padded(places)
        self.train, self.test = halves
        self.device, self.batch, self.size, self.fill = torch.device(device), batch, size, 0
        self.on_device = {id(split): split.to(self.device) for split in halves}
        lengths = torch.cat([split.offsets.diff() for split in halves])
        self.longest, self.even = int(lengths.max()), bool(lengths.min() == lengths.max())

    def step(self, optimizer: str) -> float:
        sizes = PUBLISHED_STEPS.get(optimizer, {})
        return sizes.get(self.size, OUR_STEPS.get(optimizer.partition("+")[0], 4e-4))

    def batches(self, seed: int, epoch: int) -> Iterator[Batch]:
        """An epoch's batches: ids (N,), positions (N,), starts (texts + 1,), labels (n,)."""
        return self._lines(
            self.train, order(len(self.train), seed, epoch), self.batch, 0 if self.even else self.fill
        )

    def tests(self) -> Iterator[Batch]:
        return self._lines(self.test, torch.arange(len(self.test)), 5 * self.batch, 0)

    def loss(self, model: SentimentEncoder, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, and how many answers are right."""
        ids, positions, starts, labels = batch
        logits = model(ids, Line(starts, positions, self.longest))[: len(labels)]
        loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="sum")
        return loss, ((logits > 0) == (labels > 0.5)).sum()

    def _lines(self, reviews: Reviews, rows: Tensor, batch: int, fill: int) -> Iterator[Batch]:
        on_device = self.on_device[id(reviews)]
        lengths, sources = (
            reviews.offsets.diff()[rows],
            reviews.offsets[rows],
        )  # on the host: no question to a GPU
        groups = [
            _filled(*pair, fill) for pair in zip(lengths.split(batch), sources.split(batch), strict=True)
        ]
        lengths, sources = (torch.cat(each) for each in zip(*groups, strict=True))
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        total, starts, counts = int(ends[-1]), ends.to(self.device), lengths.to(self.device)
        source = torch.repeat_interleave(sources.to(self.device), counts, output_size=total)
        place = torch.arange(total, device=self.device)
        place -= torch.repeat_interleave(starts[:-1], counts, output_size=total)
        # The whole epoch's tokens in its order, so that a batch is a slice.
        ids = torch.where(source >= 0, on_device.ids[(source + place).clamp(0, len(on_device.ids) - 1)], 0)
        positions, labels = torch.where(source >= 0, place, 0), on_device.labels[rows.to(self.device)]
        starts, text = starts.to(torch.int32), 0
        for labels_of_batch, (group, _) in zip(labels.split(batch), groups, strict=True):
            tokens = slice(int(ends[text]), int(ends[text + len(group)]))
            yield (
                ids[tokens],
                positions[tokens],
                starts[text : text + len(group) + 1] - starts[text],
                labels_of_batch,
            )
            text += len(group)


def _filled(lengths: Tensor, sources: Tensor, fill: int) -> tuple[Tensor, Tensor]:
    """Lengths and places of a batch's texts, and of two that fill it up, whose place is −1."""
    if not fill:
        return lengths, sources
    total = int(lengths.sum())
    padding = fill * math.ceil((total + 2) / fill) - total
    return torch.cat([lengths, torch.tensor([padding // 2, padding - padding // 2])]), F.pad(
        sources, (0, 2), value=-1
    )


class Vision:
    """Images; cross-entropy, mean over a batch; crop, resize, flip, normalise.

    border: of black pixels from which crops are taken; without one, pictures are neither cropped nor flipped.
    """

    summed, compiled, fill = False, True, 0
    MEAN, SPREAD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

    def __init__(
        self, halves: tuple[Images, Images], device: Any, batch: int = 100, border: int = 4, **model: Any
    ):
        self.device, self.batch, self.border = torch.device(device), batch, border
        self.train, self.test = (split.to(self.device) for split in halves)
        self.make = lambda: VisionTransformer(channels=halves[0].pixels.shape[1], **model)
        self.side = self.make().side
        colours = [x[: halves[0].pixels.shape[1]] for x in (self.MEAN, self.SPREAD)]
        self.mean, self.spread = (255 * torch.tensor(x, device=self.device)[:, None, None] for x in colours)

    def step(self, optimizer: str) -> float:
        return IMAGE_STEPS.get(optimizer, OUR_STEPS.get(optimizer, 5e-2))

    def batches(self, seed: int, epoch: int) -> Iterator[Batch]:
        """An epoch's batches: pixels (n, channels, side, side), labels (n,)."""
        rows = order(len(self.train), seed, epoch).to(self.device)
        return (
            (self.train.pixels[batch_rows], self.train.labels[batch_rows])
            for batch_rows in rows.split(self.batch)
        )

    def tests(self) -> Iterator[Batch]:
        batch = 10 * self.batch
        return zip(self.test.pixels.split(batch), self.test.labels.split(batch), strict=True)

    def loss(self, model: VisionTransformer, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, and how many answers are right; pictures are moved in training only."""
        pixels, y = batch
        moved = self._moved(pixels) if model.training and self.border else pixels
        logits = model(self.prepared(moved, model.dtype))
        return F.cross_entropy(logits, y), (logits.argmax(1) == y).sum()

    def prepared(self, pixels: Tensor, dtype: torch.dtype) -> Tensor:
        """Normalised pictures of the model's side."""
        pictures = (pixels.float() - self.mean) / self.spread
        if pictures.shape[-1] != self.side:
            pictures = F.interpolate(pictures, size=self.side, mode="bilinear", antialias=True)
        return pictures.to(dtype)

    def _moved(self, pixels: Tensor) -> Tensor:
        """A random crop of the black-bordered picture, flipped or not, each picture its own."""
        border, (n, _, side, _) = self.border, pixels.shape
        wide = F.pad(pixels, (border,) * 4)
        down, right = torch.randint(0, 2 * border + 1, (2, n, 1), device=pixels.device)
        flip = torch.rand(n, 1, device=pixels.device) < 0.5
        steps = torch.arange(side, device=pixels.device)
        columns = right + torch.where(flip, side - 1 - steps, steps)
        index = torch.arange(n, device=pixels.device)[:, None, None]
        return wide[index, :, (down + steps)[:, :, None], columns[:, None]].permute(0, 3, 1, 2)
