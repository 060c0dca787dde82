"""Numbers of 16 bits inside compiled loops, which know neither float16 nor bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from attsvm.program.compiled import REORDERED, inner

HALF, BRAIN = 13, 16
"""Bits by which float16 and bfloat16 are shifted to become float32, the former 2^−112 times as large."""


def single(number: Any, shift: int) -> Any:
    """The float32 that 16 bits stand for; a number that is none of these, as it is.

    Shifted to the place of float32, exponent and fraction are those of a number 2^−112 times as large
    (float16), or of the number itself (bfloat16): subnormal numbers too, and without a table.
    """
    raise TypeError("`single` is for compiled loops. Widen arrays by `passes.widen`.")


@overload(single, jit_options={"fastmath": set(REORDERED)})
def _single(number, shift):  # type: ignore[no-untyped-def]
    if number != types.uint16:
        return lambda number, shift: number

    def shifted(number, shift):  # type: ignore[no-untyped-def]
        b = np.uint32(number)
        wide = ((b & np.uint32(0x8000)) << np.uint32(16)) | ((b & np.uint32(0x7FFF)) << np.uint32(shift))
        endless = np.uint32(0x70000000 if b & np.uint32(0x7C00) == np.uint32(0x7C00) else 0)
        return np.float32(2.0**112 if shift == HALF else 1.0) * np.uint32(wide | endless).view(np.float32)

    return shifted


@inner
def exponential(x):  # type: ignore[no-untyped-def]
    """e^x for x ≤ 0, to about |x| units in the last place; it vectorises, which the library's does not."""
    x = -708.0 if x < -708.0 else x
    n = np.floor(x * 1.4426950408889634 + 0.5)
    r = (x - n * 0.693145751953125) - n * 1.42860682030941723212e-6
    total = 1.0 / 479001600.0
    for factor in (39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0):
        total = total * r + 1.0 / factor
    return total * np.int64((np.int64(n) + 1023) << 52).view(np.float64)


@inner
def log_one_plus(x):  # type: ignore[no-untyped-def]
    """log(1 + x) for 0 ≤ x ≤ 1, to rounding: 2 artanh(x / (2 + x)), whose series ends soon; it vectorises."""
    w = x / (2.0 + x)
    square, total = w * w, 1.0 / 35.0
    for odd in (
        33.0,
        31.0,
        29.0,
        27.0,
        25.0,
        23.0,
        21.0,
        19.0,
        17.0,
        15.0,
        13.0,
        11.0,
        9.0,
        7.0,
        5.0,
        3.0,
        1.0,
    ):
        total = total * square + 1.0 / odd
    return 2.0 * w * total
