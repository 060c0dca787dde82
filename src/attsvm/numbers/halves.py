"""Numbers of 16 bits in compiled loops. numba supports neither float16 nor bfloat16."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import overload
from numpy.typing import NDArray

from attsvm.numbers.compiled import REORDERED, compiled, inner

HALF, BRAIN = 13, 16
"""Shifts that turn bits of float16 and bfloat16 into float32; a float16 is then SCALE times too small."""

SCALE = 2.0**112


@inner
def shifted(bits, shift):  # type: ignore[no-untyped-def]
    """The shifted bits of a finite number of 16 bits, as those of a float32; subnormal numbers included."""
    b = np.uint32(bits)
    return ((b & np.uint32(0x8000)) << np.uint32(16)) | ((b & np.uint32(0x7FFF)) << np.uint32(shift))


def single(number: Any, shift: int) -> Any:
    """The float32 of 16 bits, infinity and NaN included; numbers of other types are returned unchanged."""
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
