"""Finished batches in a folder of Parquet files, each written atomically.

A file is written under a temporary name, synced to the disk and renamed. So every file is complete, whatever
process is killed at whatever time. The name is a hash of the cells and seeds in the file, so two processes
that compute the same batches write the same file.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path as File
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm._support.optional_dependencies import missing
from attsvm.numbers.atomic_write import replacing

Columns = dict[str, NDArray[Any]]
"""One array per column, all of one length."""

MAX_WORDS = 16
"""A column with more distinct words is encoded by Arrow."""

DIGEST = "sha256"
"""The name of the digest in the metadata of a file."""

STALE = 3600.0
"""Seconds after which an unfinished file is deleted: the process that began it has been killed."""


class Piece(NamedTuple):
    """Rows of one cell with the seeds start … stop − 1."""

    key: str
    start: int
    stop: int
    columns: Columns


class Store:
    """The batches in a folder; `pieces` are those with the keys of a study.

    names: the columns that each piece must have.
    """

    def __init__(self, folder: File, keys: set[str], names: Collection[str] = ()) -> None:
        self.folder, self.keys = folder / "batches", keys
        self.pieces: dict[str, list[Piece]] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(self.folder.glob("*.parquet")):
            for piece in _read(file, keys, names):
                self._add(piece)
        _delete_stale(self.folder)

    def add(self, pieces: Sequence[Piece]) -> None:
        """Store finished batches, on the disk first."""
        names = json.dumps([piece[:3] for piece in pieces])
        name = hashlib.sha256(names.encode()).hexdigest()[:32]
        write_table(self.folder / f"{name}.parquet", _joined(pieces), {"pieces": names})
        for piece in pieces:
            self._add(piece)

    def has(self, key: str, seeds: range) -> bool:
        """Whether all of these seeds are stored."""
        seed = seeds.start
        for piece in self.pieces.get(key, ()):
            if piece.start <= seed < piece.stop:
                seed = piece.stop
        return seed >= seeds.stop

    def rows(self, key: str, seeds: range) -> Columns:
        """The columns of a cell at these seeds, in their order."""
        blocks, seed = [], seeds.start
        for piece in self.pieces[key]:
            if piece.start <= seed < piece.stop:
                stop = min(piece.stop, seeds.stop)
                rows = slice(seed - piece.start, stop - piece.start)
                blocks.append({name: column[rows] for name, column in piece.columns.items()})
                seed = stop
        return {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}

    def _add(self, piece: Piece) -> None:
        pieces = self.pieces.setdefault(piece.key, [])
        pieces.append(piece)
        pieces.sort(key=lambda piece: (piece.start, piece.stop))


# ---------------------------------------------------------------------- Parquet


def write_table(file: File, columns: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write columns to a Parquet file, atomically; the same columns give the same bytes.

    The check sums of Parquet's pages cover neither names nor types, so the metadata have a digest of it all.
    """
    pa, pq = _arrow()
    table = pa.table({name: _encoded(pa, column) for name, column in columns.items()})
    digest = _digest({name: _decoded(pa, table[name]) for name in table.column_names})
    table = table.replace_schema_metadata({**metadata, DIGEST: digest})
    with replacing(file) as temporary:
        pq.write_table(table, temporary, compression="zstd", write_page_checksum=True)


def read_table(file: File) -> tuple[Columns, dict[str, str]]:
    """The columns and the metadata of a Parquet file. Raises ValueError where it is damaged."""
    pa, pq = _arrow()
    try:
        table = pq.read_table(file, memory_map=False, page_checksum_verification=True)
        columns = {name: _decoded(pa, table[name]) for name in table.column_names}
        metadata = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
        if metadata.pop(DIGEST, digest := _digest(columns)) != digest:  # older files have none
            raise ValueError("its digest does not fit")
    except FileNotFoundError:
        raise
    except Exception as error:  # Arrow and NumPy raise errors of every kind where bytes are wrong
        raise ValueError(f"{file} is damaged ({error}). Delete it.") from None
    return columns, metadata


def write_csv(file: File, columns: Mapping[str, Any]) -> None:
    """Write columns to a CSV file, atomically."""
    pa, _ = _arrow()
    from pyarrow import csv

    with replacing(file) as temporary:
        csv.write_csv(pa.table({name: _plain(pa, column) for name, column in columns.items()}), temporary)


# ---------------------------------------------------------------------- details


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing("studies are kept in Parquet, which needs PyArrow", "lab") from None
    return pyarrow, pyarrow.parquet


def _read(file: File, keys: set[str], names: Collection[str]) -> Iterator[Piece]:
    """The pieces of a file with these keys; none of a damaged file."""
    _, pq = _arrow()
    try:
        metadata = pq.read_schema(file).metadata
        index = json.loads(metadata[b"pieces"])
        contents = [(str(key), range(start, stop)) for key, start, stop in index]
        if DIGEST.encode() not in metadata:  # a damaged count of the names hides the digest
            return
        columns = read_table(file)[0] if any(key in keys for key, _ in contents) else {}
    except Exception:  # Arrow raises many kinds of errors on damaged bytes
        return  # the batch is computed again and replaces the file
    if columns and not (set(names) <= set(columns) and _consistent(contents, columns)):
        return
    start = 0
    for key, seeds in contents:
        if key in keys:
            rows = slice(start, start + len(seeds))
            values = {name: column[rows] for name, column in columns.items() if name not in ("cell", "seed")}
            yield Piece(key, seeds.start, seeds.stop, values)
        start += len(seeds)


def _consistent(contents: Sequence[tuple[str, range]], columns: Columns) -> bool:
    """Whether a file's rows have the cells and the seeds that its metadata names."""
    seeds = [seed for _, seeds in contents for seed in seeds]
    cells = [key for key, seeds in contents for _ in seeds]
    return (
        all(len(column) == len(seeds) for column in columns.values())
        and np.array_equal(columns.get("seed", ()), seeds)
        and np.array_equal(columns.get("cell", ()), cells)
    )


def _digest(columns: Columns) -> str:
    digest = hashlib.sha256()
    for name, column in columns.items():
        digest.update(f"{name} {column.dtype.str} ".encode())
        digest.update(repr(column.tolist()).encode() if column.dtype.hasobject else column.tobytes())
    return digest.hexdigest()


def _joined(pieces: Sequence[Piece]) -> Columns:
    """The columns of all pieces, one piece after the other, with cell and seed first."""
    cells = np.concatenate([np.full(p.stop - p.start, p.key) for p in pieces])
    seeds = np.concatenate([np.arange(p.start, p.stop) for p in pieces])
    names = list(pieces[0].columns)
    return {"cell": cells, "seed": seeds} | {n: np.concatenate([p.columns[n] for p in pieces]) for n in names}


def _encoded(pa: Any, column: NDArray[Any]) -> Any:
    """An Arrow array; for words, a dictionary and the number of each row's word."""
    if column.dtype.kind not in "UO":
        return pa.array(column)
    if column.dtype.kind == "O":
        array = pa.array(column.tolist())
        return array.dictionary_encode() if pa.types.is_string(array.type) else array  # as Parquet reads it
    dictionary: list[str] = []
    numbers = np.full(len(column), -1, np.int32)
    # One pass per word is faster than Arrow's encoder, which converts the letters of every row.
    while len(dictionary) < MAX_WORDS and (numbers < 0).any():
        dictionary.append(str(column[np.argmax(numbers < 0)]))
        numbers[column == dictionary[-1]] = len(dictionary) - 1
    if (numbers < 0).any():
        return pa.array(column).dictionary_encode()
    return pa.DictionaryArray.from_arrays(numbers, pa.array(dictionary, pa.string()))


def _plain(pa: Any, column: NDArray[Any]) -> Any:
    array = _encoded(pa, column)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _decoded(pa: Any, column: Any) -> NDArray[Any]:
    if not pa.types.is_dictionary(column.type):
        return np.asarray(column.to_numpy())
    array = column.combine_chunks()
    array = array.chunk(0) if isinstance(array, pa.ChunkedArray) else array
    dictionary, numbers = [*array.dictionary.to_pylist(), None], np.asarray(array.indices.fill_null(-1))
    return np.asarray(dictionary if (numbers < 0).any() else dictionary[:-1])[numbers]


def _delete_stale(folder: File) -> None:
    for temporary in folder.glob(".*.part"):
        try:
            if time.time() - temporary.stat().st_mtime > STALE:
                temporary.unlink()
        except OSError:  # another process has deleted it
            continue
