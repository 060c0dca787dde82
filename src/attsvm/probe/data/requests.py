"""Hidden states of requests as vLLM's `extract_hidden_states` writes them: one .safetensors file for each.

    hidden_states (T, layers, d)        token_ids (T,)

A file REQUEST.safetensors is being written while somebody holds REQUEST.safetensors.lock.
Reference: vLLM, features/speculative_decoding/extract_hidden_states, 2026.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from attsvm._support.validation import is_integer
from attsvm.numbers import Values
from attsvm.numbers.archives import Archive, BadFile, mapped
from attsvm.numbers.files import archive_of, check_header, naming

STATES = "hidden_states"


def holds_a_request(archive: Archive) -> bool:
    """Whether a file has the states of one request, rather than tokens of many sequences."""
    return STATES in archive.headers and "tokens" not in archive.headers


def hidden_states(path: Path) -> Values:
    """The states (T, layers, d) of a request, mapped and not read."""
    with archive_of(path) as (file, archive):
        if STATES not in archive.headers:
            raise BadFile(f"it holds {', '.join(sorted(archive.headers))}, not {STATES} (T, layers, d).")
        header = archive.headers[STATES]
        check_header(STATES, header)
        if len(header.shape) != 3 or header.place is None or 0 in header.shape:
            raise BadFile(f"{STATES} has shape {header.shape}. Expected (T, layers, d), none of them 0.")
        return mapped(file, header)


def states_of(path: Path, layer: int | None, skip: int) -> Values:
    """The states (T − skip, d) of one layer, mapped and not read.

    layer: position on the file's axis of layers; None where there is only one. skip: first tokens left out.
    """
    states = hidden_states(path)
    T, layers, _ = states.shape
    with naming(path):
        if layer is None and layers > 1:
            raise BadFile(f"{STATES} has {layers} layers. Pass layer=, a position from 0 to {layers - 1}.")
        if layer is not None and not (is_integer(layer) and 0 <= layer < layers):
            raise BadFile(f"there is no layer {layer!r} among {layers}. Positions go from 0 to {layers - 1}.")
        if skip >= T:
            raise BadFile(f"a request of {T} tokens has none after the first {skip}. Pass a smaller skip.")
    return states[skip:, layer or 0]


def is_locked(path: Path) -> bool:
    """Whether the server still writes this file: it holds the lock beside it."""
    try:
        _lock(path, blocking=False)
    except BlockingIOError:
        return True
    return False


def wait_until_written(path: Path) -> None:
    """Wait while the server holds the lock beside this file."""
    _lock(path, blocking=True)


def _lock(path: Path, blocking: bool) -> None:
    """Take and release the lock beside a file, where there is one that may be read."""
    try:
        import fcntl
    except ImportError:  # Windows, where vLLM does not run
        return
    with suppress(FileNotFoundError, PermissionError), Path(f"{path}.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH | (0 if blocking else fcntl.LOCK_NB))
