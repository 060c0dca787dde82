"""The normal numbers of `torch.Generator().manual_seed(seed)` and `torch.randn` on a CPU, without torch.

Published experiments draw their data in this way. The engine is MT19937 with the classical seeding. Its words
become normal numbers by the method of Box and Muller, in one of two ways, for fewer than 16 numbers and for
more:

    fewer:  pairs of float64 uniforms (u, w), one pair at a time,  √(−2 log(1 − w)) · (cos 2πu, sin 2πu);
            the second number of a pair waits in the generator for the next such call
    more:   uniforms u₁ … u_N of the numbers' own precision, in blocks of 16: number j of the first eight is
            √(−2 log(1 − u_j)) cos 2πu_{j+8}, number j + 8 has the sine; unless 16 divides N, the last 16
            numbers are drawn anew, over those that were there

A float64 uniform has the lower 53 bits of two words, the first of which is the higher one; a float32 uniform
has the lower 24 bits of one word.
Reference: torch 2, aten/src/ATen/native/cpu/DistributionTemplates.h and core/DistributionsHelper.h.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from attsvm.numbers import Float

BLOCK: Final = 16
"""Numbers that are drawn together; a call for fewer takes the other way."""
C_LIBRARY: Final = tuple(np.vectorize(f, otypes=[float]) for f in (math.log, math.cos, math.sin))
"""The functions that torch calls for float64 numbers, one at a time."""


class TorchNormals:
    """A generator seeded like `torch.Generator().manual_seed(seed)`; each call continues the previous one.

    TorchNormals(0)((2, 3)) are the numbers of torch.randn(2, 3, generator=…), in float32 as there. They are
    the same bit by bit, but for float32 numbers of calls for 16 and more: there torch has a logarithm and a
    sine of its own, and the numbers differ by at most a few units of the last place. The uniforms behind them
    are the same.
    """

    def __init__(self, seed: int) -> None:
        self._engine = np.random.RandomState(seed % 2**32)
        self._waiting: float | None = None

    def __call__(self, shape: tuple[int, ...] | int, dtype: DTypeLike = np.float32) -> NDArray[Any]:
        """Standard normal numbers of this shape, float32 or float64, as the next torch.randn of the shape."""
        kind = np.dtype(dtype)
        if kind not in (np.float32, np.float64):
            raise TypeError(f"dtype is {kind}. Pass float32 or float64: the draws of torch differ by it.")
        count = int(np.prod(shape))
        numbers = self._one_by_one(count).astype(kind) if count < BLOCK else self._in_blocks(count, kind)
        return numbers.reshape(shape)

    def _one_by_one(self, count: int) -> Float:
        numbers: list[float] = []
        while len(numbers) < count:
            if self._waiting is None:
                u, w = self._uniforms(2, np.dtype(np.float64))
                # NumPy's logarithm and cosine of arrays differ from those of the C library in the last bit.
                radius, angle = math.sqrt(-2 * math.log1p(-w)), 2 * math.pi * u
                numbers.append(radius * math.cos(angle))
                self._waiting = radius * math.sin(angle)
            else:
                numbers.append(self._waiting)
                self._waiting = None
        return np.array(numbers, dtype=float)

    def _in_blocks(self, count: int, kind: np.dtype[Any]) -> NDArray[Any]:
        in_blocks = count - count % BLOCK
        drawn = self._uniforms(count, kind)
        numbers = np.empty(count, kind)
        numbers[:in_blocks] = _paired(drawn[:in_blocks])
        if in_blocks < count:
            numbers[-BLOCK:] = _paired(self._uniforms(BLOCK, kind))
        return numbers

    def _uniforms(self, count: int, kind: np.dtype[Any]) -> NDArray[Any]:
        """Uniform numbers in [0, 1) of the precision `kind`."""
        if kind == np.float32:
            return (self._uint32_words(count) & np.uint64(2**24 - 1)).astype(np.float32) * np.float32(
                2.0**-24
            )
        high, low = self._uint32_words(2 * count).reshape(count, 2).T
        return ((high << np.uint64(32) | low) & np.uint64(2**53 - 1)) * 2.0**-53

    def _uint32_words(self, count: int) -> NDArray[np.uint64]:
        return self._engine.randint(0, 2**32, size=count, dtype=np.uint32).astype(np.uint64)


def _paired(uniforms: NDArray[Any]) -> NDArray[Any]:
    """Blocks of 16 uniforms → blocks of 16 normal numbers, computed in the precision of the uniforms."""
    first, second = uniforms.reshape(-1, 2, BLOCK // 2).swapaxes(0, 1)
    number = uniforms.dtype.type
    log, cos, sin = (np.log, np.cos, np.sin) if uniforms.dtype == np.float32 else C_LIBRARY
    radius = np.sqrt(-number(2) * log(1 - first))
    angle = number(2) * number(np.pi) * second
    return np.stack([radius * cos(angle), radius * sin(angle)], axis=1).reshape(-1)
