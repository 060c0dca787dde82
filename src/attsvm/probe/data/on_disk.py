"""Activations on disk: .npz, .npy, .safetensors, folders of shards, Zarr; as a matrix and offsets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.numbers import Array, Values
from attsvm.numbers.archives import Archive, BadFile
from attsvm.numbers.files import archive_of, check_header, check_size, damage, memory, naming, take
from attsvm.numbers.stored.matrix import Matrix, Shards, as_matrix


def sequences(offsets: ArrayLike, N: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
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

Layout = tuple[Matrix, NDArray[np.intp]]
"""Matrix (N, d) and offsets (n + 1,) that fit to them."""


def opened(path: Path) -> Layout:
    """Matrix and offsets of activations on disk; see `TokenStore.open`."""
    if not path.is_dir():
        try:
            return _file(path)
        except FileNotFoundError:
            kinds = "an .npz, .npy or .safetensors file, a folder of .safetensors shards, or Zarr's"
            raise FileNotFoundError(f"{path} does not exist. Pass {kinds}.") from None
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


def _layout(tokens: Array, offsets: ArrayLike) -> Layout:
    rows = as_matrix(tokens)
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


def _array(path: Path) -> Values:
    """What a .npy file holds."""
    with archive_of(path) as (file, archive):
        return _taken(file, archive, ["keys"])[0]


def _taken(path: Path, archive: Archive, names: Sequence[str]) -> list[Values]:
    """Arrays of numbers, as maps where they lie in the file as they are."""
    headers = {name: archive.headers[name] for name in names}
    for name, header in headers.items():
        check_header(name, header)
    maps = [name for name, header in headers.items() if header.place is not None and header.size]
    return list(take(path, archive, names, maps).values())
