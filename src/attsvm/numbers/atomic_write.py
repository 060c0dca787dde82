"""The one way to write a file at once: a reader finds the old one or the new one, never a half.

Files that grow and are resumed keep their unfinished name until then (`heads/activations.py`).
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
"""Seconds to wait on Windows until nobody, a virus scanner often, has the old file open any more."""


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """The name to write to: it becomes `file` when the block ends well, and is on the disk by then.

    What a link points to is replaced, not the link; who may read the old file may read the new one. A device,
    /dev/stdout, is written to as it is.
    """
    requested, file = file, Path(os.path.realpath(file))
    part = file.with_name(f".{file.name}.{uuid4().hex}.part")
    with naming_disk_errors(requested, part):
        if file.exists() and not file.is_file():
            yield file
            return
        try:
            yield part
            with suppress(FileNotFoundError):
                part.chmod(stat.S_IMODE(file.stat().st_mode))
            named(part, file)
        finally:
            part.unlink(missing_ok=True)


@contextmanager
def naming_disk_errors(file: Path, part: Path | None = None) -> Iterator[None]:
    """Errors of the system that name no file, as those of a full disk, or its `part` name the file."""
    try:
        yield
    except OSError as error:
        if error.filename is not None and str(error.filename) != str(part):
            raise
        reason = error.strerror or str(error)
        if part is not None:
            reason = reason.replace(str(part), str(file))
        raise type(error)(error.errno or errno.EIO, reason, str(file)) from error


def write_text(file: Path, text: str, errors: str = "strict") -> None:
    """Write a text in UTF-8 at once."""
    with replacing(file) as part:
        part.write_text(text, encoding="utf8", errors=errors)


def named(part: Path, file: Path) -> None:
    """Give what was written its name, once it is on the disk."""
    to_disk(part)
    _rename(part, file)
    to_disk(file.parent)


def _rename(part: Path, file: Path) -> None:
    """Windows replaces no file that somebody has open or mapped: wait for readers that are soon done."""
    last = time.monotonic() + (PATIENCE if WINDOWS else 0.0)
    while True:
        try:
            part.replace(file)
            return
        except PermissionError as error:
            if not WINDOWS:
                raise
            if time.monotonic() >= last:
                words = "cannot be replaced while it is open or memory-mapped. Close what reads it"
                raise PermissionError(error.errno, words, str(file)) from error
        time.sleep(0.05)


def to_disk(path: Path) -> None:
    """Wait until what was written is on the disk; a folder's entries too, where the system can."""
    if WINDOWS and path.is_dir():
        return
    handle = os.open(path, os.O_RDWR if WINDOWS else os.O_RDONLY)  # Windows flushes what may be written
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
