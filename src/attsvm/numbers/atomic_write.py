"""Replace a file at once: a reader finds the old file or the new one, never an incomplete one.

A file that grows and is resumed keeps a temporary name until it is complete (`heads/activations.py`).
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from uuid import uuid4

WINDOWS: Final = os.name == "nt"
PATIENCE: Final = 2.0
"""Seconds to wait on Windows while another program, often a virus scanner, has the old file open."""


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """The temporary name to write to. After a block without error the contents are on the disk as `file`.

    A link stays, and the file that it points to is replaced. The permissions of the old file stay. A device
    such as /dev/stdout is written to directly.
    """
    requested, file = file, Path(os.path.realpath(file))
    temporary = file.with_name(f".{file.name}.{uuid4().hex}.part")
    with naming_disk_errors(requested, temporary):
        if file.exists() and not file.is_file():
            yield file
            return
        try:
            yield temporary
            with suppress(FileNotFoundError):
                temporary.chmod(stat.S_IMODE(file.stat().st_mode))
            rename_durably(temporary, file)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def naming_disk_errors(file: Path, temporary: Path | None = None) -> Iterator[None]:
    """Let system errors name the file, where they name no file, as of a full disk, or its temporary name."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and str(error.filename) != str(temporary):
            raise
        reason = error.strerror or str(error)
        if temporary is not None:
            reason = reason.replace(str(temporary), str(file))
        raise type(error)(error.errno or errno.EIO, reason, str(file)) from error


def write_text(file: Path, text: str, errors: str = "strict") -> None:
    """Replace a file by a text in UTF-8, at once."""
    with replacing(file) as temporary:
        temporary.write_text(text, encoding="utf8", errors=errors)


def rename_durably(temporary: Path, file: Path) -> None:
    """Flush a temporary file to the disk, then give it its name."""
    to_disk(temporary)
    _rename(temporary, file)
    to_disk(file.parent)


def _rename(temporary: Path, file: Path) -> None:
    """Rename a file. Windows replaces no file that is open or mapped: wait until its readers close it."""
    deadline = time.monotonic() + (PATIENCE if WINDOWS else 0.0)
    while True:
        try:
            temporary.replace(file)
            return
        except PermissionError as error:
            if not WINDOWS:
                raise
            if time.monotonic() >= deadline:
                reason = "cannot be replaced while it is open or memory-mapped. Close what reads it"
                raise PermissionError(error.errno, reason, str(file)) from error
        time.sleep(0.05)


def to_disk(path: Path) -> None:
    """Flush a file to the disk, or the entries of a folder where the system supports it."""
    if WINDOWS and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)  # Windows flushes writable handles only
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
