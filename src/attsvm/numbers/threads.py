"""Threads: work shared out among the cores, and BLAS held to one, because small calls run slower on two."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any, TypeVar

from threadpoolctl import ThreadpoolController

Job = TypeVar("Job")
Done = TypeVar("Done")


@cache
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  (its BLAS must be loaded to be found)

    return ThreadpoolController()


class _OneForAll:
    """BLAS has one setting for the whole process: who enters first sets it, who leaves last restores it."""

    def __init__(self) -> None:
        self.lock, self.inside = Lock(), 0
        self.limit: Any = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self.lock:
            if self.inside == 0:
                with _in_control():
                    self.limit = _controller().limit(limits=1, user_api="blas")
            self.inside += 1
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1
                if self.inside == 0:
                    with _in_control():
                        self.limit.__exit__(None, None, None)


@contextmanager
def _in_control() -> Iterator[None]:
    """What is set here counts: since 3.7 threadpoolctl heeds only the thread that set a limit first."""
    for free in _controls():
        free(force=True)
    yield
    for free in _controls():
        free(force=True)


@cache
def _controls() -> list[Any]:
    classes = {type(library) for library in _controller().lib_controllers}
    return [one.clear_controlling_thread for one in classes if hasattr(one, "clear_controlling_thread")]


single_thread = _OneForAll()
"""Context in which BLAS uses one thread; the user's setting comes back when the last thread leaves it."""


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_threads(work: Callable[[Job], Done], jobs: Sequence[Job]) -> list[Done]:
    """`work` on every job, several at a time, each with one BLAS thread; results in the order of the jobs."""
    pool = ThreadPoolExecutor(max(1, min(cores(), len(jobs))))
    with single_thread():
        try:
            return list(pool.map(work, jobs))
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C or an error nobody waits for the other jobs
