"""How near two numbers must be, from how well each of them is known: digits, axes, and samples on both sides.

    digits(3) + sampled(each, theirs=100)        # printed with three decimals, a mean of 100 runs; ours: each

Nobody sets a tolerance by hand. Rounding and reading are bounds and add up; sampling errors are random, and a
number of the same experiment exceeds them once in 333 times (LEVEL).
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
"""Probability that two samples of one experiment are called so."""
READ: Final = 0.02
"""A plot is read to this part of its axis."""
PULL: Final = 2
"""Runs of each kind that are added to a share (Agresti and Coull): 0 of 100 has an error, too."""


@dataclass(frozen=True)
class Accuracy:
    """What is known of the difference of a reference and our number, if both are of one experiment.

    known_to: a bound on what rounding or reading took from the reference. error: the standard error of the
    difference, by sampling on both sides; freedom: the degrees of freedom of its estimate. words: all this.
    criterion: the bound is no accuracy but a part of the statement that is checked, which nobody measured.
    """

    known_to: float = 0.0
    error: float = 0.0
    freedom: float = math.inf
    words: str = ""
    criterion: bool = False

    def __post_init__(self) -> None:
        for name in ("known_to", "error", "freedom"):  # NumPy's numbers, too, which JSON cannot write
            object.__setattr__(self, name, float(getattr(self, name)))

    @property
    def tolerance(self) -> float:
        """bound + t · error, with the two-sided quantile t of Student's distribution at LEVEL."""
        return self.known_to + (quantile(self.freedom) * self.error if self.error else 0.0)

    def __add__(self, other: Accuracy) -> Accuracy:
        """Both at once. Errors add in squares; the smaller freedom is the careful one."""
        return Accuracy(
            self.known_to + other.known_to,
            math.hypot(self.error, other.error),
            min(self.freedom, other.freedom),
            "; ".join(filter(None, (self.words, other.words))),
            self.criterion or other.criterion,
        )


def quantile(freedom: float) -> float:
    """How many standard errors a sample of the same experiment stays within, with probability LEVEL."""
    at_most = min(freedom, 1e9)  # the normal distribution
    return float(stdtrit(at_most, (1 + LEVEL) / 2))


def digits(decimals: int) -> Accuracy:
    """A number given with so many decimals: half a unit of the last."""
    return Accuracy(0.5 * 10.0**-decimals, words=f"{decimals} decimals given")


def significant(value: float, count: int = 2) -> Accuracy:
    """A number given with so many digits that count."""
    return digits(count - 1 - math.floor(math.log10(abs(value))))


def log_digits(value: float, count: int) -> Accuracy:
    """The logarithm (base ten) of a number given with so many digits that count."""
    given = significant(value, count)
    return Accuracy(math.log10(1 + given.known_to / abs(value)), words=given.words)


def axis(low: float, high: float) -> Accuracy:
    """A number read off a plot: 2 % of its axis, from low to high."""
    return Accuracy(READ * (high - low), words=f"read to 2 % of an axis from {low:g} to {high:g}")


def along(x: Any, curve: Float, at: float, low: float, high: float) -> Accuracy:
    """A number read off a curve at a place that is itself read off an axis: what the curve changes there.

    x, curve (k,): our curve; low, high: the published horizontal axis, read to 2 %. Where a curve begins
    nothing is misread.
    """
    width = READ * (high - low) if at > low else 0.0
    near = np.interp([at - width, at, at + width], x, curve)
    words = f"the place read to 2 % of an axis from {low:g} to {high:g}"
    return Accuracy(float(np.abs(near - near[1]).max()), words=words)


def sampled(
    ours: Any, theirs: float, spread: float | None = None, alike: Sequence[Any] = (), median: bool = False
) -> Accuracy:
    """Two means of one experiment: ours of the numbers given, theirs of so many.

        s √(1/ours + 1/theirs),   s² = the variances on both sides, pooled

    spread: the standard deviation of theirs, where it is known; a single number of ours needs it. alike:
    samples of other cells that spread alike, where few runs of one cell would miss a heavy tail.
    median: medians instead of means, whose error is √(π/2) times as large.
    """
    each = np.asarray(ours, dtype=float).reshape(-1)
    known: list[tuple[float, float]] = []
    for one in (each, *map(np.asarray, alike)):
        known += [(float(one.var(ddof=1)), len(one) - 1)] if len(one) > 1 else []
    known += [(spread**2, theirs - 1)] if spread is not None else []
    if not known:
        return Accuracy(error=math.inf, words=f"{len(each)} and {theirs:g} runs, no spread known")
    freedom = sum(weight for _, weight in known)
    variance = sum(square * weight for square, weight in known) / freedom
    error = math.sqrt(variance * (1 / len(each) + 1 / theirs)) * (math.sqrt(math.pi / 2) if median else 1)
    return Accuracy(error=error, freedom=freedom, words=f"{_level()} for {len(each)} and {theirs:g} runs")


def counted(ours: float, runs: int, share: float, theirs: int) -> Accuracy:
    """Two shares of one experiment: ours of so many runs, and theirs."""
    total = runs + theirs
    both = (ours * runs + share * theirs + PULL) / (total + 2 * PULL)
    error = math.sqrt(both * (1 - both) * (1 / runs + 1 / theirs))
    return Accuracy(error=error, words=f"{_level()} for {runs} and {theirs} runs")


def exactly(words: str = "a whole number") -> Accuracy:
    """No difference is allowed."""
    return Accuracy(words=words)


def within(bound: float, words: str) -> Accuracy:
    """The bound is a part of the statement: so near must our number come. Measured numbers have none."""
    return Accuracy(bound, words=words, criterion=True)


def _level() -> str:
    return f"{100 * LEVEL:g} % of samples"
