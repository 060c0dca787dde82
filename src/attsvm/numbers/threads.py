"""Distribute jobs over the cores, and limit BLAS to one thread, because two threads slow down small calls."""

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
Result = TypeVar("Result")


@cache
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  (its BLAS must be loaded to be found)

    return ThreadpoolController()


class _SingleThread:
    """The setting of BLAS is global: the first thread that enters changes it, the last one restores it."""

    def __init__(self) -> None:
        self.lock, self.inside = Lock(), 0
        self.limit: Any = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self.lock:
            if self.inside == 0:
                with _controlling_thread():
                    self.limit = _controller().limit(limits=1, user_api="blas")
            self.inside += 1
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1
                if self.inside == 0:
                    with _controlling_thread():
                        self.limit.__exit__(None, None, None)


@contextmanager
def _controlling_thread() -> Iterator[None]:
    """Let this thread set limits: since 3.7 threadpoolctl obeys only the thread that set a limit first."""
    for release in _releases():
        release(force=True)
    yield
    for release in _releases():
        release(force=True)


@cache
def _releases() -> list[Any]:
    classes = {type(library) for library in _controller().lib_controllers}
    return [c.clear_controlling_thread for c in classes if hasattr(c, "clear_controlling_thread")]


single_thread = _SingleThread()
"""Context in which BLAS uses one thread. The last thread that leaves it restores the user's setting."""


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_threads(work: Callable[[Job], Result], jobs: Sequence[Job]) -> list[Result]:
    """`work` on every job, several at a time, each with one BLAS thread; results in the order of the jobs."""
    pool = ThreadPoolExecutor(max(1, min(cores(), len(jobs))))
    with single_thread():
        try:
            return list(pool.map(work, jobs))
        finally:
            pool.shutdown(cancel_futures=True)  # do not wait for jobs after Ctrl-C or an error
