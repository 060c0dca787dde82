"""What is trained: reviews or images, as a model, shuffled batches with a loss, and a test.

All data lie on the device as small integers. An epoch's order is drawn from (seed, epoch) alone.
"""

from __future__ import annotations

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
IMAGE_STEPS = {"mirror:1.1": 5e-2, "adam": 1e-4}


def order(count: int, seed: int, epoch: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(1_000_003 * seed + epoch))


class Sentiment:
    """Movie reviews; binary cross-entropy summed over a batch, as published."""

    summed = True
    """Whether a batch's loss is the sum of its examples', or their mean."""

    def __init__(
        self, halves: tuple[Reviews, Reviews], size: int, device: Any, batch: int = 100, **model: Any
    ):
        self.train, self.test = halves
        self.device, self.batch, self.size = torch.device(device), batch, size
        self.make = lambda: SentimentEncoder(size, **model)
        self.on_device = {id(half): half.to(self.device) for half in halves}

    def step(self, optimizer: str) -> float:
        sizes = PUBLISHED_STEPS.get(optimizer, {})
        return sizes.get(self.size, OUR_STEPS.get(optimizer, 4e-4))

    def losses(self, model: SentimentEncoder, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Loss, number of right answers and size of every batch of an epoch."""
        yield from self._over(model, self.train, order(len(self.train), seed, epoch), self.batch)

    def tested(self, model: SentimentEncoder) -> Iterator[tuple[Tensor, Tensor, int]]:
        yield from self._over(model, self.test, torch.arange(len(self.test)), 5 * self.batch)

    def _over(self, model: SentimentEncoder, half: Reviews, rows: Tensor, batch: int) -> Iterator[Any]:
        there = self.on_device[id(half)]
        lengths = half.offsets.diff()[rows]  # on the host: shapes are known without asking the GPU
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        on, total = rows.to(self.device), int(ends[-1])
        starts, counts = ends.to(self.device), lengths.to(self.device)
        shift = torch.repeat_interleave(there.offsets[on] - starts[:-1], counts, output_size=total)
        places = torch.arange(total, device=self.device)
        ids = there.ids[places + shift]  # the whole epoch's tokens in its order, so that a batch is a slice
        positions = places - torch.repeat_interleave(starts[:-1], counts, output_size=total)
        labels, starts = there.labels[on], starts.to(torch.int32)
        for a in range(0, len(rows), batch):
            b = min(a + batch, len(rows))
            tokens = slice(int(ends[a]), int(ends[b]))
            line = Line(starts[a : b + 1] - starts[a], positions[tokens], int(lengths[a:b].max()))
            logits, y = model(ids[tokens], line), labels[a:b]
            loss = F.binary_cross_entropy_with_logits(logits, y, reduction="sum")
            yield loss, ((logits > 0) == (y > 0.5)).sum(), b - a


class Vision:
    """Images; cross-entropy, mean over a batch; crop, resize, flip, normalise.

    border: of black pixels from which crops are taken; without one, pictures are neither cropped nor flipped.
    """

    summed = False
    MEAN, SPREAD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)

    def __init__(
        self, halves: tuple[Images, Images], device: Any, batch: int = 100, border: int = 4, **model: Any
    ):
        self.device, self.batch, self.border = torch.device(device), batch, border
        self.train, self.test = (half.to(self.device) for half in halves)
        self.make = lambda: VisionTransformer(channels=halves[0].pixels.shape[1], **model)
        self.side = self.make().side
        colours = [x[: halves[0].pixels.shape[1]] for x in (self.MEAN, self.SPREAD)]
        self.mean, self.spread = (255 * torch.tensor(x, device=self.device)[:, None, None] for x in colours)

    def step(self, optimizer: str) -> float:
        return IMAGE_STEPS.get(optimizer, OUR_STEPS.get(optimizer, 5e-2))

    def losses(self, model: VisionTransformer, seed: int, epoch: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        rows = order(len(self.train), seed, epoch).to(self.device)
        for a in range(0, len(rows), self.batch):
            some = rows[a : a + self.batch]
            pixels, y = self.train.pixels[some], self.train.labels[some]
            logits = model(self.prepared(self._moved(pixels) if self.border else pixels, model.dtype))
            yield F.cross_entropy(logits, y), (logits.argmax(1) == y).sum(), len(some)

    def tested(self, model: VisionTransformer) -> Iterator[tuple[Tensor, Tensor, int]]:
        for a in range(0, len(self.test), 10 * self.batch):
            some = slice(a, a + 10 * self.batch)
            logits, y = model(self.prepared(self.test.pixels[some], model.dtype)), self.test.labels[some]
            yield F.cross_entropy(logits, y), (logits.argmax(1) == y).sum(), len(y)

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
        which = torch.arange(n, device=pixels.device)[:, None, None]
        return wide[which, :, (down + steps)[:, :, None], columns[:, None]].permute(0, 3, 1, 2)
