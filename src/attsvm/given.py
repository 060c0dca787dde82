"""What a caller gives: whether it is a number, and how an error tells it."""

from __future__ import annotations

import math
from typing import TypeGuard

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
