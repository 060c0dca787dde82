"""TokenStore: token sequences of any lengths that stay where they are, in the precision they have.

Hidden states of requests are read as vLLM's `extract_hidden_states` writes them, one .safetensors file each:

    hidden_states (T, layers, d)        token_ids (T,)

A file REQUEST.safetensors is being written while somebody holds REQUEST.safetensors.lock.
Reference: vLLM, features/speculative_decoding/extract_hidden_states, 2026.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm._support.validation import is_integer
from attsvm.numbers import Array, Bool, Index, Values
from attsvm.numbers.archives import Archive, BadFile, Header, mapped
from attsvm.numbers.files import archive_of, check_header, check_size, damage, memory, naming, take
from attsvm.numbers.stored import COPY_LIMIT
from attsvm.numbers.stored.matrix import Matrix, Shards, as_matrix

STATES = "hidden_states"
"""The array of a request's file."""


class TokenStore:
    """n sequences of d-wide tokens: rows of one matrix, of which nothing is read before it is needed.

        store = TokenStore.open("activations")              # a folder of shards, .safetensors, .npy
        store = TokenStore.from_flat(x, offsets)            # x (N, d), offsets (n + 1,)
        store[3]  (T_3, d) array        store[1:5], store[indices], store[mask]  TokenStore

    x may be a memory map, a Zarr array, a tensor of torch or JAX (it stays on its device), or anything with
    shape, dtype and slices, in float16, bfloat16, float32 or float64. scikit-learn's splitters can index it.

    rows: the matrix; starts, lengths (n,): first row and number of tokens of every sequence.
    given_mask (n, T): where the caller's tokens stood in a padded array; None for the first places.
    """

    def __init__(self, rows: Matrix, starts: Index, lengths: Index, given_mask: Bool | None = None) -> None:
        self.rows, self.starts, self.lengths, self.given_mask = rows, starts, lengths, given_mask

    @classmethod
    def from_flat(cls, x: Array, offsets: ArrayLike) -> TokenStore:
        """Sequence i is x[offsets[i] : offsets[i + 1]]; x (N, d), offsets (n + 1,) from 0 to N."""
        rows = as_matrix(x)
        return cls(rows, *starts_and_lengths(offsets, rows.shape[0]))

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, layer: int | None = None, skip: int = 0) -> TokenStore:
        """Activations on disk, mapped and not read; an .npz file is read once, to compare its check sum.

        A folder of .safetensors shards (`tokens` (N, d) and `offsets` (n + 1,) each) in the order of their
        names, or of tokens.npy and offsets.npy; or one such file; a Zarr group of `tokens` and `offsets`; or
        one array (n, T, d), as in a .npy file or the `keys` of a file of `Tokens` without a mask.
        A folder of vLLM's files, `hidden_states` (T, layers, d) of one request each, in the order of their
        names: layer is the position on the axis of layers, skip the number of first tokens to leave out. A
        file that the server is writing, by the lock beside it, is waited for. Up to 8 million numbers are
        read at once.
        """
        store = _opened(Path(path), layer, skip)
        return cls(store.rows, store.starts, store.lengths)

    # ------------------------------------------------------------------ as scikit-learn sees it

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def shape(self) -> tuple[int]:
        """(n,), which scikit-learn's splitters read."""
        return (len(self),)

    @property
    def width(self) -> int:
        """d, the numbers of a token."""
        return int(self.rows.shape[1])

    @property
    def numbers(self) -> int:
        """How many numbers all tokens hold together."""
        return int(self.lengths.sum()) * self.width

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Values: ...
    @overload
    def __getitem__(self, key: slice | ArrayLike | tuple[ArrayLike, ...]) -> TokenStore: ...
    def __getitem__(self, key: Array) -> Values | TokenStore:
        if isinstance(key, tuple) and len(key) == 2 and key[1] is Ellipsis:
            key = key[0]  # scikit-learn asks for store[indices, ...]
        if is_integer(key):
            start = int(self.starts[key])
            return self.rows.numpy(self.rows.read(slice(start, start + int(self.lengths[key]))))
        if not isinstance(key, slice):
            axes, key = isinstance(key, tuple), np.asarray(key, None if np.size(key) else np.intp)
            if axes or key.ndim != 1 or key.dtype.kind not in "biu":
                raise IndexError(
                    "a store has one axis. Pass a number, a slice, numbers or truth values (n,)."
                )
        mask = None if self.given_mask is None else self.given_mask[key]
        return TokenStore(self.rows, self.starts[key], self.lengths[key], mask)

    def __iter__(self) -> Iterator[Values]:
        return (self[i] for i in range(len(self)))

    def __repr__(self) -> str:
        tokens = f"{int(self.lengths.sum()):,} tokens × {self.width:,}"
        return f"TokenStore({len(self):,} sequences, {tokens}, {self.rows.precision})"

    # ------------------------------------------------------------------ blocks

    def spans(self, numbers: int) -> list[slice]:
        """Consecutive sequences in groups of about `numbers` numbers, at least one sequence in each."""
        size = np.cumsum(self.lengths) * self.width
        spans, start = [], 0
        while start < len(self):
            offset = size[start - 1] if start else 0
            stop = max(start + 1, int(np.searchsorted(size, offset + numbers, side="right")))
            spans.append(slice(start, stop))
            start = stop
        return spans

    def read(self, span: slice) -> Array:
        """The tokens of consecutive sequences as one array (m, d), in the precision of the store."""
        starts, lengths = self.starts[span], self.lengths[span]
        ends = starts + lengths
        breaks = np.flatnonzero(starts[1:] != ends[:-1]) + 1
        if not len(breaks):
            return self.rows.read(slice(int(starts[0]), int(ends[-1])))
        rows = self.rows.in_memory
        if rows is not None:  # one indexing of many rows is faster than many slices
            return rows[np.repeat(ends - np.cumsum(lengths), lengths) + np.arange(lengths.sum())]
        first, last = np.append(0, breaks), np.append(breaks, len(starts)) - 1
        stretches = zip(starts[first].tolist(), ends[last].tolist(), strict=True)
        return self.rows.joined([self.rows.read(slice(a, b)) for a, b in stretches])

    def numpy(self, span: slice) -> Values:
        """What `read` gives as a NumPy array, bfloat16 in float32."""
        return self.rows.numpy(self.read(span))

    def plain(self, span: slice) -> tuple[Values, Index]:
        """Rows for a compiled loop (N, d), 16-bit floats as uint16, and the first row of each sequence."""
        rows, starts = self.rows.in_memory, self.starts[span]
        if rows is None or not (self.rows.narrow or rows.dtype == np.float64):
            rows, starts = self.read(span), np.cumsum(self.lengths[span]) - self.lengths[span]
        if rows.dtype == np.float16:
            rows = rows.view(np.uint16)
        elif not (self.rows.narrow or rows.dtype == np.float64):
            rows = rows.astype(np.float64)
        rows = np.require(rows, rows.dtype.newbyteorder("="), ["C", "A"]).view()
        rows.flags.writeable = False  # the flag is part of the type: one type, one compilation
        return rows, starts

    # ------------------------------------------------------------------ other forms

    @property
    def last_tokens(self) -> TokenStore:
        """Sequences of one token, the last one of each."""
        return TokenStore(self.rows, self.starts + self.lengths - 1, np.ones_like(self.lengths))

    @cached_property
    def mask(self) -> Bool:
        """Where the tokens stand in a padded array, bool (n, T)."""
        if self.given_mask is not None:
            return self.given_mask
        return np.arange(self.lengths.max(initial=0)) < self.lengths[:, None]

    def padded(self, of_tokens: Values) -> Values:
        """Numbers of all tokens (N, …) laid out as (n, T, …), zero where there is no token."""
        out = np.zeros((*self.mask.shape, *of_tokens.shape[1:]), of_tokens.dtype)
        out[self.mask] = of_tokens
        return out


def raise_not_finite(store: TokenStore, span: slice) -> None:
    """Raise ValueError with the first sequence of a span whose numbers are not finite."""
    for i in range(*span.indices(len(store))):
        if not np.isfinite(np.asarray(store[i], np.float64)).all():
            raise ValueError(f"sequence {i} has an entry that is NaN, infinite or no real number. Remove it.")
    raise ValueError("the tokens are too large for their precision. Divide them by their size.")


def starts_and_lengths(offsets: ArrayLike, N: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """First row and length of every sequence (n,), of offsets (n + 1,) that must go from 0 to N."""
    array = np.asarray(offsets)
    ends = array.astype(np.int64) if array.dtype.kind in "iu" else None  # unsigned differences have no sign
    if ends is None or ends.ndim != 1 or len(ends) < 2 or (ends[1:] <= ends[:-1]).any():
        raise ValueError(
            f"offsets has shape {array.shape} and dtype {array.dtype}. Pass n + 1 increasing integers."
        )
    if ends[0] != 0 or ends[-1] != N:
        raise ValueError(f"offsets go from {ends[0]} to {ends[-1]}, x has {N} rows.")
    return ends[:-1].astype(np.intp), np.diff(ends).astype(np.intp)


# ---------------------------------------------------------------------- files


def _opened(path: Path, layer: int | None, skip: int) -> TokenStore:
    """Activations on disk; see `TokenStore.open`."""
    if not (is_integer(skip) and skip >= 0):
        raise ValueError(f"skip is {skip!r}. Pass how many first tokens to leave out, 0 or more.")
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    for file in files:
        wait_until_written(file)
    if _is_of_requests(path):
        return _of_requests(path, files, layer, skip)
    if path.is_dir() and not any(path.iterdir()):
        raise BadFile(f"{path} is empty. Pass a folder of shards, or of a server's requests.")
    if layer is not None or skip:
        raise BadFile(f"{path}: layer and skip are for requests, files of hidden_states (T, layers, d).")
    if not path.is_dir():
        try:
            return _file(path)
        except FileNotFoundError:
            kinds = "an .npz, .npy or .safetensors file, a folder of .safetensors shards, or Zarr's"
            raise FileNotFoundError(f"{path} does not exist. Pass {kinds}.") from None
    if (path / "tokens.npy").exists():
        tokens, offsets = (_array(path / f"{name}.npy") for name in ("tokens", "offsets"))
        with naming(path):
            return TokenStore.from_flat(tokens, offsets)
    if (path / "zarr.json").exists() or (path / ".zgroup").exists():
        return _zarr(path)
    shards = [_file(shard) for shard in sorted(path.glob("*.safetensors"))]
    if not shards:
        raise BadFile(f"{path}: neither .safetensors, tokens.npy nor Zarr. Pass a folder of shards.")
    lengths = np.concatenate([shard.lengths for shard in shards])
    with naming(path):
        rows = Shards([shard.rows.array for shard in shards])
    return TokenStore(rows, np.cumsum(lengths) - lengths, lengths)


def _is_of_requests(path: Path) -> bool:
    """Whether a file, or the first one of a folder, holds the hidden states of one request."""
    first = next(iter(sorted(path.glob("*.safetensors"))), None) if path.is_dir() else path
    if first is None or first.suffix != ".safetensors" or not first.is_file():
        return False
    with archive_of(first) as (_, archive):
        return STATES in archive.headers and "tokens" not in archive.headers


def _of_requests(path: Path, files: Sequence[Path], layer: int | None, skip: int) -> TokenStore:
    """The states of one layer of many requests, in the order of their files."""
    layers = [LayerOfRequest(file, layer, skip) for file in files]
    lengths = np.array([len(x) for x in layers], np.intp)
    with naming(path):
        rows: Matrix = Shards(layers)
        if rows.shape[0] * rows.shape[1] <= COPY_LIMIT:
            # Opening many small files again in every pass costs more than their memory.
            rows = Matrix(np.concatenate([x[:] for x in layers]))
        return TokenStore(rows, np.cumsum(lengths) - lengths, lengths)


def _zarr(path: Path) -> TokenStore:
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
        return TokenStore.from_flat(tokens, ends)


def _file(path: Path) -> TokenStore:
    with archive_of(path) as (file, archive):
        headers = archive.headers
        name = "tokens" if "tokens" in headers else "keys"
        if name not in headers:
            names = ", ".join(sorted(headers))
            raise BadFile(f"it holds {names}. Save `tokens` (N, d) and `offsets` (n + 1,).")
        shape = headers[name].shape
        padded = len(shape) == 3 and "mask" not in headers
        if not padded and (len(shape) != 2 or "offsets" not in headers):
            remedy = "Save (N, d) and `offsets` (n + 1,), or (n, T, d)"
            raise BadFile(f"{name} has shape {shape}. {remedy}.")
        tokens, *offsets = _arrays(file, archive, [name] if padded else [name, "offsets"])
    if padded:
        n, T, d = shape
        tokens, offsets = tokens.reshape(n * T, d), [np.arange(n + 1) * T]
    with naming(path):
        return TokenStore.from_flat(tokens, offsets[0])


def _array(path: Path) -> Values:
    """What a .npy file holds."""
    with archive_of(path) as (file, archive):
        return _arrays(file, archive, ["keys"])[0]


def _arrays(path: Path, archive: Archive, names: Sequence[str]) -> list[Values]:
    """Arrays of numbers, mapped where the file holds them uncompressed."""
    headers = {name: archive.headers[name] for name in names}
    for name, header in headers.items():
        check_header(name, header)
    maps = [name for name, header in headers.items() if header.place is not None and header.size]
    return list(take(path, archive, names, maps).values())


# ---------------------------------------------------------------------- files of requests


def _header(path: Path) -> Header:
    with archive_of(path) as (_, archive):
        if STATES not in archive.headers:
            raise BadFile(f"it holds {', '.join(sorted(archive.headers))}, not {STATES} (T, layers, d).")
        header = archive.headers[STATES]
        check_header(STATES, header)
        if len(header.shape) != 3 or header.place is None or 0 in header.shape:
            raise BadFile(f"{STATES} has shape {header.shape}. Expected (T, layers, d), none of them 0.")
        if header.place + header.size > path.stat().st_size:
            raise BadFile("the file ends before its arrays do. Write it again.")
        return header


class LayerOfRequest:
    """The states (T − skip, d) of one layer of a file, which is open only while rows are read.

    A memory map holds its file open, and a process may hold about a thousand.

    layer: position on the file's axis of layers; None where there is only one. skip: first tokens left out.
    """

    def __init__(self, path: Path, layer: int | None, skip: int) -> None:
        self.path, self.header, self.skip = path, _header(path), skip
        T, layers, width = self.header.shape
        with naming(path):
            if layer is None and layers > 1:
                raise BadFile(
                    f"{STATES} has {layers} layers. Pass layer=, a position from 0 to {layers - 1}."
                )
            if layer is not None and not (is_integer(layer) and 0 <= layer < layers):
                problem = f"there is no layer {layer!r} among {layers}"
                raise BadFile(f"{problem}. Positions go from 0 to {layers - 1}.")
            if skip >= T:
                raise BadFile(
                    f"a request of {T} tokens has none after the first {skip}. Pass a smaller skip."
                )
        self.layer, self.shape = layer or 0, (T - skip, width)
        self.dtype = mapped(path, self.header).dtype
        self.stamp = self._stamp()

    def _stamp(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_mtime_ns, status.st_size

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Values:
        if self._stamp() != self.stamp:
            raise BadFile("it changed after it was opened")
        return np.array(mapped(self.path, self.header)[self.skip :, self.layer][rows])

    def __repr__(self) -> str:
        return str(self.path)


def wait_until_written(path: Path) -> None:
    """Wait while the server holds the lock beside this file, where there is one that may be read."""
    try:
        import fcntl
    except ImportError:  # Windows, where vLLM does not run
        return
    with suppress(FileNotFoundError, PermissionError), Path(f"{path}.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
