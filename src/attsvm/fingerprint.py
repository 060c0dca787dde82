"""What a result depends on besides its arguments: the package's source and the libraries that compute."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from functools import cache
from importlib.metadata import version
from pathlib import Path as File

ROOT = File(__file__).parent
SHOWING = (
    "cli",
    "report",
    "reproduce.py",
    "recompute.py",
    "sweeps",
    "workers.py",
    "progress.py",
    "__main__.py",
)
"""Parts of the package that cannot change a number: they only run and show things."""


@cache
def code_fingerprint(apart: Collection[str] = SHOWING) -> str:
    """Hash of the package's source without the files and folders `apart`, and of the libraries' versions."""
    digest = hashlib.sha256(f"numpy {version('numpy')}, jax {version('jax')}".encode())
    for file in sorted(ROOT.rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        if not any(name == part or name.startswith(f"{part}/") for part in apart):
            digest.update(name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
