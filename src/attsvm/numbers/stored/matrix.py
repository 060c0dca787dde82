"""Matrices (N, d) that are read by rows, where they are: NumPy's arrays and maps, devices, shards."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import library
from attsvm.numbers.archives import BadFile, stamp, widened
from attsvm.numbers.stored import KEPT


class Matrix:
    """A matrix (N, d) that is read by slices, as one of NumPy's arrays; bfloat16 as its 16 bits."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape: tuple[int, int] = (int(array.shape[0]), int(array.shape[1]))
        self.brain = "bfloat16" in str(array.dtype)
        self.parts: Sequence[Any] = [array]
        self.stamps = [stamp(array)]

    @property
    def precision(self) -> str:
        """Name of the type of the numbers."""
        return str(self.array.dtype).rpartition(".")[2]

    @property
    def narrow(self) -> bool:
        """Whether products in float32 lose nothing that the numbers have."""
        return self.precision in ("float16", "bfloat16", "float32")

    @property
    def in_memory(self) -> NDArray[Any] | None:
        """All rows, where they lie one after the other in memory or in a map."""
        a = self.array
        if not (isinstance(a, np.ndarray) and a.flags.c_contiguous and a.flags.aligned and a.dtype.isnative):
            return None
        return np.asarray(self.read(slice(None)))

    def read(self, rows: slice) -> Any:
        """Rows (m, d) as they are stored."""
        return self._read(0, rows)

    def _read(self, number: int, rows: slice) -> NDArray[Any]:
        """Rows of one of the parts. A map of a file that became shorter would end the process."""
        array = self.parts[number]
        if self.stamps[number] is not None and stamp(array) != self.stamps[number]:
            raise ValueError("the file of the tokens changed after it was opened. Open it again.")
        try:
            part = np.asarray(array[rows])
        except Exception as error:
            if isinstance(array, np.ndarray):
                raise
            raise ValueError(f"{array!r} could not be read: {error}. Write it again.") from error
        return part.view(np.uint16) if self.brain else part

    def joined(self, parts: Sequence[Any]) -> Any:
        """Parts below one another."""
        return np.concatenate(parts)

    def at(self, places: NDArray[np.intp]) -> Matrix:
        """A copy of some rows."""
        return as_matrix(self.array[places])

    def numpy(self, part: Any) -> NDArray[Any]:
        """A part as one of NumPy's arrays, bfloat16 in float32."""
        return widened(part) if self.brain else part


class DeviceMatrix(Matrix):
    """A matrix of torch or JAX that stays on its device; its parts are arrays of that library."""

    def __init__(self, array: Any, held_by: library.Torch | library.Jax) -> None:
        super().__init__(array)
        self.library = held_by

    def read(self, rows: slice) -> Any:
        return self.array[rows]

    def joined(self, parts: Sequence[Any]) -> Any:
        return self.library.joined(parts)

    def numpy(self, part: Any) -> NDArray[Any]:
        return self.library.numpy(self.library.to(part, self.library.xp.float32) if self.brain else part)


class Shards(Matrix):
    """Matrices of one width and type, one below the other."""

    def __init__(self, parts: Sequence[Any]) -> None:
        widths, kinds = {p.shape[1] for p in parts}, {str(p.dtype) for p in parts}
        if len(widths) > 1 or len(kinds) > 1:
            found = f"the parts have widths {sorted(widths)} and types {sorted(kinds)}"
            raise BadFile(f"{found}. Write them alike.")
        super().__init__(parts[0])
        self.parts, self.stamps = parts, [stamp(part) for part in parts]
        self.ends = np.cumsum([len(p) for p in parts]).tolist()
        self.shape = (self.ends[-1], self.shape[1])

    @property
    def in_memory(self) -> NDArray[Any] | None:
        return None

    def read(self, rows: slice) -> Any:
        found, start = [], rows.start
        while start < rows.stop:
            shard = bisect_right(self.ends, start)
            first = self.ends[shard - 1] if shard else 0
            stop = min(rows.stop, self.ends[shard])
            found.append(self._read(shard, slice(start - first, stop - first)))
            start = stop
        return found[0] if len(found) == 1 else np.concatenate(found)


def as_matrix(x: Any) -> Matrix:
    """A matrix (N, d) where it is: NumPy's, a file's, a device's."""
    if isinstance(x, Matrix):
        return x
    if len(getattr(x, "shape", ())) != 2 or 0 in x.shape:
        raise ValueError(f"x has shape {getattr(x, 'shape', None)}. Pass one token per row, (N, d).")
    if library.home(x) in ("torch", "jax"):
        x = library.as_array(x)
        if not isinstance(x, np.ndarray):
            return DeviceMatrix(x, library.library_of(x))
    if not hasattr(x, "dtype") or (x.dtype.kind not in "fiub" and "bfloat16" not in str(x.dtype)):
        raise ValueError(f"x has dtype {getattr(x, 'dtype', None)}. Pass real numbers.")
    return Matrix(x)


def stacked(parts: Sequence[Any]) -> Matrix:
    """Matrices of one width below one another: a copy where they are few numbers, or lie on a device."""
    if not isinstance(parts[0], np.ndarray):
        return as_matrix(library.library_of(parts[0]).joined(parts))
    alike = len({part.dtype for part in parts}) == 1
    if alike and sum(map(len, parts)) * parts[0].shape[1] > KEPT:
        return Shards(parts)
    return Matrix(np.concatenate(parts))
