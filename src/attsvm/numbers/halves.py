"""Numbers of 16 bits inside compiled loops, which know neither float16 nor bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from attsvm.numbers.compiled import REORDERED, compiled, inner

HALF, BRAIN = 13, 16
"""Bits by which float16 and bfloat16 are shifted to become float32, the former 1 / SCALE times as large."""

SCALE = 2.0**112


@inner
def shifted(bits, shift):  # type: ignore[no-untyped-def]
    """The 32 bits of a finite number of 16, as a float32: without a table, subnormal numbers too."""
    b = np.uint32(bits)
    return ((b & np.uint32(0x8000)) << np.uint32(16)) | ((b & np.uint32(0x7FFF)) << np.uint32(shift))


def single(number: Any, shift: int) -> Any:
    """The float32 that 16 bits stand for, infinity and NaN too; a number that is none of these, as it is."""
    raise TypeError("`single` is for compiled loops. Widen arrays by `widen`.")


@overload(single, jit_options={"fastmath": set(REORDERED)})
def _single(number, shift):  # type: ignore[no-untyped-def]
    if number != types.uint16:
        return lambda number, shift: number

    def widened(number, shift):  # type: ignore[no-untyped-def]
        endless = np.uint32(0x70000000 if number & np.uint32(0x7C00) == np.uint32(0x7C00) else 0)
        wide = np.uint32(shifted(number, shift) | endless).view(np.float32)
        return np.float32(SCALE if shift == HALF else 1.0) * wide

    return widened


@compiled
def widen(
    bits: NDArray[np.uint16], shift: int, centre: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    """x − centre in float32 of numbers of 16 bits: (m, d), (d,) → out (m, d)."""
    m, d = bits.shape
    for t in range(m):
        for c in range(d):
            out[t, c] = single(bits[t, c], shift) - centre[c]
