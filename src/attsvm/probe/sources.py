"""Where the rows of a TokenStore lie: NumPy's arrays and maps, other libraries' arrays, devices, shards."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.files import naming
from attsvm.numbers.archives import BadFile, mapped, open_archive, widened


class Rows:
    """A matrix (N, d) that is read by slices, as one of NumPy's arrays; bfloat16 as its 16 bits."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.shape: tuple[int, int] = (int(array.shape[0]), int(array.shape[1]))
        self.brain = "bfloat16" in str(array.dtype)

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
        part = np.asarray(self.array[rows])
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

    def read(self, rows: slice) -> Any:
        return self.array[rows]

    @classmethod
    def below(cls, parts: Sequence[Any]) -> DeviceRows:
        """Matrices of one library below one another."""
        home = type(parts[0]).__module__.partition(".")[0]
        library = sys.modules["torch"] if home == "torch" else sys.modules["jax"].numpy
        return cls(library.concatenate(parts))

    def joined(self, parts: Sequence[Any]) -> Any:
        return type(self).below(parts).array

    def numpy(self, part: Any) -> NDArray[Any]:
        if hasattr(part, "cpu"):
            part = part.float() if self.brain else part
            return np.asarray(part.cpu().numpy())
        return np.asarray(part).astype(np.float32) if self.brain else np.asarray(part)


class Shards(Rows):
    """Matrices of one width and type, one below the other."""

    def __init__(self, parts: Sequence[Any]) -> None:
        widths, kinds = {p.shape[1] for p in parts}, {str(p.dtype) for p in parts}
        if len(widths) > 1 or len(kinds) > 1:
            found = f"the parts have widths {sorted(widths)} and types {sorted(kinds)}"
            raise BadFile(f"{found}. Write them alike.")
        super().__init__(parts[0])
        self.parts = parts
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
            part = np.asarray(self.parts[shard][start - first : stop - first])
            found.append(part.view(np.uint16) if self.brain else part)
            start = stop
        return found[0] if len(found) == 1 else np.concatenate(found)


def as_rows(x: Any) -> Rows:
    """The rows of a matrix (N, d): NumPy's, a file's, a device's."""
    if isinstance(x, Rows):
        return x
    if len(getattr(x, "shape", ())) != 2 or 0 in x.shape:
        raise ValueError(f"x has shape {getattr(x, 'shape', None)}. Pass one token per row, (N, d).")
    if hasattr(x, "devices") and all(device.platform == "cpu" for device in x.devices()):
        x = np.asarray(x)  # JAX on the host: no copy
    if hasattr(x, "is_cuda") or hasattr(x, "devices"):
        return DeviceRows(x)
    if not hasattr(x, "dtype") or (x.dtype.kind not in "fiub" and "bfloat16" not in str(x.dtype)):
        raise ValueError(f"x has dtype {getattr(x, 'dtype', None)}. Pass real numbers.")
    return Rows(x)


# ---------------------------------------------------------------------- files


def opened(path: Path) -> tuple[Rows, NDArray[np.intp]]:
    """Rows and offsets of activations on disk; see `TokenStore.open`."""
    if path.is_dir():
        return _folder(path)
    rows, offsets = _file(path)
    return as_rows(rows), offsets


def _folder(path: Path) -> tuple[Rows, NDArray[np.intp]]:
    if (path / "tokens.npy").exists():
        tokens, offsets = _arrays(path / "tokens.npy")["keys"], _arrays(path / "offsets.npy")["keys"]
        return as_rows(tokens), np.asarray(offsets)
    if (path / "zarr.json").exists() or (path / ".zgroup").exists():
        return _zarr(path)
    shards = sorted(path.glob("*.safetensors"))
    if not shards:
        raise BadFile(f"{path}: neither .safetensors, tokens.npy nor Zarr. Pass a folder of shards.")
    rows, offsets = zip(*map(_file, shards), strict=True)
    first = np.cumsum([0, *(int(each[-1]) for each in offsets)])
    joined = [each[:-1] + start for each, start in zip(offsets, first, strict=False)]
    return Shards(rows), np.concatenate([*joined, first[-1:]])


def _zarr(path: Path) -> tuple[Rows, NDArray[np.intp]]:
    try:
        import zarr
    except ImportError as missing:
        raise ImportError(f"{path} is Zarr's: pip install zarr.") from missing
    group = zarr.open(path, mode="r")
    if "tokens" not in group or "offsets" not in group:
        raise BadFile(f"{path}: not a group of `tokens` (N, d) and `offsets` (n + 1,). Save one.")
    return as_rows(group["tokens"]), np.asarray(group["offsets"][:])


def _file(path: Path) -> tuple[Any, NDArray[np.intp]]:
    arrays = _arrays(path)
    with naming(path):
        tokens = arrays.get("tokens", arrays.get("keys"))
        if tokens is None:
            names = ", ".join(sorted(arrays))
            raise BadFile(f"it holds {names}. Save `tokens` (N, d) and `offsets` (n + 1,).")
        if tokens.ndim == 3 and "mask" not in arrays:
            n, T, d = tokens.shape
            return tokens.reshape(n * T, d), np.arange(n + 1) * T
        if tokens.ndim != 2 or "offsets" not in arrays:
            wanted = "Save (N, d) and `offsets` (n + 1,), or (n, T, d)"
            raise BadFile(f"tokens has shape {tokens.shape}. {wanted}.")
        return tokens, np.asarray(arrays["offsets"])


def _arrays(path: Path) -> dict[str, Any]:
    """Every array of a file: maps where the numbers lie in it as they are."""
    with naming(path), path.open("rb") as stream:
        archive = open_archive(stream)
        return {
            name: archive.read(name) if header.place is None else mapped(path, header)
            for name, header in archive.headers.items()
        }
