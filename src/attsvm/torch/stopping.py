"""Generation that ends, or calls back, where a probe's score passes a threshold."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attsvm.extras import missing

if TYPE_CHECKING:
    from attsvm.torch.watch import Watch

Call = Callable[[Any, int, float], None]


def number(threshold: Any, sure: bool) -> float:
    """A threshold as a number; sure takes the upper end of its interval."""
    if isinstance(threshold, int | float) and not isinstance(threshold, bool) and not math.isnan(threshold):
        return float(threshold)
    if not hasattr(threshold, "threshold"):
        raise TypeError(f"threshold is {threshold!r}. Pass a number or what probe.threshold_at_fpr returned.")
    return float(threshold.high if sure else threshold.threshold)


def criteria(watching: Watch, limits: list[float], every: int, stop: bool, call: Call | None) -> Any:
    """A transformers.StoppingCriteriaList; `Watch.stop_at` says the rest. limits: one per score, or NaN."""
    try:
        from transformers import StoppingCriteria, StoppingCriteriaList
    except ModuleNotFoundError as error:
        raise missing("stopping a generation needs transformers", "hf") from error

    free = [math.isnan(limit) for limit in limits]

    class Passed(StoppingCriteria):
        def __init__(self) -> None:
            self.begun, self.asked, self.told = -1, 0, set[tuple[Any, int]]()
            self.none = self.limits = self.free = torch.zeros(0)

        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            if watching.begun != self.begun:
                self.begun, self.asked, self.told = watching.begun, 0, set()
                self.none = torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)
                self.limits, self.free = (torch.tensor(x, device=input_ids.device) for x in (limits, free))
            self.asked += 1
            if self.asked % every:
                return self.none
            recent = watching._recent(every)
            over = ~(recent < self.limits)  # what is NaN, too: what cannot be scored is not let through
            over = over & ~self.free if any(free) else over
            passed = over.flatten(1).any(1)
            if stop:
                watching._end(passed)
            if call is not None and passed.any():
                self.tell(call, recent, over)
            return passed if stop else self.none

        def tell(self, call: Call, recent: Tensor, over: Tensor) -> None:
            for row, column in torch.nonzero(over.any(1)).tolist():
                key = watching._keys[column]
                if (key, row) not in self.told:
                    self.told.add((key, row))
                    call(key, row, float(recent[row, over[row, :, column], column][0]))

    return StoppingCriteriaList([Passed()])
