"""Array backends of a probe: NumPy on the host, or the library of the device that holds the tokens.

Tokens are multiplied in float32 where they are stored in at most that, else in float64; every sum over the
tokens of a sequence, over sequences and over blocks is in float64.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import reduce
from operator import add
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Array, Float, Values
from attsvm.numbers.stored.matrix import DeviceMatrix, Matrix
from attsvm.numbers.threads import in_threads

Library = Any
"""The functions of an array library, by NumPy's names."""

Backend: TypeAlias = "Host | Device"
SegmentSums: TypeAlias = "RaggedSegments | PaddedSegments"

Record = TypeVar("Record", bound=tuple[Array, ...])
"""A record of arrays that are added up over blocks."""

HOST_BLOCK, DEVICE_BLOCK = 1 << 21, 1 << 28
"""Numbers of a block: 8 MB and 1 GB in float32."""

CACHED = 1 << 16
"""Numbers that stay in a core's cache: the host multiplies this many at a time."""

SHARES = 16
"""Groups of blocks on the host. Their number is fixed, so sums do not depend on the number of cores."""


def backend_of(rows: Matrix) -> Backend:
    """The backend that holds these rows."""
    return Device(rows) if isinstance(rows, DeviceMatrix) else Host(rows)


class Host:
    """NumPy: blocks that stay in the cache, sums over sequences of unequal lengths by `reduceat`."""

    xp: Library = np
    block, cached = HOST_BLOCK, CACHED

    def __init__(self, rows: Matrix) -> None:
        self.brain, self.dtype = rows.brain, np.dtype(np.float32 if rows.narrow else np.float64)
        self.scratch = threading.local()

    def put(self, array: Array) -> Array:
        """A NumPy array as an array of the backend."""
        return np.asarray(array)

    def numpy(self, array: Array) -> Values:
        return np.asarray(array)

    def scope(self) -> AbstractContextManager[object]:
        """A context in which numbers may have 64 bits, which JAX needs."""
        return nullcontext()

    def narrowed(self, array: Array) -> Array:
        """The array in the precision of products: float32 or float64."""
        return np.asarray(array, self.dtype)

    def operand(self, array: Array) -> Array:
        """A NumPy array as an array of the backend, in the precision of products."""
        return self.narrowed(array)

    def widened(self, array: Array) -> Array:
        """The array in float64."""
        return np.asarray(array, np.float64)

    def products(self, raw: Array, centre: Array, matrix: Array) -> tuple[Array, Array]:
        """x = raw − centre (m, d), and its products x W (m, c): differences before products.

        x is memory of this thread: the next call overwrites it.
        """
        x, products = self._memory(raw.shape), np.empty((len(raw), matrix.shape[1]), self.dtype)
        for piece in self.pieces(*raw.shape):
            self.centred(raw[piece], centre, x[piece])
            np.matmul(x[piece], matrix, out=products[piece])
        return x, products

    def _memory(self, shape: tuple[int, int]) -> Array:
        memory = getattr(self.scratch, "memory", None)
        if memory is None or memory.size < shape[0] * shape[1]:
            memory = self.scratch.memory = np.empty(max(shape[0] * shape[1], 1), self.dtype)
        return memory[: shape[0] * shape[1]].reshape(shape)

    def pieces(self, count: int, width: int) -> list[slice]:
        """Slices of the rows of a block, each small enough for the cache."""
        step = max(16, CACHED // width)
        return [slice(a, min(a + step, count)) for a in range(0, count, step)]

    def weighted_sums(self, coefficients: Array, x: Array) -> Array:
        """C x (c, d) in float64 of coefficients (c, m)."""
        coefficients = self.narrowed(coefficients)
        total = np.zeros((len(coefficients), x.shape[1]))
        for piece in self.pieces(*x.shape):
            total += coefficients[:, piece] @ x[piece]
        return total

    def centred(self, raw: Array, centre: Array, out: Array = None) -> Array:
        """x − centre (m, d)."""
        if raw.itemsize == 2 and raw.dtype.kind in "fu" and self.dtype == np.float32:
            from attsvm.numbers.compiled import BRAIN, HALF, widen

            out = np.empty(raw.shape, np.float32) if out is None else out
            bits = np.require(raw, None, ["C", "A"]).view(np.uint16)
            widen(bits, BRAIN if self.brain else HALF, centre, out)
            return out
        return np.subtract(raw, centre, dtype=self.dtype, out=out)

    def segments(self, lengths: NDArray[np.intp]) -> RaggedSegments:
        """Sums over sequences of these lengths."""
        return RaggedSegments(lengths)

    def map_blocks(self, work: Callable[[slice], Record], spans: list[slice]) -> Iterable[Record]:
        """`work` of every span, on all cores, in order; on several cores the sums of groups of spans."""
        if len(spans) < 2:
            return map(work, spans)
        groups = [spans[i::SHARES] for i in range(min(SHARES, len(spans)))]
        return in_threads(lambda group: total(map(work, group)), groups)


class Device:
    """torch or JAX, whichever holds the rows."""

    block = DEVICE_BLOCK

    def __init__(self, rows: DeviceMatrix) -> None:
        self.library = rows.library
        self.xp, self.put, self.numpy = self.library.xp, self.library.put, self.library.numpy
        self.scope, self.widened = self.library.scope, self.library.double
        self.dtype = self.xp.float32 if rows.narrow else self.xp.float64
        self.padded: dict[bytes, PaddedSegments] = {}

    def narrowed(self, array: Array) -> Array:
        return self.library.to(array, self.dtype)

    def operand(self, array: Array) -> Array:
        return self.narrowed(self.put(array))

    def centred(self, raw: Array, centre: Array) -> Array:
        return raw - centre  # half minus single is single, in one pass

    def pieces(self, count: int, width: int) -> list[slice]:
        return [slice(0, count)]

    def products(self, raw: Array, centre: Array, matrix: Array) -> tuple[Array, Array]:
        x = self.centred(raw, centre)
        return x, self.library.product(matrix.T, x.T).T  # twice as fast as x W for few columns

    def weighted_sums(self, coefficients: Array, x: Array) -> Array:
        return self.widened(self.library.product(self.narrowed(coefficients), x))

    def segments(self, lengths: NDArray[np.intp]) -> PaddedSegments:
        """Those of a block are made once and stay on the device."""
        key = lengths.tobytes()
        if key not in self.padded:
            self.padded[key] = PaddedSegments(lengths, self)
        return self.padded[key]

    def map_blocks(self, work: Callable[[slice], Record], spans: list[slice]) -> Iterable[Record]:
        return map(work, spans)


def total(records: Iterable[Record]) -> Record:
    """The sum of records of arrays, entry by entry."""
    return reduce(lambda sums, record: type(record)(*map(add, sums, record)), records)


class RaggedSegments:
    """Sums and maxima over the tokens of each sequence; tokens are the last axis."""

    def __init__(self, lengths: NDArray[np.intp]) -> None:
        self.lengths, self.starts = lengths, np.cumsum(lengths) - lengths

    def total(self, of_tokens: Float) -> Float:
        """(…, m) → (…, b)."""
        return np.add.reduceat(of_tokens, self.starts, axis=-1)

    def top(self, of_tokens: Float) -> Float:
        """(…, m) → (…, b)."""
        return np.maximum.reduceat(of_tokens, self.starts, axis=-1)

    def spread(self, of_sequences: Float) -> Float:
        """(…, b) → (…, m)."""
        return np.repeat(of_sequences, self.lengths, axis=-1)


class PaddedSegments:
    """The same on a device: tokens are gathered into rows of equal length, so that no sum races."""

    def __init__(self, lengths: NDArray[np.intp], backend: Device) -> None:
        starts, longest = np.cumsum(lengths) - lengths, int(lengths.max())
        self.xp, self.shape = backend.xp, (len(lengths), longest)
        self.equal = bool((lengths == longest).all())
        self.owner = backend.put(np.repeat(np.arange(len(lengths)), lengths))
        if self.equal:
            return
        place = np.arange(longest) < lengths[:, None]
        self.gather = backend.put(np.where(place, starts[:, None] + np.arange(longest), 0).ravel())
        self.place = backend.put(place)

    def _rows(self, of_tokens: Array, instead: float) -> Array:
        if self.equal:
            return of_tokens.reshape(*of_tokens.shape[:-1], *self.shape)
        rows = of_tokens[..., self.gather].reshape(*of_tokens.shape[:-1], *self.shape)
        return self.xp.where(self.place, rows, instead)

    def total(self, of_tokens: Array) -> Array:
        return self._rows(of_tokens, 0.0).sum(-1)

    def top(self, of_tokens: Array) -> Array:
        return self.xp.amax(self._rows(of_tokens, -np.inf), -1)

    def spread(self, of_sequences: Array) -> Array:
        return of_sequences[..., self.owner]
