"""MarginMonitor: norm, entropy, top mass and margin of every attention head while a model trains."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import astuple, fields
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.torch.callbacks import lightning_callback, live, trainer_callback
from attsvm.torch.query_key import QueryKey
from attsvm.torch.readers import Look
from attsvm.torch.records import HeadRecord, writing
from attsvm.torch.statistics import statistics_of
from attsvm.torch.watched import Watched


class MarginMonitor:
    """Watches every attention module of a model; `record(step)` reads them all.

        with MarginMonitor(model) as monitor:
            for step, batch in enumerate(batches):
                loss(model(batch)).backward()
                monitor.record(step)
                optimizer.step()

    For transformers' Trainer pass callbacks=[monitor.callback()], for Lightning's [monitor.lightning()]. A
    hook keeps the inputs of each module's last forward pass; queries and keys are recomputed only when a
    record is asked for, with the weights as they are then, and their logits a block at a time. Rows of
    padding tokens do not count. Each call of a module that a pass calls several times is a module of its own:
    `name#0`, `name#1`, …

    own: how to read modules of your own, by their class: {SelfAttention: QueryKey("q", "k", heads=4)}.

    A compiled model may be watched as well as the one it was made from, also after it has run: making a
    monitor drops the code compiled so far (`torch.compiler.reset`), and the next pass compiles the hooks in.
    """

    def __init__(self, model: nn.Module, own: Mapping[type[nn.Module], QueryKey] | None = None) -> None:
        self.records: list[HeadRecord] = []
        self._watched = Watched(model, own)
        self._writers: list[Any] = []

    def record(self, step: int) -> list[HeadRecord]:
        """Read every head now; returns the new records, which are also appended to `records`."""
        read: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, look in self._watched.looks():
                read[name] = torch.stack([column.double() for column in _statistics(look)], 1)
        # Read from the device when all are under way, not one after the other.
        new = [
            HeadRecord(step, name, head, *row)
            for name, rows in read.items()
            for head, row in enumerate(rows.tolist())
        ]
        self.records += new
        for write in self._writers:
            write(new, step)
        return new

    def log_to(self, writer: Any) -> MarginMonitor:
        """Write every further record to a logger, as `module/head 3/margin`; returns the monitor.

        writer: anything with add_scalar(name, value, step) (TensorBoard's SummaryWriter), log(dict, step=…)
        (a run of Weights & Biases) or log_metrics(dict, step) (Lightning's loggers).
        """
        self._writers.append(writing(writer))
        return self

    def to_csv(self, file: str | PathLike[str]) -> None:
        """Write the records as a table, one row per step, module and head."""
        with open(file, "w", newline="", encoding="utf8") as out:
            writer = csv.writer(out)
            writer.writerow([field.name for field in fields(HeadRecord)])
            writer.writerows(astuple(record) for record in self.records)

    def plot(self) -> Any:
        """A matplotlib figure: norm, entropy, top mass and median margin by step, a line per head.

        Few heads, or those of one module, have a colour each, many that of their module; a legend names them.
        """
        from attsvm.torch.drawing import draw

        if not self.records:
            raise ValueError("nothing has been recorded yet. Call record(step) while the model trains.")
        return draw(self.records)

    def callback(self, every: int = 1) -> Any:
        """A transformers.TrainerCallback that records before every `every`-th optimizer step."""
        return trainer_callback()(self, every)

    def lightning(self, every: int = 1) -> Any:
        """A Callback for Lightning's Trainer that records before every `every`-th optimizer step."""
        return lightning_callback()(self, every)

    def live(self, seconds: float = 2.0) -> MarginMonitor:
        """Show the figure in a notebook, drawn anew after a record, at most every so many seconds."""
        self._writers.append(live(self.plot, seconds))
        return self

    def close(self) -> None:
        """Remove the hooks and forget the kept inputs; the records stay."""
        self._watched.close()

    def __enter__(self) -> MarginMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---------------------------------------------------------------------- details


def _statistics(look: Look) -> tuple[Tensor, ...]:
    """norm, entropy, top mass, margin and median margin of every head, each (heads,)."""
    found = statistics_of(look.logits)
    counts = (found.where >= 0) & look.own()
    rows = counts.sum((0, 2))  # where no query counts, a mean is NaN
    mass = torch.exp(found.largest - found.logsumexp)
    means = [torch.where(counts, x, 0).sum((0, 2)) / rows for x in (found.entropy, mass)]
    gaps = torch.where(counts & torch.isfinite(found.margin), found.margin, torch.nan)  # one token only: ∞
    gaps = gaps.transpose(0, 1).flatten(1).double()
    norms = look.norms.to(gaps)
    safe = torch.where(norms > 0, norms, 1)  # W_QK = 0 has equal logits: gap 0, margin 0
    least, middle = torch.nan_to_num(gaps, torch.inf).amin(1), torch.nanmedian(gaps, 1).values
    return norms, *means, least / safe, torch.nan_to_num(middle, torch.inf) / safe
