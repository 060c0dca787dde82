"""A small language model on the movie reviews: its text, and what its heads do while it learns.

The reviews lie end to end, the 8,190 most frequent pieces of the train half are known. A window is a start
token and a stretch of text, which may begin and end anywhere; every token of it is predicted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from attsvm.torch import attention_statistics
from data import Reviews
from looks import exactly, states_of
from models import LanguageModel
from tasks import Batch, order

SIZES = {"width": 256, "depth": 6, "heads": 8, "hidden": 1024}
"""7 million parameters with 8,192 words, tied."""
PIECES, LENGTH, BATCH = 8_192, 256, 32
START, UNKNOWN = 0, 1
OPENING = 101
"""[CLS] of the reviews' tokenizer, which a start token replaces."""
FIRST, LAST, LOOKS = 10, 3_600, 20
"""Batches after which the model is looked at: of the first and the last of so many looks, in equal ratios."""
EARLIEST = 32
"""Queries of a window that come before have few keys, so that any attention looks sure: they do not count."""
HALF, USUAL = 32, 1_000
"""Repeated sequences: so many random tokens, twice; drawn from so many of the most frequent pieces."""
COLUMNS = (
    "layer",
    "head",
    "norm",
    "entropy",
    "top mass",
    "lead",
    "first",
    "previous",
    "induction",
    "duplicate",
)
"""What is known of a head at a look; all but the norm are means or medians over queries."""
SELECTS = {"lead": 0.6931, "top mass": 0.25}
"""A head has begun to select once one of these is passed: the median query gives its first key twice
the weight of the next, or the largest weight is a quarter on average. Chosen before these trainings."""
SINKS, REACHES_BACK, INDUCES = 0.3, 0.3, 0.1
"""Mean shares from which on a head is a sink, a head of the token before, and induction-like, where
chance is about 0.02. Chosen before, too; the first as in Gu et al. 2024, "When attention sink emerges"."""
KEPT, TEXTS = 3, 3
"""Heads whose weights are kept, those with the largest induction score; and of so many repeated sequences."""


def mark(epoch: int) -> int:
    """Batches before the end of a stretch."""
    return round(FIRST * (LAST / FIRST) ** ((epoch - 1) / (LOOKS - 1))) if epoch else 0


class Language:
    """Next tokens; cross-entropy, mean over a batch. An epoch is a stretch between two marks."""

    summed, compiled, fill = False, False, 0

    def __init__(
        self,
        halves: tuple[Reviews, Reviews],
        device: Any,
        pieces: int = PIECES,
        length: int = LENGTH,
        batch: int = BATCH,
        **sizes: int,
    ) -> None:
        self.device, self.batch, self.length = torch.device(device), batch, length
        number = numbered(halves[0].ids, pieces)
        self.train, self.test = (text_of(reviews, number).to(self.device) for reviews in halves)
        self.make = lambda: LanguageModel(pieces, length, **(SIZES | sizes))
        self.a_pass = (len(self.train) // length - 1) // batch
        if self.a_pass < 1:
            raise ValueError(
                f"the text has {len(self.train)} tokens: fewer than the {(batch + 1) * length} of a batch. "
                "Pass more --rows."
            )

    def step(self, optimizer: str) -> float:
        return 1e-3

    def batches(self, seed: int, epoch: int) -> Iterator[Batch]:
        """A stretch's batches: ids (n, T), the tokens that follow (n · T,).

        Every pass over the text has an order of its own, and its windows begin elsewhere.
        """
        turn, starts = -1, torch.zeros(0)
        for number in range(mark(epoch - 1), mark(epoch)):
            if number // self.a_pass != turn:
                turn = number // self.a_pass
                starts = self.starts(seed, turn)
            yield self.windows(self.train, starts[number % self.a_pass])

    def starts(self, seed: int, turn: int) -> Tensor:
        """Where the windows of a pass begin (batches, n)."""
        rows = order(self.a_pass * self.batch, seed, turn)
        shift = int(order(self.length, seed, turn)[0])
        return (shift + self.length * rows).unflatten(0, (-1, self.batch))

    def tests(self) -> Iterator[Batch]:
        return (self.windows(self.test, starts) for starts in self.spread(self.test, 512).split(self.batch))

    def spread(self, text: Tensor, count: int) -> Tensor:
        """Where at most so many windows begin, at equal distances over a text."""
        most = max(1, min(count, len(text) // self.length))
        return torch.arange(most) * ((len(text) - self.length) // most)

    def windows(self, text: Tensor, starts: Tensor) -> Batch:
        """Ids (n, T) of the windows that begin there, and the tokens that follow (n · T,)."""
        places = starts.to(self.device)[:, None] + torch.arange(self.length, device=self.device)
        follow = text[places].long()
        return F.pad(follow[:, :-1], (1, 0), value=START), follow.flatten()

    def loss(self, model: LanguageModel, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, and how many tokens are foretold."""
        ids, follow = batch
        logits = model(ids).flatten(0, 1)
        return F.cross_entropy(logits, follow), (logits.argmax(1) == follow).sum()


def numbered(ids: Tensor, pieces: int) -> Tensor:
    """The number of every piece: 2, 3, … by falling frequency, UNKNOWN for the rare ones, START for [CLS]."""
    counts = torch.bincount(ids.long(), minlength=OPENING + 1)
    counts[OPENING] = 0
    frequent = counts.argsort(descending=True, stable=True)[: pieces - 2]
    frequent = frequent[counts[frequent] > 0]
    number = torch.full((2**15,), UNKNOWN)
    number[frequent] = torch.arange(len(frequent)) + 2
    number[OPENING] = START
    return number.to(torch.int16)


def text_of(reviews: Reviews, number: Tensor) -> Tensor:
    """All reviews of a half end to end, without their opening tokens."""
    text = number[reviews.ids.long()]
    return text[text != START]


# ---------------------------------------------------------------------- the look


@dataclass(frozen=True)
class LanguageLook:
    """What the heads do on fixed windows, and on random tokens that are read twice in a row.

    start: the query and key weights before training, which the first look remembers.
    """

    task: Language
    held_out: Tensor
    repeats: Tensor
    keep: frozenset[int] = frozenset()
    start: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, task: Language, keep: frozenset[int] = frozenset(), seed: int = 0) -> LanguageLook:
        """The look into models of a task: the same windows and sequences for all of its trainings."""
        length = min(HALF, (task.length - 1) // 2)
        usual = min(USUAL, task.make().words.num_embeddings - 2)
        sequence = torch.randint(2, usual + 2, (16, length), generator=torch.Generator().manual_seed(seed))
        repeats = F.pad(torch.cat([sequence, sequence], 1), (1, 0), value=START).to(task.device)
        return cls(task, task.windows(task.test, task.spread(task.test, 16))[0], repeats, keep)

    def __call__(self, model: nn.Module, epoch: int, folder: Path) -> dict[str, Any]:
        with exactly(model):
            if epoch == 0:
                weights = model.named_parameters()
                self.start.update({name: x.clone() for name, x in weights if "attention" in name})
            rows = self.heads(model)
            if epoch in self.keep:
                self._keep(model, rows, folder / f"heads-{epoch:04d}.safetensors")
            return {
                "heads": [[float(f"{x:.4g}") for x in row] for row in rows],
                "fit_loss": self.fit(model),
                "copy": self.copying(model),
            }

    def last(self, model: nn.Module, epoch: int, folder: Path) -> dict[str, Any]:
        with exactly(model):
            return {"kept": self._keep(model, self.heads(model), folder / "heads-last.safetensors")}

    def fit(self, model: nn.Module) -> float:
        """The loss on fixed windows of the train half."""
        batches = self.task.spread(self.task.train, 64).split(16)
        losses = [self.task.loss(model, self.task.windows(self.task.train, batch))[0] for batch in batches]
        return float(torch.stack(losses).mean())

    def copying(self, model: nn.Module) -> list[float]:
        """The loss on random tokens, and on the same ones when they are read again."""
        logits, ids = model(self.repeats[:, :-1]), self.repeats[:, 1:]
        losses = F.cross_entropy(logits.transpose(1, 2), ids, reduction="none").mean(0)
        first, second = losses.chunk(2)
        return [round(float(losses_of[1:].mean()), 4) for losses_of in (first, second)]

    def heads(self, model: nn.Module) -> list[list[float]]:
        """COLUMNS of every head.

        Held-out queries from EARLIEST on: mean entropy, mean largest weight, median lead of the largest logit
        over the next, mean share on the start token and on the token before. Queries in the second reading
        of random tokens: mean share on the token after the earlier copy, and on that copy.
        """
        length, early = self.repeats.shape[1] // 2, min(EARLIEST, self.task.length // 2)
        natural = self.statistics(model, self.held_out, 1, early)
        copies = [self.statistics(model, self.repeats, back, length + 1) for back in (length - 1, length)]
        rows = []
        for layer, (block, head_values, *second) in enumerate(
            zip(model.blocks, natural, *copies, strict=True)
        ):
            mass = (head_values.largest - head_values.logsumexp).exp()
            shares = [mass, head_values.first, head_values.selected, *(each.selected for each in second)]
            means = [x.mean((0, 2)) for x in (head_values.entropy, *shares)]
            lead = head_values.margin.transpose(0, 1).flatten(1).median(1).values
            columns = [norms(block.attention), *means[:2], lead, *means[2:]]
            table = torch.stack([x.double().cpu() for x in columns], 1).tolist()
            rows += [[layer, head, *row] for head, row in enumerate(table)]
        return rows

    def statistics(self, model: nn.Module, ids: Tensor, back: int, start: int) -> list[Any]:
        """Of every layer what its queries from `start` on select; selected: the key so many tokens back.

        In float64: plain products, which need no kernel to be compiled first.
        """
        T = ids.shape[1]
        previous = torch.ones(T, T, dtype=torch.bool, device=ids.device)
        previous = previous.tril(-back).triu(-back)
        readings = []
        for q, k in queries_keys(model, ids):
            each = attention_statistics(q.double(), k.double(), causal=True, selected=previous)
            readings.append(type(each)(*(x[..., start:] for x in each)))
        return readings

    def _keep(self, model: nn.Module, rows: list[list[float]], file: Path) -> list[list[float]]:
        """Weights and states of the heads that look most like induction, and what they select in reviews."""
        score = COLUMNS.index("induction")
        best = sorted(rows, key=lambda row: -row[score])[:KEPT]
        states = states_of(model, lambda: model(self.repeats[:TEXTS]))
        natural = self.statistics(model, self.held_out, 1, 0)
        out = {"repeats": self.repeats[:TEXTS].short(), "held_out": self.held_out.short()}
        for layer, head in ((int(row[0]), int(row[1])) for row in best):
            module, attention = model.blocks[layer].attention, natural[layer]
            rows_of = slice(head * module.attention_head_size, (head + 1) * module.attention_head_size)
            out[f"{layer}.states"] = states[layer].half()
            for name in ("query", "key"):
                out[f"{layer}.{head}.{name}"] = getattr(module, name).weight[rows_of].half()
                if (start := self.start.get(f"blocks.{layer}.attention.{name}.weight")) is not None:
                    out[f"{layer}.{head}.{name}.start"] = start[rows_of].half()
            out[f"{layer}.{head}.where"] = attention.where[:, head].short()
            out[f"{layer}.{head}.mass"] = (attention.largest - attention.logsumexp).exp()[:, head].half()
        save_file({name: x.cpu().contiguous() for name, x in out.items()}, file)
        return [[int(row[0]), int(row[1]), float(f"{row[score]:.4g}")] for row in best]


def queries_keys(model: nn.Module, ids: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries and keys of every layer, each (n, heads, T, width)."""
    for block, x in zip(model.blocks, states_of(model, lambda: model(ids)), strict=True):
        module = block.attention
        q, k = (layer(x).unflatten(-1, (module.heads, -1)) for layer in (module.query, module.key))
        yield q.transpose(1, 2), k.transpose(1, 2)


def norms(module: Any) -> Tensor:
    """‖W_Kᵀ W_Q‖_F / √width of every head."""
    K, Q = (layer.weight.unflatten(0, (module.heads, -1)).double() for layer in (module.key, module.query))
    squares = ((K @ K.mT) * (Q @ Q.mT)).sum((1, 2))
    return squares.clamp_min(0).sqrt() * module.attention_head_size**-0.5
