"""Numbers of 16 bits inside compiled loops, which know neither float16 nor bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from attsvm.numbers.compiled import REORDERED

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
