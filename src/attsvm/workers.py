"""Worker processes, one per core, that share their imports."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import forkserver
from typing import Any

from attsvm.training.compilation import compile_quickly

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_SERVER = "forkserver" in multiprocessing.get_all_start_methods()


def begin(module: str) -> None:
    """Import `module` in the server that workers are forked from, while this process goes on.

    JAX has threads once it has run, which a fork would not survive; the server imports and runs nothing.
    Where there is no fork (Windows), each worker imports for itself.
    """
    if _SERVER:
        forkserver.set_forkserver_preload([module])
        with _environment():
            forkserver.ensure_running()


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of `count` processes; an error or Ctrl-C ends what they are doing."""
    context: Any = multiprocessing.get_context("forkserver" if _SERVER else "spawn")
    others = multiprocessing.active_children()
    with _environment(), ProcessPoolExecutor(count, context, initializer=_settle) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                if child not in others:
                    child.terminate()
            raise


@contextmanager
def _environment() -> Iterator[None]:
    """What workers inherit: quick compilation, and no threads, which would only wait for each other."""
    before = set(os.environ)
    compile_quickly()
    for setting in _ONE_THREAD:
        os.environ.setdefault(setting, "1")
    try:
        yield
    finally:
        for setting in set(os.environ) - before:
            del os.environ[setting]


def _settle() -> None:
    """End without a traceback on Ctrl-C; look for garbage among new objects only, and seldom."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
