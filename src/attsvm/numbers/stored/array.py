"""Numbers that stay where they are: half precision, a file larger than the memory, a slow disk.

What is stored is read as float64, a part at a time. Everything that works with arrays can read it; road one
reads it in passes (`program/constraints.py`) and never holds more than a part.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Float, Index
from attsvm.numbers.archives import stamp, widened

PART = 1 << 20
"""Numbers that are read at once (8 MB in float64)."""


class Stored:
    """An array (n, T, d) that is read by examples: a memory map, or anything with shape, dtype and slices.

    array[a:b] must give the examples a … b − 1. Indexing reads, and gives float64:

        stored[3:7]  (4, T, d)        stored[examples]  (k, T, d)        stored[examples, tokens]  (k, d)

    exponent (n,): every example is read 2^−exponent times as large.
    passes: how often all of it was read.
    """

    dtype, ndim = np.dtype(np.float64), 3

    def __init__(self, array: Any, name: str = "keys", exponent: NDArray[np.int_] | None = None) -> None:
        self.array, self.name, self.exponent = array, name, exponent
        self.shape: tuple[int, int, int] = tuple(map(int, array.shape))  # type: ignore[assignment]
        self._stamp = stamp(array)
        self.passes = 0.0

    @property
    def size(self) -> int:
        n, T, d = self.shape
        return n * T * d

    @property
    def here(self) -> bool:
        """Whether the numbers are one of NumPy's arrays in memory: not in a file, nor anywhere else."""
        return isinstance(self.array, np.ndarray) and self._stamp is None

    def scaled(self, exponent: NDArray[np.int_]) -> Stored:
        """The same numbers, every example read in units of its own."""
        if not exponent.any():
            return self
        return type(self)(self.array, self.name, exponent)

    def parts(self, count: int | None = None) -> list[slice]:
        """Slices of the first `count` examples, or of all; each of about PART numbers."""
        n = self.shape[0] if count is None else count
        step = max(1, PART // (self.shape[1] * self.shape[2]))
        return [slice(a, min(a + step, n)) for a in range(0, n, step)]

    def raw(self, examples: slice | Index) -> NDArray[Any]:
        """Examples as they are stored: float64, float32, float16, or the 16 bits of bfloat16 as uint16."""
        if not isinstance(examples, slice):
            parts = [self.raw(stretch) for stretch in neighbours(examples)]
            return parts[0] if len(parts) == 1 else np.concatenate(parts)
        self.check()
        try:
            part = np.asarray(self.array[examples])
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            last = (examples.stop or self.shape[0]) - 1
            raise ValueError(
                f"{self.name}, examples {examples.start or 0} to {last}, could not be read: {error}"
            ) from error
        if part.shape[1:] != self.shape[1:]:
            raise ValueError(
                f"{self.name}[{examples.start}:{examples.stop}] has shape {part.shape}, expected "
                f"(k, {self.shape[1]}, {self.shape[2]}): the array is not (n, T, d), or it changed."
            )
        if part.dtype.name == "bfloat16":
            return _regular(part.view(np.uint16))
        plain = part.dtype.kind == "f" and part.dtype.itemsize <= 8 and part.dtype.isnative
        return _regular(part, None if plain else np.float64).view()

    def check(self) -> None:
        """Raise where the file below is no longer the one that was opened: its numbers may be others."""
        if self._stamp is not None and stamp(self.array) != self._stamp:
            raise ValueError(f"the file of {self.name} changed while it was read. Make the Tokens again.")

    def largest(self) -> Float:
        """Largest absolute entry of every token (n, T), ∞ where one is NaN or infinite: one pass."""
        out = np.empty(self.shape[:2])
        for part in self.parts():
            out[part] = _largest(self.raw(part))
        self.passes += 1
        return out

    def products(self, vector: Float) -> Float:
        """xᵀ v of every token, (d,) → (n, T): one pass."""
        out = np.empty(self.shape[:2])
        for part in self.parts():
            out[part] = self[part] @ vector
        self.passes += 1
        return out

    # ------------------------------------------------------------------ reading, as NumPy would

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Float:
        if isinstance(index, slice):
            examples = np.arange(self.shape[0])[index]
            return self._units(_float64(self.raw(index)), examples)
        if getattr(index, "ndim", 0) == 2 and index.dtype == bool:
            index = np.nonzero(index)
        example, *rest = index if isinstance(index, tuple) else (index,)
        if not rest or isinstance(rest[0], slice):
            return self._examples(np.asarray(example))[(slice(None), *rest)]
        example, token = np.broadcast_arrays(example, rest[0])
        rows = self._rows(example.ravel(), token.ravel()).reshape(*example.shape, self.shape[2])
        return rows[(..., *rest[1:])]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self[:].astype(dtype or np.float64, copy=False)

    def _examples(self, example: Index) -> Float:
        """Whole examples, (k,) → (k, T, d)."""
        if example.dtype == bool:
            example = np.flatnonzero(example)
        if not len(example):
            return np.zeros((0, *self.shape[1:]))
        return self._units(_float64(self.raw(example)), example)

    def _rows(self, example: Index, token: Index) -> Float:
        """Named tokens, (k,), (k,) → (k, d): each example is read once."""
        out = np.empty((len(example), self.shape[2]))
        order = np.argsort(example, kind="stable")
        places = np.split(order, np.flatnonzero(np.diff(example[order])) + 1) if len(order) else []
        for place in places:
            i = int(example[place[0]])
            out[place] = _float64(self.raw(slice(i, i + 1))[0, token[place]])
        return self._units(out, example)

    def _units(self, array: Float, example: Index) -> Float:
        if self.exponent is None:
            return array
        shift = self.exponent[example].reshape(-1, *[1] * (array.ndim - 1))
        return np.ldexp(array, -shift)


@runtime_checkable
class PricedThere(Protocol):
    """Stored numbers that have what they need to be priced where they are."""

    def margins(self, examples: Index, anchor: Index, queries: Float, W: Float) -> Float:
        """(x_a − x_t)ᵀ W z in float64, the difference first: (k,), (k,), (k, e), (d, e) → (k, T)."""
        ...


def neighbours(examples: Index) -> list[slice]:
    """Indices (k,) as slices, one per stretch of neighbours."""
    ends = np.flatnonzero(np.diff(examples) != 1) + 1
    return [slice(int(part[0]), int(part[-1]) + 1) for part in np.split(examples, ends)]


# ---------------------------------------------------------------------- details


def _regular(part: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
    """The part as compiled passes expect it: an array in an .npz file may begin at any byte."""
    return np.require(part, dtype, ["C", "A"])


def _float64(raw: NDArray[Any]) -> Float:
    return np.asarray(widened(raw) if raw.dtype == np.uint16 else raw, dtype=np.float64)


def _largest(raw: NDArray[Any]) -> Float:
    if raw.dtype == np.float16:  # without their sign, bits are in the order of the numbers
        top = (raw.view(np.uint16) & np.uint16(0x7FFF)).max(-1).view(np.float16).astype(np.float64)
    elif raw.dtype == np.uint16:
        top = _float64((raw & np.uint16(0x7FFF)).max(-1))
    else:
        top = np.maximum(raw.max(-1), -raw.min(-1)).astype(np.float64)
    return np.where(np.isnan(top), np.inf, top)
