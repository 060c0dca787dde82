"""What a caller gives: whether it is a number or a seed, and how an error tells it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeGuard

import numpy as np


def whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, Python's or NumPy's, and no truth value."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def real(value: object) -> TypeGuard[float]:
    """Whether it is a number, Python's or NumPy's, that float64 holds: no NaN, infinity or truth value."""
    try:
        return (whole(value) or isinstance(value, (float, np.floating))) and math.isfinite(value)
    except OverflowError:
        return False


def told(value: object) -> str:
    """A value for an error; of a huge whole number its size, for Python may refuse to write it."""
    huge = isinstance(value, int) and value.bit_length() > 64
    return f"a whole number of {value.bit_length():,} bits" if huge else repr(value)  # type: ignore[attr-defined]


def check_sizes(**sizes: tuple[object, int]) -> None:
    """Refuse a size that is no whole number, or too small: name=(given, least)."""
    for name, (value, least) in sizes.items():
        if not (whole(value) and value >= least):
            raise ValueError(f"{name} is {told(value)}. Pass {name} ≥ {least}, a whole number.")


def check_share(name: str, value: object, most: float = 1.0) -> None:
    """Refuse what is no share, from 0 to so many."""
    if not (real(value) and 0 <= value <= most):
        raise ValueError(f"{name} is {told(value)}. Pass a number from 0 to {most:g}.")


def as_seeds(seed: int | Iterable[int]) -> int | list[int]:
    """One seed, or the list of several: an iterator gives its seeds once only."""
    several = isinstance(seed, Iterable) and not isinstance(seed, str) and getattr(seed, "ndim", 1) > 0
    found: list[Any] = list(seed) if several else [seed]  # type: ignore[arg-type]
    wrong = [s for s in found if not whole(s) or s < 0]
    if wrong:
        raise ValueError(f"seed is {told(wrong[0])}. Pass a nonnegative integer or a range of them.")
    if not found:
        raise ValueError("seed is an empty range. Pass an integer or at least one seed.")
    return [int(s) for s in found] if several else int(found[0])
