"""Hidden states of requests as vLLM's `extract_hidden_states` writes them: one .safetensors file for each.

    hidden_states (T, layers, d)        token_ids (T,)

A file REQUEST.safetensors is being written while somebody holds REQUEST.safetensors.lock.
Reference: vLLM, features/speculative_decoding/extract_hidden_states, 2026.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from attsvm._support.validation import is_integer
from attsvm.numbers import Values
from attsvm.numbers.archives import Archive, BadFile, Header, mapped
from attsvm.numbers.files import archive_of, check_header, naming

STATES = "hidden_states"


def holds_a_request(archive: Archive) -> bool:
    """Whether a file has the states of one request, rather than tokens of many sequences."""
    return STATES in archive.headers and "tokens" not in archive.headers


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
