"""The formats of files of arrays: .npz, .npy, .safetensors and .json, opened without reading their arrays.

A .json file, which the explorer writes, is small and read as a whole.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray


class BadFile(ValueError):
    """A file with wrong contents: the message names the file, the error and the remedy."""


@dataclass(frozen=True)
class Header:
    """Type and shape of an array that has not been read, and how many bytes the file has for it.

    place: the byte where the numbers begin; None for numbers that are compressed or in Fortran order.
    brain: whether the 16 bits of each number are bfloat16.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    stored: int
    place: int | None
    brain: bool = False

    @property
    def size(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Archive:
    """An open file: the headers of its arrays, and a method that reads one array."""

    headers: dict[str, Header]

    def read(self, name: str) -> NDArray[Any]:
        raise NotImplementedError

    def verify(self, name: str) -> None:
        """Raise if the checksum of an array, where the format has one, does not fit."""


class Npz(Archive):
    """A zip archive of .npy files, as np.savez and np.savez_compressed write it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream, self.zip = stream, zipfile.ZipFile(stream)
        self._check_count()
        self.headers = {
            info.filename.removesuffix(".npy"): self._header(info) for info in self.zip.infolist()
        }

    def _header(self, info: zipfile.ZipInfo) -> Header:
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BadFile(f"{info.filename} is compressed in a way that NumPy does not use.")
        with self.zip.open(info) as data:
            shape, fortran, dtype = _npy_header(data)
            plain = info.compress_type == zipfile.ZIP_STORED and info.compress_size == info.file_size
            place = self._start(info) + data.tell() if plain and not fortran else None
            return Header(dtype, shape, info.file_size - data.tell(), place)

    def _check_count(self) -> None:
        """Compare the number of entries with the number at the file's end: a damaged length hides entries."""
        self.stream.seek(-(22 + len(self.zip.comment)), os.SEEK_END)
        (count,) = struct.unpack("<10xH", self.stream.read(12))
        if count not in (len(self.zip.infolist()), 0xFFFF):  # 0xFFFF: the number is in a zip64 record
            raise BadFile("the file is damaged (its directory is incomplete). Write it again.")

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Where the data of a member begin: after its header, whose name and extra field have any length."""
        self.stream.seek(info.header_offset + 26)
        return info.header_offset + 30 + sum(struct.unpack("<HH", self.stream.read(4)))

    def read(self, name: str) -> NDArray[Any]:
        with self.zip.open(f"{name}.npy") as data:
            return np.asarray(npy.read_array(data, allow_pickle=False))

    def verify(self, name: str) -> None:
        with self.zip.open(f"{name}.npy") as data:
            while data.read(1 << 18):  # at the end zipfile compares the checksum
                pass


class Npy(Archive):
    """One array, as np.save writes it: the keys."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        shape, fortran, dtype = _npy_header(stream)
        place = stream.tell()
        stored = os.fstat(stream.fileno()).st_size - place
        self.headers = {"keys": Header(dtype, shape, stored, None if fortran else place)}

    def read(self, name: str) -> NDArray[Any]:
        self.stream.seek(0)
        return np.asarray(npy.read_array(self.stream, allow_pickle=False))


class Safetensors(Archive):
    """A JSON header of names, types, shapes and offsets, then the bytes of all arrays."""

    TYPES: Mapping[str, str] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "BOOL": "|b1"} | {
        f"{kind}{8 * size}": f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)
    }

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        size, length = os.fstat(stream.fileno()).st_size, int.from_bytes(stream.read(8), "little")
        self.start = 8 + length
        if self.start > size:
            raise BadFile("the file is damaged (it ends before its header does). Write it again.")
        entries = json.loads(stream.read(length))
        self.metadata: dict[str, str] = entries.pop(METADATA, {})
        self.entries: dict[str, Any] = entries
        self.headers = {name: self._header(name, entry, size - self.start) for name, entry in entries.items()}

    def _header(self, name: str, entry: Mapping[str, Any], size: int) -> Header:
        begin, end = entry["data_offsets"]
        kind = entry["dtype"]
        if kind not in self.TYPES:
            raise BadFile(f"{name} has type {kind}. Save it as F64, F32, BF16 or F16.")
        if not 0 <= begin <= end <= size:
            raise BadFile(f"the file is damaged (it ends before its array {name} does). Write it again.")
        shape = tuple(map(int, entry["shape"]))
        return Header(np.dtype(self.TYPES[kind]), shape, end - begin, self.start + begin, kind == "BF16")

    def read(self, name: str) -> NDArray[Any]:
        header = self.headers[name]
        self.stream.seek(header.place or 0)
        array = np.frombuffer(self.stream.read(header.stored), header.dtype).reshape(header.shape)
        return widened(array) if header.brain else array

    def verify_digest(self) -> None:
        """Raise if the metadata has a digest that does not fit the contents."""
        metadata = {name: text for name, text in self.metadata.items() if name != DIGEST}
        self.stream.seek(self.start)
        if self.metadata.get(DIGEST, digest := _digest(self.entries, metadata, self.stream.read())) != digest:
            raise BadFile("the file is damaged (its digest does not fit). Write it again.")


class Json(Archive):
    """One object of nested lists of numbers or booleans by name, as the explorer saves it.

    The entry "explorer", the state of the page, is no array and is skipped.
    """

    LARGEST = 1 << 26

    def __init__(self, stream: BinaryIO) -> None:
        if os.fstat(stream.fileno()).st_size > self.LARGEST:
            raise BadFile(f"a .json file above {self.LARGEST >> 20} MiB. Save large arrays with np.savez.")
        entries = json.loads(stream.read())
        self.arrays = {name: self._array(name, entries[name]) for name in entries if name != PAGE}
        self.headers = {name: Header(a.dtype, a.shape, a.nbytes, None) for name, a in self.arrays.items()}

    def _array(self, name: str, entry: Any) -> NDArray[Any]:
        try:
            return np.asarray(entry)
        except ValueError:
            raise BadFile(f"the lists of {name} have different lengths. Pad them, and add a mask.") from None

    def read(self, name: str) -> NDArray[Any]:
        return self.arrays[name]


METADATA, DIGEST, ALIGNED = "__metadata__", "sha256", 64
"""Of a .safetensors file: the header's entry of texts, the digest's key in it, the body's alignment."""

Place = tuple[str, list[int], int]
"""The type of an array as .safetensors names it, its shape, and its size in bytes."""

PAGE = "explorer"
"""The entry of a .json file that is no array: the state of the explorer's page that saved it."""


def open_archive(stream: BinaryIO) -> Archive:
    """The archive in an open file; its first bytes tell the format."""
    start = stream.read(9)
    stream.seek(0)
    if start.lstrip()[:1] == b"{" and b"\0" not in start:  # .safetensors begins with a length, with zeros
        return Json(stream)
    if start[:4] in (b"PK\3\4", b"PK\5\6"):
        return Npz(stream)
    if start[:6] == b"\x93NUMPY":
        return Npy(stream)
    if start[8:] == b"{":
        return Safetensors(stream)
    raise BadFile(
        "neither a zip archive of arrays (.npz) nor .safetensors, .npy or .json: damaged, or of another "
        "kind. Write it again."
    )


def tensors(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """A .safetensors file with the digest of its contents; the same arrays give the same bytes."""
    names = {dtype: name for name, dtype in Safetensors.TYPES.items() if name != "BF16"}
    places = {name: (names[a.dtype.str], list(a.shape), a.nbytes) for name, a in arrays.items()}
    body = b"".join(array.tobytes() for array in arrays.values())
    digest = _digest(tensor_entries(places), metadata, body)
    return tensor_header(places, {**metadata, DIGEST: digest}) + body


def tensor_header(places: Mapping[str, Place], metadata: Mapping[str, str]) -> bytes:
    """The header of a .safetensors file: its length, then metadata and entries, padded to align the body."""
    text = json.dumps({METADATA: dict(metadata), **tensor_entries(places)}).encode("utf8")
    text += b" " * (-(8 + len(text)) % ALIGNED)
    return len(text).to_bytes(8, "little") + text


def tensor_entries(places: Mapping[str, Place]) -> dict[str, Any]:
    """Types, shapes and offsets of arrays that are written one after another."""
    ends = np.cumsum([0, *(size for *_, size in places.values())]).tolist()
    spans = pairwise(ends)
    return {
        name: {"dtype": kind, "shape": shape, "data_offsets": list(span)}
        for (name, (kind, shape, _)), span in zip(places.items(), spans, strict=True)
    }


def _digest(entries: Mapping[str, Any], metadata: Mapping[str, str], body: bytes) -> str:
    return hashlib.sha256(json.dumps([entries, metadata]).encode("utf8") + body).hexdigest()


def mapped(file: str | os.PathLike[str], header: Header) -> NDArray[Any]:
    """A memory map of an array: nothing is read.

    Reading a map beyond the end of its file would kill the process. This raises BadFile instead.
    """
    place = header.place or 0
    if place + header.size > os.stat(file).st_size:
        raise BadFile("the file ends before its arrays do. Write it again.")
    array: NDArray[Any] = np.memmap(file, header.dtype, "r", place, header.shape)
    if header.brain:
        from ml_dtypes import bfloat16  # JAX depends on it

        return array.view(bfloat16)
    return array


def file_below(array: Any) -> str | None:
    """The file of a memory map, or of a view of a memory map; None for other arrays."""
    base = array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap) and base.base is not None:
        base = base.base
    name = getattr(base, "filename", None)
    return os.fspath(name) if isinstance(base, np.memmap) and name is not None else None


def stamp(array: Any) -> tuple[int, int] | None:
    """The time of the last change and the size of the file of a memory map; None for other arrays."""
    name = file_below(array)
    if name is None:
        return None
    try:
        status = os.stat(name)
    except OSError:
        return (0, 0)
    return status.st_mtime_ns, status.st_size


def widened(bits: NDArray[Any]) -> NDArray[np.float32]:
    """bfloat16 numbers, as their bits, in float32: exact, since a bfloat16 is the upper half of a float32."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def _npy_header(data: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether the first axis varies fastest, and type."""
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    return read[npy.read_magic(data)](data)
