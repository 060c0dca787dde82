"""Confidence intervals: Wilson's for a share; for a mean Student's, widened by that for bounded numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

KINDS = ("global", "local", "neither", "unmoved")
"""The answers of `classify`; each has a share."""

BOUNDS = {"margin_ratio": (0.0, 1.0), "one_minus_cosine": (0.0, 2.0)}
"""Lower and upper bound of a measure's values; not in measure.py, because a page needs them without JAX."""


@dataclass(frozen=True)
class Estimate:
    """A share or a mean of `runs` numbers, with its interval; `missing` more runs had no number."""

    value: float
    low: float
    high: float
    runs: int
    missing: int = 0

    @property
    def width(self) -> float:
        """The width of the interval, ∞ without one."""
        return self.high - self.low if math.isfinite(self.high - self.low) else math.inf

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def share(true: NDArray[Any], confidence: float = 0.95) -> Estimate:
    """The share of true entries with Wilson's interval: every p that the score test does not reject."""
    from scipy.special import ndtri

    n = len(true)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0)
    p = float(np.mean(true))
    low, high = _score_interval(p, p * (1 - p), n, float(ndtri(0.5 + confidence / 2)))
    # A share of 0 or 1 is an end of its interval; rounding would leave the interval 1e-17 short of it.
    return Estimate(p, 0.0 if p == 0 else low, 1.0 if p == 1 else high, n)


def mean(
    numbers: NDArray[Any], confidence: float = 0.95, bounds: tuple[float, float] | None = None
) -> Estimate:
    """The mean of the finite numbers with the hull of Student's interval and the score interval.

    Student's interval, mean ± t s/√n, has no width where all numbers are equal, although a run in a hundred
    may fail and not be among those drawn. The score interval allows for numbers at the bounds that were not
    drawn.

    bounds: known bounds of the numbers; without them, their own minimum and maximum.
    """
    from scipy.special import stdtrit

    finite = numbers[np.isfinite(numbers)]
    n, missing = len(finite), len(numbers) - len(finite)
    if n == 0:
        return Estimate(math.nan, math.nan, math.nan, 0, missing)
    middle = float(np.mean(finite))
    if n == 1 and bounds is None:
        return Estimate(middle, -math.inf, math.inf, 1, missing)
    a, b = float(np.min(finite)), float(np.max(finite))
    if bounds is not None:
        a, b = min(a, bounds[0]), max(b, bounds[1])
    if n == 1:
        return Estimate(middle, a, b, 1, missing)
    variance, t = float(np.var(finite, ddof=1)), float(stdtrit(n - 1, 0.5 + confidence / 2))
    margin = t * math.sqrt(variance / n)
    low, high = middle - margin, middle + margin
    if b > a:
        ends = _score_interval((middle - a) / (b - a), variance / (b - a) ** 2, n, t)
        low, high = min(low, a + (b - a) * ends[0]), max(high, a + (b - a) * ends[1])
    return Estimate(
        middle, low if bounds is None else max(low, a), high if bounds is None else min(high, b), n, missing
    )


def bounds(measure: str) -> tuple[float, float] | None:
    """Lower and upper bound of the values of a measure such as margin_ratio:l1@0.1; None where unknown."""
    return BOUNDS.get(measure.partition("@")[0].partition(":")[0])


def estimate(
    columns: Mapping[str, NDArray[Any]],
    quantity: str,
    confidence: float = 0.95,
    limits: tuple[float, float] | None = None,
) -> Estimate:
    """The share of a kind or of a truth value, or the mean of a number, over the runs in these columns.

    limits: the bounds of a measure that `BOUNDS` does not know.
    """
    if quantity in KINDS:
        return share(columns["kind"] == quantity, confidence)
    column = columns[quantity]
    if column.dtype == bool:
        return share(column, confidence)
    return mean(column.astype(float), confidence, bounds(quantity) or limits)


def _score_interval(middle: float, variance: float, n: int, z: float) -> tuple[float, float]:
    """Wilson's interval of the mean of n numbers between 0 and 1 that have this variance.

        (m + z²/2n ± z √(s²/n + z²/4n²)) / (1 + z²/n)

    Zeros and ones have s² = m(1 − m), which gives Wilson's formula. For equal numbers, the interval allows a
    share of about z²/n at either bound: n draws miss such a share with a probability of e^(−z²).
    Reference: Wilson 1927, "Probable inference, the law of succession, and statistical inference".
    """
    centre, spread = middle + z * z / (2 * n), z * math.sqrt(variance / n + z * z / (4 * n * n))
    return (centre - spread) / (1 + z * z / n), (centre + spread) / (1 + z * z / n)
