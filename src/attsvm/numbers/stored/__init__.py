"""Numbers that stay where they are: which arrays do, and what reads them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attsvm.numbers import library
from attsvm.numbers.stored.array import PricedThere, Stored

__all__ = ["KEPT", "PricedThere", "Stored", "as_stored"]

KEPT = 1 << 23
"""Numbers up to which half and single precision, and what NumPy can read whole, are widened (64 MB)."""

FOREIGN = ("numpy", "torch", "jax", "pandas", "polars", "dask", "builtins")
"""Homes of arrays that, unless on a GPU, become NumPy arrays whole, most of them without a copy."""


def as_stored(name: str, value: Any, dtype: Any) -> Stored | None:
    """`value` as it is stored, or None where it is a small array in memory, or none at all."""
    if isinstance(value, Stored):
        return value
    home, kind = library.home(value), Stored
    if library.on_gpu(value):
        from attsvm.numbers.stored.device import OnDevice as kind
    elif home == "torch" and str(value.dtype) == "torch.bfloat16":
        value = library.on_host(value)
    elif type(value).__module__.startswith("dask.array"):
        from attsvm.numbers.stored.cluster import OnCluster as kind
    if isinstance(value, np.ndarray):
        narrow = value.dtype.name in ("float16", "float32", "bfloat16") and value.size > KEPT
        mapped = isinstance(value, np.memmap) and value.dtype.kind == "f"
        elsewhere = narrow or mapped or value.dtype.name == "bfloat16"
        if value.ndim != 3 or not elsewhere or np.dtype(dtype) != np.float64:
            return None
        return Stored(value, name)
    if kind is Stored and home in FOREIGN:
        return None
    if not all(hasattr(value, part) for part in ("shape", "dtype", "__getitem__")):
        return None
    if kind is Stored and hasattr(value, "__array__") and math.prod(value.shape) <= KEPT:
        return None
    if len(value.shape) != 3 or 0 in value.shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}. Pass (n, T, d).")
    return kind(value, name)
