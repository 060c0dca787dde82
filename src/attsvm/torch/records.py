"""A head's record, and who receives records during training: loggers, trainers' callbacks, a live figure.

The classes of callbacks are made at their first use, because plain training loops need none of their
libraries.
"""

from __future__ import annotations

import io
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from attsvm._support.optional_dependencies import missing


@dataclass(frozen=True)
class HeadRecord:
    """One head at one step, over the batch of the last forward pass.

    norm: ‖W_QK‖_F, with the scaling of the logits in it. entropy: mean entropy of the attention, in nats.
    top_mass: mean attention on the attended token, the one with the largest logit.
    margin: least logit gap between the attended and the next token, over ‖W_QK‖_F; median_margin: the
    median gap instead. Infinite where no query has two tokens to choose from. Logits are the model's, with
    what positions or a mask add; the norm is that of W_QK alone.
    """

    step: int
    module: str
    head: int
    norm: float
    entropy: float
    top_mass: float
    margin: float
    median_margin: float


WriteRecords = Callable[[list[HeadRecord], int], None]


def writer_to(logger: Any) -> WriteRecords:
    """A function that writes records to a logger; numbers that are not finite are left out."""
    if callable(getattr(logger, "add_scalar", None)):

        def add_scalars(records: list[HeadRecord], step: int) -> None:
            for name, value in _scalars(records).items():
                logger.add_scalar(name, value, step)

        return add_scalars
    if callable(getattr(logger, "log_metrics", None)):
        return lambda records, step: logger.log_metrics(_scalars(records), step)
    if callable(getattr(logger, "log", None)):
        return lambda records, step: logger.log(_scalars(records), step=step)
    raise TypeError(
        f"{type(logger).__name__} has no add_scalar, log_metrics or log. Pass a logger with one of them."
    )


def trainer_callback(monitor: Any, every: int) -> Any:
    """A callback for transformers' Trainer."""
    try:
        from transformers import TrainerCallback
    except ModuleNotFoundError as error:
        raise missing("the Trainer's callback needs transformers", "hf") from error

    class MarginCallback(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % every == 0:
                monitor.record(state.global_step)

    return MarginCallback()


def lightning_callback(monitor: Any, every: int) -> Any:
    """A callback for Lightning's Trainer: of the package that is loaded, or installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    loaded = next((sys.modules[name] for name in names if name in sys.modules), None)
    lightning = loaded or _first_installed(names)

    class LightningMarginCallback(lightning.Callback):  # type: ignore[name-defined]
        last = -1

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            step = trainer.global_step  # the same for every optimizer of a step
            if step % every == 0 and step != self.last:
                self.last = step
                monitor.record(step)

    return LightningMarginCallback()


def live_writer(plot: Callable[[], Any], seconds: float) -> WriteRecords:
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


def _first_installed(names: tuple[str, ...]) -> Any:
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(
        "Lightning's callback needs Lightning: pip install lightning. In your own loop call record(step)."
    )
