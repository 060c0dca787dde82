"""The key of stored results: a hash of the source code and of the versions of the libraries that compute."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path as File

LABORATORY = File(__file__).parent


@cache
def code_fingerprint(*rooms: str) -> str:
    """Hash of the library's source, of these laboratory packages, and of the versions of NumPy and JAX."""
    digest = hashlib.sha256(f"numpy {version('numpy')}, jax {version('jax')}".encode())
    for folder in (_library(), *(LABORATORY / room for room in rooms)):
        for file in sorted(folder.rglob("*.py")):
            digest.update(file.relative_to(folder.parent).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _library() -> File:
    """The folder of the package attsvm, found without importing it."""
    spec = find_spec("attsvm")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the package attsvm has no source files here.")
    return File(spec.origin).parent
