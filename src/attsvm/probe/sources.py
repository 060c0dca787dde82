"""Where the rows of a TokenStore lie: NumPy's arrays and maps, other libraries' arrays, devices, shards."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.files import archive_of, check_header, check_size, damage, memory, naming, take
from attsvm.numbers import library
from attsvm.numbers.archives import Archive, BadFile, stamp, widened


class Rows:
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

    def at(self, places: NDArray[np.intp]) -> Rows:
        """A copy of some rows."""
        return type(self)(self.array[places])

    def numpy(self, part: Any) -> NDArray[Any]:
        """A part as one of NumPy's arrays, bfloat16 in float32."""
        return widened(part) if self.brain else part


class DeviceRows(Rows):
    """A matrix of torch or JAX that stays on its device; its parts are arrays of that library."""

    def __init__(self, array: Any) -> None:
        super().__init__(array.detach() if hasattr(array, "detach") else array)
        self.library = library.library_of(array)

    def read(self, rows: slice) -> Any:
        return self.array[rows]

    def joined(self, parts: Sequence[Any]) -> Any:
        return self.library.joined(parts)

    def numpy(self, part: Any) -> NDArray[Any]:
        return self.library.numpy(self.library.to(part, self.library.xp.float32) if self.brain else part)


class Shards(Rows):
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


def as_rows(x: Any) -> Rows:
    """The rows of a matrix (N, d): NumPy's, a file's, a device's."""
    if isinstance(x, Rows):
        return x
    if len(getattr(x, "shape", ())) != 2 or 0 in x.shape:
        raise ValueError(f"x has shape {getattr(x, 'shape', None)}. Pass one token per row, (N, d).")
    if library.on_gpu(x):
        return DeviceRows(x)
    if library.home(x) in ("torch", "jax"):
        x = library.on_host(x)
    if not hasattr(x, "dtype") or (x.dtype.kind not in "fiub" and "bfloat16" not in str(x.dtype)):
        raise ValueError(f"x has dtype {getattr(x, 'dtype', None)}. Pass real numbers.")
    return Rows(x)


def sequences(offsets: Any, N: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First row and length of every sequence (n,), of offsets (n + 1,) that must go from 0 to N."""
    given = np.asarray(offsets)
    ends = given.astype(np.int64) if given.dtype.kind in "iu" else None  # unsigned differences have no sign
    if ends is None or ends.ndim != 1 or len(ends) < 2 or (ends[1:] <= ends[:-1]).any():
        raise ValueError(
            f"offsets has shape {given.shape} and dtype {given.dtype}. Pass n + 1 increasing integers."
        )
    if ends[0] != 0 or ends[-1] != N:
        raise ValueError(f"offsets go from {ends[0]} to {ends[-1]}, x has {N} rows.")
    return ends[:-1].astype(np.intp), np.diff(ends).astype(np.intp)


# ---------------------------------------------------------------------- files

Layout = tuple[Rows, NDArray[np.intp]]
"""Rows (N, d) and offsets (n + 1,) that fit to them."""


def opened(path: Path) -> Layout:
    """Rows and offsets of activations on disk; see `TokenStore.open`."""
    if not path.is_dir():
        return _file(path)
    if (path / "tokens.npy").exists():
        tokens, offsets = (_array(path / f"{name}.npy") for name in ("tokens", "offsets"))
        with naming(path):
            return _layout(tokens, offsets)
    if (path / "zarr.json").exists() or (path / ".zgroup").exists():
        return _zarr(path)
    shards = [_file(shard) for shard in sorted(path.glob("*.safetensors"))]
    if not shards:
        raise BadFile(f"{path}: neither .safetensors, tokens.npy nor Zarr. Pass a folder of shards.")
    first = np.cumsum([0, *(rows.shape[0] for rows, _ in shards)])
    joined = [offsets[:-1] + start for (_, offsets), start in zip(shards, first, strict=False)]
    with naming(path):
        return Shards([rows.array for rows, _ in shards]), np.concatenate([*joined, first[-1:]])


def _layout(tokens: Any, offsets: Any) -> Layout:
    rows = as_rows(tokens)
    starts, _ = sequences(offsets, rows.shape[0])
    return rows, np.append(starts, rows.shape[0])


def _zarr(path: Path) -> Layout:
    try:
        import zarr
    except ImportError as missing:
        raise ImportError(f"{path} is Zarr's: pip install zarr.") from missing
    with naming(path), damage():
        group = zarr.open(path, mode="r")
        if "tokens" not in group or "offsets" not in group:
            raise BadFile("not a group of `tokens` (N, d) and `offsets` (n + 1,). Save one.")
        tokens, offsets = group["tokens"], group["offsets"]
        at_once = math.prod(tokens.chunks) * tokens.dtype.itemsize + offsets.nbytes
        check_size(at_once, memory())
        ends = offsets[:]
    with naming(path):
        return _layout(tokens, ends)


def _file(path: Path) -> Layout:
    with archive_of(path) as (file, archive):
        held = archive.headers
        name = "tokens" if "tokens" in held else "keys"
        if name not in held:
            raise BadFile(f"it holds {', '.join(sorted(held))}. Save `tokens` (N, d) and `offsets` (n + 1,).")
        shape, padded = held[name].shape, len(held[name].shape) == 3 and "mask" not in held
        if not padded and (len(shape) != 2 or "offsets" not in held):
            wanted = "Save (N, d) and `offsets` (n + 1,), or (n, T, d)"
            raise BadFile(f"{name} has shape {shape}. {wanted}.")
        tokens, *rest = _taken(file, archive, [name] if padded else [name, "offsets"])
    with naming(path):
        if padded:
            n, T, d = shape
            return _layout(tokens.reshape(n * T, d), np.arange(n + 1) * T)
        return _layout(tokens, *rest)


def _array(path: Path) -> NDArray[Any]:
    """What a .npy file holds."""
    with archive_of(path) as (file, archive):
        return _taken(file, archive, ["keys"])[0]


def _taken(path: Path, archive: Archive, names: Sequence[str]) -> list[NDArray[Any]]:
    """Arrays of numbers, as maps where they lie in the file as they are."""
    headers = {name: archive.headers[name] for name in names}
    for name, header in headers.items():
        check_header(name, header)
    maps = [name for name, header in headers.items() if header.place is not None and header.size]
    return list(take(path, archive, names, maps).values())
