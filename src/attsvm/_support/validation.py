"""Checks of arguments: numbers, counts, shares and seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np


def is_integer(value: object) -> TypeGuard[int]:
    """Whether the value is an integer of Python or NumPy; booleans are not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def as_integer(value: Any) -> Any:
    """An integer, or a float such as 1e3 that equals one, as a Python int; any other value unchanged.

    The caller checks the result with `is_integer`.
    """
    integral_float = isinstance(value, (float, np.floating)) and float(value).is_integer()
    return int(value) if integral_float or is_integer(value) else value


def is_finite(value: object) -> TypeGuard[float]:
    """Whether the value is a number that float64 holds: no NaN, infinity or boolean."""
    try:
        return (is_integer(value) or isinstance(value, (float, np.floating))) and math.isfinite(value)
    except OverflowError:
        return False


def describe(value: object) -> str:
    """The repr of a value for an error message, or the size of an integer too large to print."""
    huge = isinstance(value, int) and value.bit_length() > 64
    return f"a whole number of {value.bit_length():,} bits" if huge else repr(value)  # type: ignore[attr-defined]


def check_sizes(**sizes: tuple[Any, int]) -> list[int]:
    """The sizes as Python integers; each keyword is name=(value, minimum)."""
    for name, (value, minimum) in sizes.items():
        if not (is_integer(as_integer(value)) and value >= minimum):
            raise ValueError(f"{name} is {describe(value)}. Pass {name} ≥ {minimum}, a whole number.")
    return [as_integer(value) for value, _ in sizes.values()]


def check_share(name: str, value: object) -> None:
    """Raise unless the value is a number from 0 to 1."""
    if not (is_finite(value) and 0 <= value <= 1):
        raise ValueError(f"{name} is {describe(value)}. Pass a number from 0 to 1.")


def as_seeds(seed: int | Iterable[int]) -> int | list[int]:
    """One seed, or a list of several; an iterator is read once."""
    several = isinstance(seed, Iterable) and not isinstance(seed, str) and getattr(seed, "ndim", 1) > 0
    seeds: list[Any] = list(seed) if several else [seed]  # type: ignore[arg-type]
    invalid = [s for s in seeds if not is_integer(s) or s < 0]
    if invalid:
        raise ValueError(f"seed is {describe(invalid[0])}. Pass a nonnegative integer or a range of them.")
    if not seeds:
        raise ValueError("seed is an empty range. Pass an integer or at least one seed.")
    return [int(s) for s in seeds] if several else int(seeds[0])
