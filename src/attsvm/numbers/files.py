"""Read and write files of arrays: .npz, .npy, .safetensors, .json.

No file is trusted: names, types, shapes and sizes in its headers are checked before any array is read.
Nothing in a file is executed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path as File
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers.archives import (
    Archive,
    BadFile,
    Header,
    file_below,
    mapped,
    open_archive,
    tensors,
    widened,
)
from attsvm.numbers.atomic_write import replacing
from attsvm.numbers.stored import COPY_LIMIT

__all__ = ["BadFile", "array_names", "check_shapes", "naming", "read_arrays", "widened", "write_arrays"]

NUMBERS, TEXT = "biuf", "U"
PROBLEM = ("keys", "queries", "labels", "mask", "values", "selected", "v")
"""The arrays of tokens, a selection, and a head."""

_PATH = ("index", "W", "loss", "log_excess", "K", "Q", "v", "agreed", "heads")
KNOWN: Mapping[str, str] = (
    dict.fromkeys(PROBLEM, NUMBERS)
    | dict.fromkeys(("W", "multipliers", "required", "separable", "slack"), NUMBERS)  # Solution
    | dict.fromkeys((f"path_{name}" for name in _PATH), NUMBERS)  # Path
    | dict.fromkeys(("norm", "path_kind", "path_function", "path_stopped"), TEXT)
    | dict.fromkeys(("path_state_settings", "path_state_trained"), TEXT)
)
"""Every array that a file of this package may hold, and the kinds of its dtype, as NumPy's letters."""

_ARRAYS = frozenset([".npz", ".npy", ".safetensors", ".json", ".h5", ".hdf5", ".parquet", ".csv", ".txt"])
OTHER_FORMATS = _ARRAYS | {".pkl", ".pickle", ".joblib", ".pt", ".pth", ".ckpt", ".bin", ".zip"}
"""Suffixes of other formats. A file in our format does not get them."""

STATE = "path_state_"
"""The prefix of the arrays of a path's state, such as those of the optimizer."""

FREE, STRETCH = 2**30, 50
"""A compressed file may expand to FREE bytes, or to STRETCH times its size. Beyond, it may be a zip bomb."""


def read_arrays(
    file: str | os.PathLike[str], only: Collection[str] | None = None, *, in_place: bool = False
) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz, .npy, .safetensors or .json file by name; the array of an .npy file is the keys.

    Every name must be KNOWN and have its type, and all arrays together must fit into half of the machine's
    memory. bfloat16 becomes float32. Raises BadFile, or FileNotFoundError.
    only: the names to read; by default all.
    in_place: large keys and values that are not compressed become memory maps in the precision of the file,
        which take no memory.
    """
    with archive_of(file) as (path, archive):
        for name, header in archive.headers.items():
            check_header(name, header, _kinds(name))
        names = [name for name in archive.headers if only is None or name in only]
        large = [name for name in names if in_place and _can_be_mapped(name, archive.headers[name])]
        arrays = take(path, archive, names, large)
        return {name: array if name in large else _native(array) for name, array in arrays.items()}


def array_names(file: str | os.PathLike[str]) -> frozenset[str]:
    """The names of the arrays in a file; no array is read."""
    with archive_of(file) as (_, archive):
        return frozenset(archive.headers)


@contextmanager
def archive_of(
    file: str | os.PathLike[str], expected: str = "an .npz, .npy, .safetensors or .json file"
) -> Iterator[tuple[File, Archive]]:
    """Open an archive: its path and its headers. Every error inside becomes a BadFile that names the file.

    expected: what to pass, for the error where there is no file.
    """
    path = _existing(file, expected)
    with naming(path), path.open("rb") as stream, damage():
        yield path, open_archive(stream)


def take(
    path: File, archive: Archive, names: Sequence[str], maps: Collection[str]
) -> dict[str, NDArray[Any]]:
    """Arrays of an open archive as they are stored, those in `maps` as memory maps.

    The caller has checked their headers. Raises if the arrays do not fit into memory or a checksum is wrong.
    """
    read = [archive.headers[name] for name in names if name not in maps]
    check_size(sum(header.size for header in read), path.stat().st_size)
    for name in (name for name in names if name in maps):
        archive.verify(name)
    return {
        name: mapped(path, archive.headers[name]) if name in maps else archive.read(name) for name in names
    }


def write_arrays(
    file: str | os.PathLike[str], arrays: Mapping[str, Any], apart: Sequence[object] = ()
) -> File:
    """Write an .npz file and return its name, `file` with .npz at its end.

    The new file replaces an old one when it is complete.
    apart: stored arrays that are not written. Raises rather than replace the file of one of them.
    """
    path = name_to_write(file, ".npz")
    homes = [home for array in apart if (home := file_below(getattr(array, "array", array)))]
    if path.exists() and any(os.path.exists(home) and path.samefile(home) for home in homes):
        raise ValueError(f"{path} holds the tokens, which would be lost. Pass another name.")
    with replacing(path) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)
    return path


def write_tensors(
    file: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> File:
    """Write a .safetensors file with a digest and return its name, `file` with .safetensors at its end."""
    path = name_to_write(file, ".safetensors")
    with replacing(path) as temporary:
        temporary.write_bytes(tensors(arrays, metadata))
    return path


def read_text(file: str | os.PathLike[str], expected: str) -> str:
    """The text of a file in UTF-8, without a byte order mark. Errors name the file and say what to pass."""
    try:
        return File(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise BadFile(f"{os.fspath(file)} is not a text in UTF-8. Pass {expected}.") from None
    except OSError as error:
        reasons = {FileNotFoundError: "does not exist", IsADirectoryError: "is a folder"}
        reason = reasons.get(type(error), f"cannot be read ({error.strerror})")
        raise type(error)(f"{os.fspath(file)} {reason}. Pass {expected}.") from None


def name_to_write(file: str | os.PathLike[str], suffix: str) -> File:
    """The name with the suffix at its end. Raises for a name with the suffix of another format."""
    path = _ending(file, suffix)
    if path.name == suffix:
        raise IsADirectoryError(f"{os.fspath(file)!r} is no name of a file. Pass one that ends in {suffix}.")
    if path != File(file) and File(file).suffix.lower() in OTHER_FORMATS:
        name = File(file).with_suffix(suffix).name
        raise ValueError(f"{os.fspath(file)}: a {suffix} file is written, no other. Pass {name}.")
    return path


def _ending(file: str | os.PathLike[str], suffix: str) -> File:
    path = File(file)
    return path if path.suffix == suffix else path.parent / f"{path.name}{suffix}"


@contextmanager
def naming(file: str | os.PathLike[str]) -> Iterator[None]:
    """Turn errors about contents into a BadFile whose message begins with the file's name."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise BadFile(f"{os.fspath(file)}: {error}") from None


def check_shapes(
    arrays: Mapping[str, NDArray[Any]], axes: Mapping[str, str], sizes: Mapping[str, int], runs: int | None
) -> None:
    """Raise unless each array has the axes of its letters, after the runs axis where there are runs.

    sizes: the lengths of some letters; the first array with another letter sets its length.
    """
    lengths, lead = dict(sizes), () if runs is None else (runs,)
    for name in (name for name in axes if name in arrays):
        shape, letters = arrays[name].shape, axes[name]
        if len(shape) == len(lead) + len(letters):
            lengths = dict(zip(letters, shape[len(lead) :], strict=True)) | lengths
        if shape != (*lead, *(lengths.get(letter) for letter in letters)):
            expected = [f"runs={runs}"] * len(lead) + [f"{x}={lengths[x]}" for x in letters if x in lengths]
            axis_names = ", ".join([*["runs"] * len(lead), *letters])
            raise BadFile(f"{name} has shape {shape}, expected ({axis_names}) with {', '.join(expected)}.")


# ---------------------------------------------------------------------- checks


def _existing(file: str | os.PathLike[str], expected: str) -> File:
    """The file of this name, or the name that `write_arrays` or `write_tensors` would give it."""
    for path in (File(file), _ending(file, ".npz"), _ending(file, ".safetensors")):
        if path.is_file():
            return path
    reason = "is a folder" if File(file).is_dir() else "does not exist"
    raise FileNotFoundError(f"{os.fspath(file)} {reason}. Pass {expected}.")


@contextmanager
def damage() -> Iterator[None]:
    """Turn errors of any kind, of zip, zlib, headers or JSON, into a BadFile: the file is damaged."""
    try:
        yield
    except (BadFile, MemoryError):
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0].strip(" .") or type(error).__name__
        raise BadFile(f"the file is damaged ({reason}). Write it again.") from None


def _kinds(name: str) -> str:
    """The kinds of dtype, as NumPy's letters, of the array of this name; BadFile for an unknown name."""
    kinds = KNOWN.get(name, NUMBERS if name.startswith(STATE) else None)
    if kinds is None:
        folded = {array.casefold(): array for array in KNOWN}
        close = get_close_matches(name.casefold(), folded, 1)
        suggestion = f"Did you mean {folded[close[0]]!r}? " if close else ""
        raise BadFile(f"unknown array {name!r}. {suggestion}A problem has {', '.join(PROBLEM)}.")
    return kinds


def check_header(name: str, header: Header, kinds: str = NUMBERS) -> None:
    """Raise unless an array is of these kinds and the file has as many bytes as its shape needs."""
    if header.dtype.kind not in kinds:
        expected = "text" if kinds == TEXT else "real numbers or booleans"
        raise BadFile(f"{name} has dtype {header.dtype}. Save it as an array of {expected}.")
    if header.size != header.stored or min(header.shape, default=0) < 0:
        sizes = f"{name} of shape {header.shape} needs {header.size} bytes and has {header.stored}"
        raise BadFile(f"the file is damaged ({sizes}). Write it again.")


def _can_be_mapped(name: str, header: Header) -> bool:
    """Whether an array is large, and `Stored` can read a memory map of it."""
    floats = header.brain or header.dtype.kind == "f"
    large = len(header.shape) == 3 and math.prod(header.shape) > COPY_LIMIT
    return name in ("keys", "values") and floats and large and header.place is not None


def check_size(need: int, stored: int) -> None:
    """Raise if `need` bytes of arrays are too many to read from a file of `stored` bytes."""
    most = min(memory() // 2, max(FREE, STRETCH * stored))
    if need > most:
        stored_size, expanded, allowed = (f"{size / 2**20:,.4g} MiB" for size in (stored, need, most))
        raise BadFile(
            f"{stored_size} expand to {expanded}, of which {allowed} are allowed: half of the memory, and of "
            f"a compressed file {FREE >> 30} GiB or {STRETCH} times its size. Write it uncompressed, with "
            "np.savez; or fewer examples, in float32."
        )


def memory() -> int:
    """Bytes of memory of this machine; 8 GiB where the system does not report them."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**33


def _native(array: NDArray[Any]) -> NDArray[Any]:
    """The array in this machine's byte order, its booleans 0 or 1. Raises for text that is not ASCII."""
    if array.dtype.kind == TEXT and (np.atleast_1d(array).view(np.uint32) > 127).any():
        raise BadFile("a text is not ASCII. Write the file again.")  # some codes are no characters of Python
    if array.dtype == bool:
        return array.view(np.uint8) != 0
    odd = array.dtype.kind == "f" and array.dtype.itemsize not in (4, 8)  # LAPACK has singles and doubles
    return array.astype(np.float64 if odd else array.dtype.newbyteorder("="), copy=False)
