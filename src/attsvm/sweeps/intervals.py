"""Confidence intervals: Wilson's for a share, Student's for a mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Estimate:
    """A share or a mean with its interval, from so many runs; `missing` more had no number."""

    value: float
    low: float
    high: float
    runs: int
    missing: int = 0

    @property
    def width(self) -> float:
        """Of the interval; ∞ where there is none."""
        return self.high - self.low if math.isfinite(self.high - self.low) else math.inf

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def share(true: NDArray[Any], confidence: float = 0.95) -> Estimate:
    """The share of true entries with Wilson's interval, the scores p that a test would not reject.

        (p̂ + z²/2n ± z √(p̂(1 − p̂)/n + z²/4n²)) / (1 + z²/n)

    Reference: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    from scipy.special import ndtri

    n = len(true)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    p, z = float(np.mean(true)), float(ndtri(0.5 + confidence / 2))
    middle, spread = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low, high = (middle - spread) / (1 + z * z / n), (middle + spread) / (1 + z * z / n)
    # At the ends the interval ends there too; rounding would leave it 1e-17 short of that.
    return Estimate(p, 0.0 if p == 0 else low, 1.0 if p == 1 else high, n)


def mean(numbers: NDArray[Any], confidence: float = 0.95) -> Estimate:
    """The mean of the finite numbers with Student's interval, mean ± t s/√n."""
    from scipy.special import stdtrit

    finite = numbers[np.isfinite(numbers)]
    n, missing = len(finite), len(numbers) - len(finite)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0, missing)
    middle = float(np.mean(finite))
    if n == 1:
        return Estimate(middle, -math.inf, math.inf, 1, missing)
    half = float(stdtrit(n - 1, 0.5 + confidence / 2) * np.std(finite, ddof=1) / math.sqrt(n))
    return Estimate(middle, middle - half, middle + half, n, missing)
