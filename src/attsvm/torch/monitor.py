"""MarginMonitor: norm, entropy, top mass and margin of every attention head while a model trains.

Loggers, trainers' callbacks and a live figure receive the records. The classes of callbacks are made at their
first use, because a plain training loop needs none of their libraries.
"""

from __future__ import annotations

import csv
import io
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
from importlib import import_module
from itertools import takewhile
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attsvm._support.optional_dependencies import missing
from attsvm.numbers.atomic_write import replacing
from attsvm.torch.attention_hooks import AttentionHooks
from attsvm.torch.readers import AttentionReading, QueryKey
from attsvm.torch.statistics import statistics_of


@dataclass(frozen=True)
class HeadRecord:
    """One head at one step, over the batch of the last forward pass.

    norm: ‖W_QK‖_F, with the scaling of the logits in it. entropy: mean entropy of the attention, in nats.
    top_mass: mean attention on the attended token, the one with the largest logit.
    margin: least logit gap between the attended and the next token, over ‖W_QK‖_F; median_margin: the
    median gap instead. Infinite where no query has two tokens to choose from. Logits are the model's, with
    what positions or a mask add; the norm is that of W_QK alone. Where a model normalises queries and keys
    (QK-norm), W_QK may have any length: the norm is that of the diagonal matrix of both norms' gains instead,
    which takes unit queries and keys to logits.
    """

    step: int
    module: str
    head: int
    norm: float
    entropy: float
    top_mass: float
    margin: float
    median_margin: float


WriteRecords = Callable[[list[HeadRecord], int], object]


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
        self._writers.append(_writer_to(writer))
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
        if not self.records:
            raise ValueError("nothing has been recorded yet. Call record(step) while the model trains.")
        return draw(self.records)

    def callback(self, every: int = 1) -> Any:
        """A transformers.TrainerCallback that records before every `every`-th optimizer step."""
        try:
            from transformers import TrainerCallback
        except ModuleNotFoundError as error:
            raise missing("the Trainer's callback needs transformers", "hf") from error
        monitor = self

        class MarginCallback(TrainerCallback):
            def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                if state.global_step % every == 0:
                    monitor.record(state.global_step)

        return MarginCallback()

    def lightning(self, every: int = 1) -> Any:
        """A Callback for Lightning's Trainer that records before every `every`-th optimizer step."""
        monitor, lightning = self, _lightning()

        class LightningMarginCallback(lightning.Callback):  # type: ignore[name-defined]
            last = -1

            def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
                step = trainer.global_step  # the same for every optimizer of a step
                if step % every == 0 and step != self.last:
                    self.last = step
                    monitor.record(step)

        return LightningMarginCallback()

    def live(self, seconds: float = 2.0) -> MarginMonitor:
        """Show the figure in a notebook; a record redraws it, at most every so many seconds."""
        self._writers.append(_live_writer(self.plot, seconds))
        return self

    def close(self) -> None:
        """Remove the hooks and forget the kept inputs; the records stay."""
        self._hooks.close()

    def __enter__(self) -> MarginMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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


# ---------------------------------------------------------------------- who receives records


def _writer_to(logger: Any) -> WriteRecords:
    """A function that writes records to a logger; numbers that are not finite are left out."""
    if callable(getattr(logger, "add_scalar", None)):
        return lambda records, step: [logger.add_scalar(*item, step) for item in _scalars(records).items()]
    if callable(getattr(logger, "log_metrics", None)):
        return lambda records, step: logger.log_metrics(_scalars(records), step)
    if callable(getattr(logger, "log", None)):
        return lambda records, step: logger.log(_scalars(records), step=step)
    raise TypeError(
        f"{type(logger).__name__} has no add_scalar, log_metrics or log. Pass a logger with one of them."
    )


def _live_writer(plot: Callable[[], Any], seconds: float) -> WriteRecords:
    """A function that shows the figure of `plot` in a notebook, at most once in so many seconds."""
    try:
        display: Any = import_module("IPython.display")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "a live figure needs a notebook with IPython. Pass records to a logger: log_to."
        ) from error
    handle = display.display(display.HTML("<em>no record yet</em>"), display_id=True)
    shown_at = -float("inf")

    def show(records: Any, step: int) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= seconds:
            png = io.BytesIO()
            plot().savefig(png, format="png")
            handle.update(display.Image(data=png.getvalue()))
            shown_at = time.monotonic()

    return show


def _scalars(records: list[HeadRecord]) -> dict[str, float]:
    scalars: dict[str, float] = {}
    for record in records:
        numbers = {name: value for name, value in asdict(record).items() if isinstance(value, float)}
        prefix = f"{record.module}/head {record.head}"
        scalars |= {f"{prefix}/{name}": value for name, value in numbers.items() if math.isfinite(value)}
    return scalars


def _lightning() -> Any:
    """The package of Lightning that is loaded, or installed: it has had two names."""
    names = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(names, key=lambda name: name not in sys.modules):
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(
        "Lightning's callback needs Lightning: pip install lightning. In your own loop call record(step)."
    )


# ---------------------------------------------------------------------- the figure

PANELS = {
    "norm": "norm ‖W_QK‖",
    "entropy": "entropy (nats)",
    "top_mass": "top mass",
    "median_margin": "median margin",
}
MAX_COLOURED_HEADS = 8
"""Up to so many lines have a colour each; more, of several modules, share that of their module."""

LEGEND_ROWS = 16
"""Lines of the legend in one column."""


def draw(records: Sequence[HeadRecord]) -> Any:
    """The figure of a monitor's records, of which there is at least one."""
    from attsvm.plotting.layout import grid
    from attsvm.plotting.style import colours

    curves: dict[tuple[str, int], list[HeadRecord]] = {}
    for record in records:
        curves.setdefault((record.module, record.head), []).append(record)
    names = line_names(curves)
    legend = dict(zip(dict.fromkeys(names.values()), colours(len({*names.values()})), strict=True))
    columns = -(-len(legend) // LEGEND_ROWS)
    width = 1.3 if len(curves) <= MAX_COLOURED_HEADS else 0.7
    figure, (axes,) = grid(1, len(PANELS), 3.4, width=12.0 + columns)
    for ax, (field, title) in zip(axes, PANELS.items(), strict=True):
        for place, curve in curves.items():
            heights = [getattr(record, field) for record in curve]
            steps, marker = [record.step for record in curve], "o" if len(curve) == 1 else None
            ax.plot(steps, heights, color=legend[names[place]], lw=width, alpha=0.8, marker=marker)
        ax.set(title=title, xlabel="step")
    handles = [axes[0].plot([], [], color=color, label=name)[0] for name, color in legend.items()]
    figure.legend(handles=handles, loc="outside right upper", ncols=columns, fontsize=8, frameon=False)
    return figure


def line_names(places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], str]:
    """The name of each line (module, head) in the legend; lines of one name share their colour."""
    places = list(places)
    modules = short_names(list(dict.fromkeys(module for module, _ in places)))
    if len(modules) == 1:
        return {place: f"head {place[1]}" for place in places}
    if len(places) <= MAX_COLOURED_HEADS:
        return {(module, head): f"{modules[module]}, head {head}" for module, head in places}
    return {(module, head): modules[module] for module, head in places}


def short_names(modules: Sequence[str]) -> dict[str, str]:
    """Names without their common prefix and suffix; a number keeps the word before it: layer.0."""
    paths = [module.split(".") for module in modules]
    prefix, suffix = _common_prefix(paths), _common_prefix([path[::-1] for path in paths])
    short = {}
    for module, path in zip(modules, paths, strict=True):
        start = prefix - ("".join(path[prefix : prefix + 1]).isdigit() and prefix > 0)
        short[module] = ".".join(path[start : max(len(path) - suffix, start + 1)]) or module
    return short


def _common_prefix(paths: Sequence[Sequence[str]]) -> int:
    """The length of the longest common prefix."""
    return sum(1 for _ in takewhile(lambda steps: len({*steps}) == 1, zip(*paths, strict=False)))
