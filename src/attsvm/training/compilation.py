"""How XLA compiles: programs are kept for other processes, and programs that run once compile quickly."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock

from attsvm._support.xla_flags import jaxlib_release
from attsvm.training.types import Config, Device, Options


def wide_vectors() -> dict[str, int]:
    """Options of jit for long loops: vectors of 512 bits where a CPU has them; by default XLA uses 256.

    The results have the same bits, in three quarters of the time. Every jaxlib from 0.8 to 0.12 knows the
    option.
    """
    return {"xla_cpu_prefer_vector_width": 512} if jaxlib_release() < (0, 13) else {}


def local_devices() -> list[Device]:
    """Where JAX computes: the user's jax.default_device, or all devices. The first call starts JAX."""
    import jax

    settings: Config = jax.config
    default = settings.jax_default_device  # a device, the name of a platform, or None
    if isinstance(default, str):
        return jax.local_devices(backend=default)[:1]
    return jax.local_devices() if default is None else [default]


def backend() -> str:
    """What JAX computes on: cpu, gpu or tpu."""
    return str(local_devices()[0].platform)


_haste, _before = Lock(), list[bool]()
"""For each thread that compiles quickly, the setting before the first of them."""


@contextmanager
def few_optimisations() -> Iterator[None]:
    """Compile with few optimisations, for runs that take less time than their compilation.

    The whole process has one setting: the first of several threads changes it, the last one restores it.
    """
    import jax

    settings: Config = jax.config
    with _haste:
        _before.append(_before[0] if _before else settings.read("jax_disable_most_optimizations"))
        settings.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        with _haste:
            setting = _before.pop()
            if not _before:
                settings.update("jax_disable_most_optimizations", setting)


MOST_BYTES = 2**29
"""Size of the folder of compiled programs; beyond it the least recently used ones are deleted."""


@contextmanager
def kept_programs() -> Iterator[None]:
    """Keep what is compiled in this scope on disk, and take from there what an earlier process compiled.

    This is JAX's cache, in the folder `program_folder`. Nothing changes if the user has set another folder or
    has switched the cache off, if the folder cannot be written, or outside of the scope.
    """
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    settings: Config = jax.config
    folder = program_folder()
    theirs = settings.jax_compilation_cache_dir or not settings.jax_enable_compilation_cache
    if theirs or folder is None:
        yield
        return
    ours = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0.0,  # all of ours are below JAX's limit of a second
        "jax_persistent_cache_enable_xla_caches": "none",
    }
    settings_before = {name: getattr(settings, name) for name in ours}
    _trim(folder)
    reset_cache()  # otherwise JAX would not read the settings again
    _set(settings, ours)
    try:
        yield
    finally:
        _set(settings, settings_before)
        reset_cache()


def program_folder() -> Path | None:
    """Where compiled programs are kept: one folder per kind of processor. None where it cannot be written."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
    elif sys.platform == "darwin":
        base = "~/Library/Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home
        folder = Path(base or "~").expanduser() / "attsvm" / "programs" / _processor()
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    return None


@cache
def _processor() -> str:
    """The kind of processor: machines may share a home, and code for another kind may crash."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        about = sorted({x for x in lines if x.startswith(("flags", "Features", "model name"))})
        return hashlib.sha256("".join(about).encode()).hexdigest()[:12]
    return platform.machine() or "any"


@cache
def _trim(folder: Path) -> None:
    """Delete old programs, once per process: reading the folder takes longer than a small training."""
    with suppress(OSError):  # another process may trim it too
        files = sorted((entry.stat().st_atime, entry.stat().st_size, entry) for entry in folder.iterdir())
        size = sum(size for _, size, _ in files)
        for _, file_size, entry in files:
            if size <= MOST_BYTES:
                break
            entry.unlink()
            size -= file_size


def _set(settings: Config, values: Options) -> None:
    for name, value in values.items():
        settings.update(name, value)
