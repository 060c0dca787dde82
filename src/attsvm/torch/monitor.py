"""MarginMonitor: norm, entropy, top mass and margin of every attention head while a model trains."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import astuple, fields
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.numbers.atomic_write import replacing
from attsvm.torch.attention_hooks import AttentionHooks
from attsvm.torch.readers import AttentionReading, QueryKey
from attsvm.torch.records import (
    HeadRecord,
    WriteRecords,
    lightning_callback,
    live_writer,
    trainer_callback,
    writer_to,
)
from attsvm.torch.statistics import statistics_of


class MarginMonitor:
    """Records every attention module of a model; `record(step)` reads them all.

        with MarginMonitor(model) as monitor:
            for step, batch in enumerate(batches):
                loss(model(batch)).backward()
                monitor.record(step)
                optimizer.step()

    For transformers' Trainer pass callbacks=[monitor.callback()], for Lightning's [monitor.lightning()]. A
    hook keeps the inputs of each module's last forward pass. `record` recomputes queries and keys from them,
    with the weights as they are then, and the logits a block at a time. Rows of padding tokens do not count.
    Where a pass calls a module several times, each call counts as a module: `name#0`, `name#1`, …

    own: how to read modules of your own, by their class: {SelfAttention: QueryKey("q", "k", heads=4)}.

    The model may be compiled, and may have run: making a monitor drops the code compiled so far
    (`torch.compiler.reset`), and the next pass compiles the hooks in.
    """

    def __init__(self, model: nn.Module, own: Mapping[type[nn.Module], QueryKey] | None = None) -> None:
        self.records: list[HeadRecord] = []
        self._hooks = AttentionHooks(model, own)
        self._writers: list[WriteRecords] = []
        self._name = type(model).__name__

    def __repr__(self) -> str:
        model = f"{self._name}, {self._hooks.count} attention modules"
        return f"MarginMonitor({model}: {len(self.records)} records)"

    def record(self, step: int) -> list[HeadRecord]:
        """Read every head now; returns the new records, which are also appended to `records`."""
        statistics: dict[str, Tensor] = {}
        with torch.no_grad():
            for name, reading in self._hooks.readings():
                statistics[name] = torch.stack([column.double() for column in _statistics(reading)], 1)
        # Copy to the host after all modules are under way: each copy waits for the device.
        new = [
            HeadRecord(step, name, head, *row)
            for name, rows in statistics.items()
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
        self._writers.append(writer_to(writer))
        return self

    def to_csv(self, file: str | PathLike[str]) -> None:
        """Write the records as a table, one row per step, module and head."""
        with replacing(Path(file)) as unfinished, unfinished.open("w", newline="", encoding="utf8") as out:
            writer = csv.writer(out)
            writer.writerow([field.name for field in fields(HeadRecord)])
            writer.writerows(astuple(record) for record in self.records)

    def plot(self) -> Any:
        """A matplotlib figure: norm, entropy, top mass and median margin by step, a line per head.

        A few heads, or those of one module, have a colour each. The heads of several modules share the colour
        of their module. A legend names the colours.
        """
        from attsvm.torch.drawing import draw

        if not self.records:
            raise ValueError("nothing has been recorded yet. Call record(step) while the model trains.")
        return draw(self.records)

    def callback(self, every: int = 1) -> Any:
        """A transformers.TrainerCallback that records before every `every`-th optimizer step."""
        return trainer_callback(self, every)

    def lightning(self, every: int = 1) -> Any:
        """A Callback for Lightning's Trainer that records before every `every`-th optimizer step."""
        return lightning_callback(self, every)

    def live(self, seconds: float = 2.0) -> MarginMonitor:
        """Show the figure in a notebook; a record redraws it, at most every so many seconds."""
        self._writers.append(live_writer(self.plot, seconds))
        return self

    def close(self) -> None:
        """Remove the hooks and forget the kept inputs; the records stay."""
        self._hooks.close()

    def __enter__(self) -> MarginMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---------------------------------------------------------------------- details


def _statistics(reading: AttentionReading) -> tuple[Tensor, ...]:
    """norm, entropy, top mass, margin and median margin of every head, each (heads,)."""
    statistics = statistics_of(reading.logits)
    counts = (statistics.where >= 0) & reading.query_counts()
    rows = counts.sum((0, 2))  # 0 where no query counts: the means are NaN then
    mass = torch.exp(statistics.largest - statistics.logsumexp)
    means = [torch.where(counts, x, 0).sum((0, 2)) / rows for x in (statistics.entropy, mass)]
    # The margin of a query that sees one token is infinite: it does not count.
    gaps = torch.where(counts & torch.isfinite(statistics.margin), statistics.margin, torch.nan)
    gaps = gaps.transpose(0, 1).flatten(1).double()
    norms = reading.norms.to(gaps)
    divisors = torch.where(norms > 0, norms, 1)  # W_QK = 0 has equal logits: gap 0, margin 0
    least, median = torch.nan_to_num(gaps, torch.inf).amin(1), torch.nanmedian(gaps, 1).values
    return norms, *means, least / divisors, torch.nan_to_num(median, torch.inf) / divisors
