"""What the studies beside it share: intervals by resampling, and how many digits a record keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

RESAMPLES = 1000


def bootstrap(statistic: Callable[[Any], Any], count: int, seed: int = 0, resamples: int = RESAMPLES) -> Any:
    """Low and high end (2, …) of the 95 % percentile interval of a statistic of resampled indices (count,).

    Reference: Efron 1979, "Bootstrap methods: another look at the jackknife".
    """
    rng = np.random.default_rng(seed)
    statistics = [statistic(rng.integers(count, size=count)) for _ in range(resamples)]
    return np.nanquantile(np.asarray(statistics, float), [0.025, 0.975], axis=0)


def rounded(values: Any) -> list[float]:
    """To four decimals, as plain numbers."""
    return [round(float(x), 4) for x in values]
