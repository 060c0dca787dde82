"""Finished batches in a folder of Parquet files: each written at once, whole or not at all.

A file is written beside its name, synced to the disk and renamed: whatever is killed, and whenever, a name
always stands for a complete file. Names are hashes of what the file holds, so two processes that compute the
same write the same file.
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

from attsvm.extras import missing
from attsvm.replacing import replacing

Columns = dict[str, NDArray[Any]]
"""One array per column, all of one length."""

DIFFERENT = 16
"""Words of a column that are told apart one by one."""

STALE = 3600.0
"""Seconds after which a file that was never finished is nobody's."""


class Piece(NamedTuple):
    """Rows of one cell with the seeds start … stop − 1."""

    key: str
    start: int
    stop: int
    columns: Columns


class Store:
    """The batches of a folder; `pieces` holds those of the keys that a study asks for.

    names: the columns that each of them must have.
    """

    def __init__(self, folder: File, keys: set[str], names: Collection[str] = ()) -> None:
        self.folder, self.keys = folder / "batches", keys
        self.pieces: dict[str, list[Piece]] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(self.folder.glob("*.parquet")):
            for piece in _read(file, keys, names):
                self._add(piece)
        _sweep_up(self.folder)

    def add(self, pieces: Sequence[Piece]) -> None:
        """Keep finished batches, on the disk first."""
        names = json.dumps([piece[:3] for piece in pieces])
        name = hashlib.sha256(names.encode()).hexdigest()[:32]
        write_table(self.folder / f"{name}.parquet", _joined(pieces), {"pieces": names})
        for piece in pieces:
            self._add(piece)

    def has(self, key: str, seeds: range) -> bool:
        """Whether every one of the seeds is known."""
        at = seeds.start
        for piece in self.pieces.get(key, ()):
            if piece.start <= at < piece.stop:
                at = piece.stop
        return at >= seeds.stop

    def rows(self, key: str, seeds: range) -> Columns:
        """The columns of a cell at these seeds, in their order."""
        parts, at = [], seeds.start
        for piece in self.pieces[key]:
            if piece.start <= at < piece.stop:
                stop = min(piece.stop, seeds.stop)
                parts.append({n: c[at - piece.start : stop - piece.start] for n, c in piece.columns.items()})
                at = stop
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _add(self, piece: Piece) -> None:
        known = self.pieces.setdefault(piece.key, [])
        known.append(piece)
        known.sort(key=lambda one: (one.start, one.stop))


# ---------------------------------------------------------------------- Parquet


def write_table(file: File, columns: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write columns to a Parquet file, atomically; the same columns give the same bytes."""
    pa, pq = _arrow()
    arrays = {name: _encoded(pa, column) for name, column in columns.items()}
    table = pa.table(arrays).replace_schema_metadata(dict(metadata))
    with replacing(file) as part:
        pq.write_table(table, part, compression="zstd", write_page_checksum=True)


def read_table(file: File) -> tuple[Columns, dict[str, str]]:
    """The columns and the metadata of a Parquet file. Raises ValueError where it is damaged."""
    pa, pq = _arrow()
    try:
        table = pq.read_table(file, memory_map=False, page_checksum_verification=True)
        columns = {name: _decoded(pa, table[name]) for name in table.column_names}
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{file} is damaged ({error}). Delete it.") from None
    told = {k.decode(): v.decode() for k, v in (table.schema.metadata or {}).items()}
    return columns, told


def write_csv(file: File, columns: Mapping[str, Any]) -> None:
    """Write columns to a CSV file, atomically."""
    pa, _ = _arrow()
    from pyarrow import csv

    with replacing(file) as part:
        csv.write_csv(pa.table({name: _plain(pa, column) for name, column in columns.items()}), part)


# ---------------------------------------------------------------------- details


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing("studies are kept in Parquet, which needs PyArrow", "sweep") from None
    return pyarrow, pyarrow.parquet


def _read(file: File, keys: set[str], names: Collection[str]) -> Iterator[Piece]:
    """The pieces of a file that are asked for; none of a file that is not what was written."""
    pa, pq = _arrow()
    try:
        held = [(str(key), range(a, b)) for key, a, b in json.loads(pq.read_schema(file).metadata[b"pieces"])]
        columns = read_table(file)[0] if any(key in keys for key, _ in held) else {}
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return  # it is computed again, and replaced
    rows = sum(len(seeds) for _, seeds in held)
    if columns and not (set(names) <= set(columns) and all(len(c) == rows for c in columns.values())):
        return
    at = 0
    for key, seeds in held:
        if key in keys:
            place = slice(at, at + len(seeds))
            own = {name: column[place] for name, column in columns.items() if name not in ("cell", "seed")}
            yield Piece(key, seeds.start, seeds.stop, own)
        at += len(seeds)


def _joined(pieces: Sequence[Piece]) -> Columns:
    """Columns of all pieces, one after the other, with cell and seed in front."""
    cells = np.concatenate([np.full(p.stop - p.start, p.key) for p in pieces])
    seeds = np.concatenate([np.arange(p.start, p.stop) for p in pieces])
    names = list(pieces[0].columns)
    return {"cell": cells, "seed": seeds} | {n: np.concatenate([p.columns[n] for p in pieces]) for n in names}


def _encoded(pa: Any, column: NDArray[Any]) -> Any:
    """An Arrow array; of words, a dictionary of them and the number of each."""
    if column.dtype.kind not in "UO":
        return pa.array(column)
    if column.dtype.kind == "O":
        return pa.array(column.tolist()).dictionary_encode()
    words: list[str] = []
    at = np.full(len(column), -1, np.int32)
    while len(words) < DIFFERENT and (at < 0).any():  # one pass per word: Arrow would look at every letter
        words.append(str(column[np.argmax(at < 0)]))
        at[column == words[-1]] = len(words) - 1
    if (at < 0).any():
        return pa.array(column).dictionary_encode()
    return pa.DictionaryArray.from_arrays(at, pa.array(words, pa.string()))


def _plain(pa: Any, column: NDArray[Any]) -> Any:
    array = _encoded(pa, column)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _decoded(pa: Any, column: Any) -> NDArray[Any]:
    if not pa.types.is_dictionary(column.type):
        return np.asarray(column.to_numpy())
    whole = column.combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pa.ChunkedArray) else whole
    words, at = [*whole.dictionary.to_pylist(), None], np.asarray(whole.indices.fill_null(-1))
    return np.asarray(words if (at < 0).any() else words[:-1])[at]


def _sweep_up(folder: File) -> None:
    for part in folder.glob(".*.part"):
        try:
            if time.time() - part.stat().st_mtime > STALE:
                part.unlink()
        except OSError:  # another process was quicker
            continue
