"""Arrays that are read in blocks: in half precision, in a file larger than the memory, on a slow disk.

Every block is read as float64. NumPy can read a `Stored` as an array; programs read it in passes
(`program/constraints.py`) and hold one block at a time.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Float, Index
from attsvm.numbers.archives import stamp, widened

BLOCK = 1 << 20
"""Numbers that are read at once (8 MB in float64)."""


class Stored:
    """An array (n, T, d) that is read by examples: a memory map, or anything with shape, dtype and slices.

    array[a:b] must give the examples a … b − 1. Indexing reads, and gives float64:

        stored[3:7]  (4, T, d)        stored[examples]  (k, T, d)        stored[examples, tokens]  (k, d)

    exponent (n,): each example is multiplied by 2^−exponent when it is read.
    passes: how often all numbers were read.
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
        """Whether the numbers are a NumPy array in memory: not in a file, on a device or on a cluster."""
        return isinstance(self.array, np.ndarray) and self._stamp is None

    def scaled(self, exponent: NDArray[np.int_]) -> Stored:
        """The same numbers, with each example multiplied by 2^−exponent."""
        if not exponent.any():
            return self
        return type(self)(self.array, self.name, exponent)

    def parts(self, count: int | None = None) -> list[slice]:
        """Slices of the first `count` examples, or of all; each has about BLOCK numbers."""
        n = self.shape[0] if count is None else count
        step = max(1, BLOCK // (self.shape[1] * self.shape[2]))
        return [slice(a, min(a + step, n)) for a in range(0, n, step)]

    def raw(self, examples: slice | Index) -> NDArray[Any]:
        """Examples as they are stored: float64, float32, float16, or the 16 bits of bfloat16 as uint16."""
        if not isinstance(examples, slice):
            blocks = [self.raw(block) for block in consecutive(examples)]
            return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        self.check()
        try:
            block = np.asarray(self.array[examples])
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            last = (examples.stop or self.shape[0]) - 1
            raise ValueError(
                f"{self.name}, examples {examples.start or 0} to {last}, could not be read: {error}"
            ) from error
        if block.shape[1:] != self.shape[1:]:
            raise ValueError(
                f"{self.name}[{examples.start}:{examples.stop}] has shape {block.shape}, expected "
                f"(k, {self.shape[1]}, {self.shape[2]}): the array is not (n, T, d), or it changed."
            )
        if block.dtype.name == "bfloat16":
            return _aligned(block.view(np.uint16))
        plain = block.dtype.kind == "f" and block.dtype.itemsize <= 8 and block.dtype.isnative
        return _aligned(block, None if plain else np.float64).view()

    def check(self) -> None:
        """Raise if the file of a memory map has changed since it was opened."""
        if self._stamp is not None and stamp(self.array) != self._stamp:
            raise ValueError(f"the file of {self.name} changed while it was read. Make the Tokens again.")

    def largest(self) -> Float:
        """Largest absolute entry of every token (n, T), ∞ where one is NaN or infinite: one pass."""
        out = np.empty(self.shape[:2])
        for block in self.parts():
            out[block] = _largest(self.raw(block))
        self.passes += 1
        return out

    def products(self, vector: Float) -> Float:
        """xᵀ v of every token, (d,) → (n, T): one pass."""
        out = np.empty(self.shape[:2])
        for block in self.parts():
            out[block] = self[block] @ vector
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
        example, *inner = index if isinstance(index, tuple) else (index,)
        if not inner or isinstance(inner[0], slice):
            return self._examples(np.asarray(example))[(slice(None), *inner)]
        example, token = np.broadcast_arrays(example, inner[0])
        rows = self._rows(example.ravel(), token.ravel()).reshape(*example.shape, self.shape[2])
        return rows[(..., *inner[1:])]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return self[:].astype(dtype or np.float64, copy=False)

    def _examples(self, example: Index) -> Float:
        """All tokens of examples, (k,) → (k, T, d)."""
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
class ComputesMargins(Protocol):
    """Stored numbers that compute margins on their own device or cluster."""

    def margins(self, examples: Index, anchor: Index, queries: Float, W: Float) -> Float:
        """(x_a − x_t)ᵀ W z in float64, the difference first: (k,), (k,), (k, e), (d, e) → (k, T)."""
        ...


def consecutive(examples: Index) -> list[slice]:
    """Indices (k,) as slices of consecutive indices."""
    ends = np.flatnonzero(np.diff(examples) != 1) + 1
    return [slice(int(block[0]), int(block[-1]) + 1) for block in np.split(examples, ends)]


# ---------------------------------------------------------------------- details


def _aligned(block: NDArray[Any], dtype: Any = None) -> NDArray[Any]:
    """A contiguous, aligned array for compiled passes: an array in an .npz file may begin at any byte."""
    return np.require(block, dtype, ["C", "A"])


def _float64(raw: NDArray[Any]) -> Float:
    return np.asarray(widened(raw) if raw.dtype == np.uint16 else raw, dtype=np.float64)


def _largest(raw: NDArray[Any]) -> Float:
    if raw.dtype == np.float16:  # without the sign, bits have the order of the numbers
        top = (raw.view(np.uint16) & np.uint16(0x7FFF)).max(-1).view(np.float16).astype(np.float64)
    elif raw.dtype == np.uint16:
        top = _float64((raw & np.uint16(0x7FFF)).max(-1))
    else:
        top = np.maximum(raw.max(-1), -raw.min(-1)).astype(np.float64)
    return np.where(np.isnan(top), np.inf, top)
