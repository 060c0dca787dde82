"""A monitor inside other people's loops: callbacks of two trainers, and a figure that a notebook redraws.

Their classes are made when they are first needed: plain loops need none of these libraries.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from attsvm.extras import missing
from attsvm.torch.records import Write


def trainer_callback() -> Any:
    """The class of callbacks for transformers' Trainer."""
    try:
        from transformers import TrainerCallback
    except ModuleNotFoundError as error:
        raise missing("the Trainer's callback needs transformers", "hf") from error

    class MarginCallback(TrainerCallback):
        def __init__(self, monitor: Any, every: int) -> None:
            self.monitor, self.every = monitor, every

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step % self.every == 0:
                self.monitor.record(state.global_step)

    return MarginCallback


def lightning_callback() -> Any:
    """The class of callbacks for Lightning's Trainer: of the package that is loaded, or installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    found = next((sys.modules[name] for name in names if name in sys.modules), None) or _first(names)

    class MarginCallback(found.Callback):  # type: ignore[name-defined]
        def __init__(self, monitor: Any, every: int) -> None:
            self.monitor, self.every, self.last = monitor, every, -1

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            step = trainer.global_step  # the same for every optimizer of a step
            if step % self.every == 0 and step != self.last:
                self.last = step
                self.monitor.record(step)

    return MarginCallback


def live(plot: Callable[[], Any], seconds: float) -> Write:
    """A writer of records that shows what `plot` draws, and again when so many seconds have passed."""
    try:
        shown: Any = import_module("IPython.display")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "a live figure needs a notebook with IPython. Pass records to a logger: log_to."
        ) from error
    place = shown.display(shown.HTML("<em>no record yet</em>"), display_id=True)
    drawn = -float("inf")

    def show(records: Any, step: int) -> None:
        nonlocal drawn
        if time.monotonic() - drawn >= seconds:
            held = io.BytesIO()
            plot().savefig(held, format="png")
            place.update(shown.Image(data=held.getvalue()))
            drawn = time.monotonic()

    return show


def _first(names: tuple[str, ...]) -> Any:
    for name in names:
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(
        "Lightning's callback needs Lightning: pip install lightning. In your own loop call record(step)."
    )
