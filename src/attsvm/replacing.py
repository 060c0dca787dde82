"""The one way to write a file at once: a reader finds the old one or the new one, never a half.

Files that grow and are resumed keep their unfinished name until then (`heads/tensor_files.py`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """The name to write to: it becomes `file` when the block ends well, and is on the disk by then."""
    part = file.with_name(f".{file.name}.{uuid4().hex}.part")
    try:
        yield part
        named(part, file)
    finally:
        part.unlink(missing_ok=True)


def named(part: Path, file: Path) -> None:
    """Give what was written its name, once it is on the disk."""
    to_disk(part)
    part.replace(file)
    to_disk(file.parent)


def to_disk(path: Path) -> None:
    """Wait until what was written is on the disk; a folder's entries too, where the system can."""
    if path.is_dir() and os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
