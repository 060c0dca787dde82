"""The tolerance between two numbers, computed from digits, axes, and samples on both sides.

    digits(3) + sampled(ours, theirs=100)        # printed with three decimals, a mean of 100 runs

No tolerance is set by hand. Rounding and reading have bounds, which add up. Sampling errors are random: a
number of the same experiment exceeds the tolerance once in 333 times (LEVEL).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from scipy.special import stdtrit

from attsvm.numbers import Float

LEVEL: Final = 0.997
"""Probability that two samples of one experiment agree."""
READ: Final = 0.02
"""Accuracy of reading a plot, as a fraction of its axis."""
PSEUDO_RUNS: Final = 2
"""Successes, and failures, that are added to a share (Agresti and Coull): so 0 of 100 has an error, too."""


@dataclass(frozen=True)
class Accuracy:
    """How far a reference and our number may differ if both are results of one experiment.

    known_to: a bound on the error of the reference by rounding or reading. error: the standard error of the
    difference, by sampling on both sides; freedom: the degrees of freedom of its estimate. words: all this in
    words. criterion: the bound is no accuracy but a part of the statement that is checked.
    """

    known_to: float = 0.0
    error: float = 0.0
    freedom: float = math.inf
    words: str = ""
    criterion: bool = False

    def __post_init__(self) -> None:
        for name in ("known_to", "error", "freedom"):  # from NumPy's numbers, which JSON cannot write
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def tolerance(self) -> float:
        """bound + t · error, with the two-sided quantile t of Student's distribution at LEVEL."""
        return self.known_to + (quantile(self.freedom) * self.error if self.error else 0.0)

    def __add__(self, other: Accuracy) -> Accuracy:
        """The sum of two errors: bounds add, standard errors in squares; the smaller freedom counts."""
        return Accuracy(
            self.known_to + other.known_to,
            math.hypot(self.error, other.error),
            min(self.freedom, other.freedom),
            "; ".join(filter(None, (self.words, other.words))),
            self.criterion or other.criterion,
        )


def quantile(freedom: float) -> float:
    """The number of standard errors that a sample of one experiment exceeds with probability 1 − LEVEL."""
    finite = min(freedom, 1e9)  # at 1e9, Student's distribution is the normal one
    return float(stdtrit(finite, (1 + LEVEL) / 2))


def digits(decimals: int) -> Accuracy:
    """A number given with so many decimals: half a unit of the last."""
    return Accuracy(0.5 * 10.0**-decimals, words=f"{decimals} decimals given")


def significant(value: float, count: int = 2) -> Accuracy:
    """A number given with so many significant digits."""
    return digits(count - 1 - math.floor(math.log10(abs(value))))


def log_digits(value: float, count: int) -> Accuracy:
    """The logarithm (base ten) of a number given with so many significant digits."""
    accuracy = significant(value, count)
    return Accuracy(math.log10(1 + accuracy.known_to / abs(value)), words=accuracy.words)


def axis(low: float, high: float) -> Accuracy:
    """A number read off a plot: 2 % of its axis, from low to high."""
    return Accuracy(READ * (high - low), words=f"read to 2 % of an axis from {low:g} to {high:g}")


def log_axis(value: float, low: float, high: float) -> Accuracy:
    """A number read off a logarithmic plot: 2 % of its axis, from low to high, is a factor.

    The factor is the same at every value: (high/low)^0.02, upwards more than downwards, of which the larger.
    """
    factor = (high / low) ** READ
    words = f"read to 2 % of a logarithmic axis from {low:g} to {high:g}"
    return Accuracy(abs(value) * (factor - 1), words=words)


def along(x: Any, curve: Float, at: float, low: float, high: float) -> Accuracy:
    """A number read off a curve at a place that is itself read off an axis: the curve's change around there.

    x, curve (k,): our curve; low, high: the published horizontal axis, read to 2 %. The beginning of a curve
    is read exactly.
    """
    width = READ * (high - low) if at > np.min(x) else 0.0
    near = np.interp([at - width, at, at + width], x, curve)
    words = f"the place read to 2 % of an axis from {low:g} to {high:g}"
    return Accuracy(float(np.abs(near - near[1]).max()), words=words)


def sampled(
    ours: Any, theirs: float, spread: float | None = None, alike: Sequence[Any] = (), median: bool = False
) -> Accuracy:
    """Two means of one experiment: ours of these numbers, and theirs of `theirs` runs.

        s √(1/ours + 1/theirs),   s² = the variances on both sides, pooled

    spread: the standard deviation of their runs, where it is known; a single number of ours needs it. alike:
    samples of other cells with the same spread, where a few runs of one cell would miss a heavy tail.
    median: medians instead of means, whose error is √(π/2) times as large.
    """
    sample = np.asarray(ours, dtype=float).reshape(-1)
    samples = [s for s in (sample, *map(np.asarray, alike)) if len(s) > 1]
    variances: list[tuple[float, float]] = [(float(s.var(ddof=1)), len(s) - 1) for s in samples]
    variances += [(spread**2, theirs - 1)] if spread is not None else []
    if not variances:
        return Accuracy(error=math.inf, words=f"{len(sample)} and {theirs:g} runs, no spread known")
    freedom = sum(weight for _, weight in variances)
    variance = sum(square * weight for square, weight in variances) / freedom
    error = math.sqrt(variance * (1 / len(sample) + 1 / theirs)) * (math.sqrt(math.pi / 2) if median else 1)
    return Accuracy(error=error, freedom=freedom, words=f"{_level()} for {len(sample)} and {theirs:g} runs")


def restarted(ours: Float, theirs: int = 1) -> Accuracy:
    """Two means over the same data sets: ours (data sets, starts), and theirs, of so many starts each.

    s √((1/starts + 1/theirs) / data sets),   s² = the variance over the starts of a data set, pooled
    """
    data_sets, starts = ours.shape
    if starts < 2:
        return Accuracy(error=math.inf, words=f"one start of each of {data_sets} data sets, no spread known")
    variance = float(ours.var(axis=1, ddof=1).mean())
    error = math.sqrt(variance * (1 / starts + 1 / theirs) / data_sets)
    words = f"{_level()} for {starts} and {theirs} starts of the same {data_sets} data sets"
    return Accuracy(error=error, freedom=data_sets * (starts - 1), words=words)


def counted(ours: float, runs: int, share: float, theirs: int) -> Accuracy:
    """Two shares of one experiment: ours, of `runs` runs, and `share`, of `theirs` runs."""
    total = runs + theirs
    pooled = (ours * runs + share * theirs + PSEUDO_RUNS) / (total + 2 * PSEUDO_RUNS)
    error = math.sqrt(pooled * (1 - pooled) * (1 / runs + 1 / theirs))
    return Accuracy(error=error, words=f"{_level()} for {runs} and {theirs} runs")


def exactly(words: str = "a whole number") -> Accuracy:
    """No difference is allowed."""
    return Accuracy(words=words)


def within(bound: float, words: str) -> Accuracy:
    """A bound that is a part of the checked statement. References that were measured cannot have one."""
    return Accuracy(bound, words=words, criterion=True)


def _level() -> str:
    return f"{100 * LEVEL:g} % of samples"
