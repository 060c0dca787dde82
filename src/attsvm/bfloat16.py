"""Numbers as .safetensors files store them, bfloat16 included, which NumPy does not know."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

KINDS = {"BOOL": "?", "F16": "<f2", "F32": "<f4", "F64": "<f8"}
KINDS |= {f"{sign}{8 * size}": f"<{sign.lower()}{size}" for sign in "IU" for size in (1, 2, 4, 8)}
"""The file's word for a type, and NumPy's."""


def widened(bits: ArrayLike) -> NDArray[np.float32]:
    """bfloat16 numbers, given as their 16 bits, in float32: they are its upper half, so this is exact."""
    upper = np.asarray(bits, dtype=np.uint16).astype(np.uint32)
    return np.asarray(upper << np.uint32(16)).view(np.float32)


def decoded(kind: str, data: bytes | bytearray) -> NDArray[Any]:
    """The numbers in these bytes, flat; kind: BF16, F16, F32, F64, BOOL, or I or U and the bits."""
    if kind == "BF16":
        return widened(np.frombuffer(data, "<u2"))
    if kind not in KINDS:
        known = f"BF16, {', '.join(KINDS)}"
        raise ValueError(f"it holds numbers of type {kind}, not of {known}: save them as one of these")
    return np.frombuffer(data, KINDS[kind])
