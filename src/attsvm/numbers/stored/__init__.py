"""Arrays that stay in a file, on a GPU or on a cluster: which arrays do, and the classes that read them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from attsvm.numbers import library
from attsvm.numbers.stored.array import ComputesMargins, Stored

__all__ = ["COPY_LIMIT", "ComputesMargins", "Stored", "as_stored"]

COPY_LIMIT = 1 << 23
"""Arrays of up to so many numbers are copied to float64 (64 MB) and not stored."""

FOREIGN = ("numpy", "torch", "jax", "pandas", "polars", "dask", "builtins")
"""Libraries whose arrays, unless on a GPU, become NumPy arrays, most of them without a copy."""


def as_stored(name: str, value: Any, dtype: Any) -> Stored | None:
    """A `Stored` of the value, or None for a small array in memory and for a value that is no array."""
    if isinstance(value, Stored):
        return value
    if type(value) is np.ndarray and value.dtype == np.float64:
        return None
    home, kind = library.home(value), Stored
    if library.on_gpu(value):
        from attsvm.numbers.stored.device import OnDevice as kind
    elif home == "torch" and str(value.dtype) == "torch.bfloat16":
        value = library.on_host(value)
    elif type(value).__module__.startswith("dask.array"):
        from attsvm.numbers.stored.cluster import OnCluster as kind
    if isinstance(value, np.ndarray):
        narrow = value.dtype.name in ("float16", "float32", "bfloat16") and value.size > COPY_LIMIT
        mapped = isinstance(value, np.memmap) and value.dtype.kind == "f"
        elsewhere = narrow or mapped or value.dtype.name == "bfloat16"
        if value.ndim != 3 or not elsewhere or np.dtype(dtype) != np.float64:
            return None
        return Stored(value, name)
    if kind is Stored and home in FOREIGN:
        return None
    if not all(hasattr(value, name) for name in ("shape", "dtype", "__getitem__")):
        return None
    if kind is Stored and hasattr(value, "__array__") and math.prod(value.shape) <= COPY_LIMIT:
        return None
    if len(value.shape) != 3 or 0 in value.shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}. Pass (n, T, d).")
    return kind(value, name)
