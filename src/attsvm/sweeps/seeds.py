"""Which seeds a cell is trained on: a number of them, a range, or as many as a precision needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.given import real, whole
from attsvm.sweeps.intervals import Estimate, mean, share
from attsvm.words import SEEDS, WrongWord, seed_range

KINDS = ("global", "local", "neither", "unmoved")
"""What `classify` says; a share may be asked of each."""

HOW = (
    'Pass a number such as 100, a range such as "20-39", or a precision: '
    'seeds = {share = "global", width = 0.02} or {mean = "margin_ratio", width = 0.01}'
)
KEYS = ("share", "mean", "width", "confidence", "first", "most")


@dataclass(frozen=True)
class Seeds:
    """The seeds of every cell; with a precision, those it begins with.

    quantity: the kind, or the measure, whose interval is to be narrower than `width` at this confidence.
    Seeds are doubled until it is, or until there are `most`.
    """

    begin: range
    quantity: str = ""
    width: float = float("inf")
    confidence: float = 0.95
    most: int = 0

    def more(self, seeds: range, columns: Mapping[str, NDArray[Any]]) -> range | None:
        """The seeds to go on with after these, whose measures are known; None when they are enough."""
        if not self.quantity or len(seeds) >= self.most or self.precise(columns):
            return None
        return range(seeds.start, seeds.start + min(2 * len(seeds), self.most))

    def precise(self, columns: Mapping[str, NDArray[Any]]) -> bool:
        """Whether the interval is as narrow as asked."""
        return not self.quantity or estimate(columns, self.quantity, self.confidence).width <= self.width


def estimate(columns: Mapping[str, NDArray[Any]], quantity: str, confidence: float = 0.95) -> Estimate:
    """Share of a kind or of what is true, mean of a number."""
    if quantity in KINDS:
        return share(columns["kind"] == quantity, confidence)
    column = columns[quantity]
    return share(column, confidence) if column.dtype == bool else mean(column.astype(float), confidence)


def as_seeds(given: Any, measures: tuple[str, ...]) -> Seeds:
    """The seeds that a study asks for; errors say what is allowed."""
    if isinstance(given, Mapping):
        return _precision(given, measures)
    if not (whole(given) or isinstance(given, str)):
        raise WrongWord(f"seeds is {given!r}. {HOW}.")
    return Seeds(seed_range(str(given)))


def _precision(given: Mapping[str, Any], measures: tuple[str, ...]) -> Seeds:
    unknown = set(given) - set(KEYS)
    if unknown or "width" not in given or ("share" in given) == ("mean" in given):
        odd = (
            f"unknown {', '.join(sorted(unknown))}; known are {', '.join(KEYS)}"
            if unknown
            else str(dict(given))
        )
        raise WrongWord(f"seeds: {odd}. {HOW}.")
    quantity = str(given.get("share", given.get("mean")))
    known = (*(KINDS if "kind" in measures else ()), *measures)
    if quantity not in known or quantity == "kind":
        allowed = ", ".join(name for name in known if name != "kind")
        raise WrongWord(
            f"seeds asks for the precision of {quantity!r}, which is not measured. Pass {allowed}."
        )
    numbers = {"width": given["width"], "confidence": given.get("confidence", 0.95)}
    for name, most in (("width", np.inf), ("confidence", 1)):
        value = numbers[name]
        if not (real(value) and 0 < value < most):
            raise WrongWord(
                f"{name} of seeds is {value!r}. Pass a positive number{' below 1' * (most == 1)}."
            )
    first, most = given.get("first", 64), given.get("most", 100_000)
    if not (whole(first) and whole(most) and 0 < first <= most <= SEEDS):
        allowed = f"whole numbers, 0 < first ≤ most ≤ {SEEDS:,}"
        raise WrongWord(f"seeds: first is {first!r} and most {most!r}. Pass {allowed}.")
    return Seeds(range(first), quantity, float(numbers["width"]), float(numbers["confidence"]), most)
