"""Matrices (N, d) that are read by rows: NumPy arrays and memory maps, arrays on devices, shards of files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import library
from attsvm.numbers.archives import BadFile, stamp, widened
from attsvm.numbers.stored import COPY_LIMIT


class Matrix:
    """A matrix (N, d) that is read by slices, as NumPy arrays; bfloat16 as its 16 bits."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape: tuple[int, int] = (int(array.shape[0]), int(array.shape[1]))
        self.brain = "bfloat16" in str(array.dtype)
        self.shards: Sequence[Any] = [array]
        self.stamps = [stamp(array)]

    @property
    def precision(self) -> str:
        """Name of the type of the numbers."""
        return str(self.array.dtype).rpartition(".")[2]

    @property
    def narrow(self) -> bool:
        """Whether float32 holds the numbers exactly."""
        return self.precision in ("float16", "bfloat16", "float32")

    @property
    def in_memory(self) -> NDArray[Any] | None:
        """All rows, if they are contiguous in memory or in a map; otherwise None."""
        a = self.array
        if not (isinstance(a, np.ndarray) and a.flags.c_contiguous and a.flags.aligned and a.dtype.isnative):
            return None
        return np.asarray(self.read(slice(None)))

    def read(self, rows: slice) -> Any:
        """Rows (m, d) as they are stored."""
        return self._read(0, rows)

    def _read(self, number: int, rows: slice) -> NDArray[Any]:
        """Rows of one shard. Raises if its file changed: a map of a shorter file would kill the process."""
        array = self.shards[number]
        if self.stamps[number] is not None and stamp(array) != self.stamps[number]:
            raise ValueError("the file of the tokens changed after it was opened. Open it again.")
        try:
            block = np.asarray(array[rows])
        except Exception as error:
            if isinstance(array, np.ndarray):
                raise
            raise ValueError(f"{array!r} could not be read: {error}. Write it again.") from error
        return block.view(np.uint16) if self.brain else block

    def joined(self, blocks: Sequence[Any]) -> Any:
        """Blocks of rows, one below the other."""
        return np.concatenate(blocks)

    def at(self, places: NDArray[np.intp]) -> Matrix:
        """A copy of some rows."""
        return as_matrix(self.array[places])

    def numpy(self, block: Any) -> NDArray[Any]:
        """A block of rows as a NumPy array, bfloat16 in float32."""
        return widened(block) if self.brain else block


class DeviceMatrix(Matrix):
    """A matrix of torch or JAX that stays on its device; its blocks are arrays of that library."""

    def __init__(self, array: Any) -> None:
        super().__init__(array)
        self.library = library.library_of(array)

    def read(self, rows: slice) -> Any:
        return self.array[rows]

    def joined(self, blocks: Sequence[Any]) -> Any:
        return self.library.joined(blocks)

    def numpy(self, block: Any) -> NDArray[Any]:
        return self.library.numpy(self.library.to(block, self.library.xp.float32) if self.brain else block)


class Shards(Matrix):
    """Matrices of one width and type, one below the other."""

    def __init__(self, shards: Sequence[Any]) -> None:
        widths, kinds = {shard.shape[1] for shard in shards}, {str(shard.dtype) for shard in shards}
        if len(widths) > 1 or len(kinds) > 1:
            shapes = f"the parts have widths {sorted(widths)} and types {sorted(kinds)}"
            raise BadFile(f"{shapes}. Write them alike.")
        super().__init__(shards[0])
        self.shards, self.stamps = shards, [stamp(shard) for shard in shards]
        self.ends = np.cumsum([len(shard) for shard in shards]).tolist()
        self.shape = (self.ends[-1], self.shape[1])

    @property
    def in_memory(self) -> NDArray[Any] | None:
        return None

    def read(self, rows: slice) -> Any:
        blocks, start = [], rows.start
        while start < rows.stop:
            shard = bisect_right(self.ends, start)
            first = self.ends[shard - 1] if shard else 0
            stop = min(rows.stop, self.ends[shard])
            blocks.append(self._read(shard, slice(start - first, stop - first)))
            start = stop
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks)


def as_matrix(x: Any) -> Matrix:
    """A `Matrix` of any matrix (N, d), which stays in memory, in its file or on its device."""
    if isinstance(x, Matrix):
        return x
    if len(getattr(x, "shape", ())) != 2 or 0 in x.shape:
        raise ValueError(f"x has shape {getattr(x, 'shape', None)}. Pass one token per row, (N, d).")
    if library.home(x) in ("torch", "jax"):
        x = library.as_array(x)
        if not isinstance(x, np.ndarray):
            return DeviceMatrix(x)
    if not hasattr(x, "dtype") or (x.dtype.kind not in "fiub" and "bfloat16" not in str(x.dtype)):
        raise ValueError(f"x has dtype {getattr(x, 'dtype', None)}. Pass real numbers.")
    return Matrix(x)


def stacked(matrices: Sequence[Any]) -> Matrix:
    """Matrices of one width, one below the other: copied if they are small or on a device."""
    if not isinstance(matrices[0], np.ndarray):
        return as_matrix(library.library_of(matrices[0]).joined(matrices))
    one_dtype = len({matrix.dtype for matrix in matrices}) == 1
    if one_dtype and sum(map(len, matrices)) * matrices[0].shape[1] > COPY_LIMIT:
        return Shards(matrices)
    return Matrix(np.concatenate(matrices))
