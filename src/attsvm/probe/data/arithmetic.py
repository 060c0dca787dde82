"""Where a probe's arithmetic happens: on the host with NumPy, or on the device that holds the tokens.

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
"""The functions of that library, by NumPy's names."""

Arithmetic: TypeAlias = "Host | Device"
Segmented: TypeAlias = "Segments | PaddedSegments"

Sums = TypeVar("Sums", bound=tuple[Array, ...])
"""A record of arrays that are added up over blocks."""

HOST_PART, DEVICE_PART = 1 << 21, 1 << 28
"""Numbers of a block: 8 MB and 1 GB in float32."""

CACHED = 1 << 16
"""Numbers that stay in a core's cache: the host multiplies so many at a time, which BLAS calls small."""

SHARES = 16
"""Parts into which the host's blocks are dealt, whatever the number of cores: sums do not depend on it."""


def arithmetic(rows: Matrix) -> Arithmetic:
    """The arithmetic for these rows."""
    return Device(rows) if isinstance(rows, DeviceMatrix) else Host(rows)


class Host:
    """NumPy: blocks that stay in the cache, segments of unequal lengths by `reduceat`."""

    xp: Library = np
    part, cached = HOST_PART, CACHED

    def __init__(self, rows: Matrix) -> None:
        self.brain, self.dtype = rows.brain, np.dtype(np.float32 if rows.narrow else np.float64)
        self.scratch = threading.local()

    def put(self, array: Array) -> Array:
        """One of NumPy's arrays where the arithmetic is."""
        return np.asarray(array)

    def numpy(self, array: Array) -> Values:
        return np.asarray(array)

    def scope(self) -> AbstractContextManager[object]:
        """Where numbers may have 64 bits."""
        return nullcontext()

    def narrowed(self, array: Array) -> Array:
        """In the precision of products."""
        return np.asarray(array, self.dtype)

    def factor(self, array: Array) -> Array:
        """One of NumPy's arrays where the arithmetic is, in the precision of products."""
        return self.narrowed(array)

    def widened(self, array: Array) -> Array:
        """In float64."""
        return np.asarray(array, np.float64)

    def through(self, raw: Array, centre: Array, across: Array) -> tuple[Array, Array]:
        """x = raw − centre (m, d), and its products x W (m, c): differences before products.

        x is this thread's memory, and lasts until its next call.
        """
        x, products = self._room(raw.shape), np.empty((len(raw), across.shape[1]), self.dtype)
        for piece in self.pieces(*raw.shape):
            self.centred(raw[piece], centre, x[piece])
            np.matmul(x[piece], across, out=products[piece])
        return x, products

    def _room(self, shape: tuple[int, int]) -> Array:
        room = getattr(self.scratch, "room", None)
        if room is None or room.size < shape[0] * shape[1]:
            room = self.scratch.room = np.empty(max(shape[0] * shape[1], 1), self.dtype)
        return room[: shape[0] * shape[1]].reshape(shape)

    def pieces(self, count: int, width: int) -> list[slice]:
        """Rows of a block in pieces that stay in the cache."""
        step = max(16, CACHED // width)
        return [slice(a, min(a + step, count)) for a in range(0, count, step)]

    def back(self, coefficients: Array, x: Array) -> Array:
        """C x (c, d) in float64 of coefficients (c, m)."""
        coefficients = self.narrowed(coefficients)
        total = np.zeros((len(coefficients), x.shape[1]))
        for piece in self.pieces(*x.shape):
            total += coefficients[:, piece] @ x[piece]
        return total

    def centred(self, raw: Array, centre: Array, out: Array = None) -> Array:
        """x − centre (m, d)."""
        if raw.itemsize == 2 and raw.dtype.kind in "fu" and self.dtype == np.float32:
            from attsvm.numbers.halves import BRAIN, HALF, widen

            out = np.empty(raw.shape, np.float32) if out is None else out
            bits = np.require(raw, None, ["C", "A"]).view(np.uint16)
            widen(bits, BRAIN if self.brain else HALF, centre, out)
            return out
        return np.subtract(raw, centre, dtype=self.dtype, out=out)

    def segments(self, lengths: NDArray[np.intp], again: bool = True) -> Segments:
        """Sums over sequences of these lengths; again: the same lengths will be asked for."""
        return Segments(lengths)

    def each(self, work: Callable[[slice], Sums], spans: list[slice]) -> Iterable[Sums]:
        """`work` on every span, on all cores; results in order."""
        if len(spans) < 2:
            return map(work, spans)
        shares = [spans[i::SHARES] for i in range(min(SHARES, len(spans)))]
        return in_threads(lambda share: total(map(work, share)), shares)


class Device:
    """torch or JAX, whichever holds the rows."""

    part = DEVICE_PART

    def __init__(self, rows: DeviceMatrix) -> None:
        self.library = rows.library
        self.xp, self.put, self.numpy = self.library.xp, self.library.put, self.library.numpy
        self.scope, self.widened = self.library.scope, self.library.double
        self.dtype = self.xp.float32 if rows.narrow else self.xp.float64
        self.known: dict[bytes, PaddedSegments] = {}

    def narrowed(self, array: Array) -> Array:
        return self.library.to(array, self.dtype)

    def factor(self, array: Array) -> Array:
        return self.narrowed(self.put(array))

    def centred(self, raw: Array, centre: Array) -> Array:
        return raw - centre  # half minus single is single, in one pass

    def pieces(self, count: int, width: int) -> list[slice]:
        return [slice(0, count)]

    def through(self, raw: Array, centre: Array, across: Array) -> tuple[Array, Array]:
        x = self.centred(raw, centre)
        return x, self.library.product(across.T, x.T).T  # twice as fast as x W for few columns

    def back(self, coefficients: Array, x: Array) -> Array:
        return self.widened(self.library.product(self.narrowed(coefficients), x))

    def segments(self, lengths: NDArray[np.intp], again: bool = True) -> PaddedSegments:
        """Made once for every block, and kept on the device."""
        if not again:
            return PaddedSegments(lengths, self)
        key = lengths.tobytes()
        if key not in self.known:
            self.known[key] = PaddedSegments(lengths, self)
        return self.known[key]

    def each(self, work: Callable[[slice], Sums], spans: list[slice]) -> Iterable[Sums]:
        return map(work, spans)


def total(parts: Iterable[Sums]) -> Sums:
    """The sum of records of arrays, entry by entry."""
    return reduce(lambda done, each: type(each)(*map(add, done, each)), parts)


class Segments:
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

    def __init__(self, lengths: NDArray[np.intp], where: Device) -> None:
        starts, longest = np.cumsum(lengths) - lengths, int(lengths.max())
        self.xp, self.shape = where.xp, (len(lengths), longest)
        self.equal = bool((lengths == longest).all())
        self.owner = where.put(np.repeat(np.arange(len(lengths)), lengths))
        if self.equal:
            return
        place = np.arange(longest) < lengths[:, None]
        self.gather = where.put(np.where(place, starts[:, None] + np.arange(longest), 0).ravel())
        self.place = where.put(place)

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
