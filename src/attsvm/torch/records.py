"""What is recorded of a head, and where it may be written while a model trains."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any


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


Write = Callable[[list[HeadRecord], int], None]


def writing(writer: Any) -> Write:
    """How records are handed to a logger; numbers that are not finite are left out."""
    if callable(getattr(writer, "add_scalar", None)):

        def one_by_one(records: list[HeadRecord], step: int) -> None:
            for name, value in _scalars(records).items():
                writer.add_scalar(name, value, step)

        return one_by_one
    if callable(getattr(writer, "log_metrics", None)):
        return lambda records, step: writer.log_metrics(_scalars(records), step)
    if callable(getattr(writer, "log", None)):
        return lambda records, step: writer.log(_scalars(records), step=step)
    raise TypeError(
        f"{type(writer).__name__} has no add_scalar, log_metrics or log. Pass a logger with one of them."
    )


def _scalars(records: list[HeadRecord]) -> dict[str, float]:
    found: dict[str, float] = {}
    for record in records:
        numbers = {name: value for name, value in asdict(record).items() if isinstance(value, float)}
        about = f"{record.module}/head {record.head}"
        found |= {f"{about}/{name}": value for name, value in numbers.items() if math.isfinite(value)}
    return found
