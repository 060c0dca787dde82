"""Threads: work shared out among the cores, and BLAS held to one, because small calls run slower on two."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

Job = TypeVar("Job")
Done = TypeVar("Done")


@cache
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  (its BLAS must be loaded to be found)

    return ThreadpoolController()


def single_thread():  # type: ignore[no-untyped-def]
    """Context in which BLAS uses one thread; the user's setting comes back at its end."""
    return _controller().limit(limits=1, user_api="blas")


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_threads(work: Callable[[Job], Done], jobs: Sequence[Job]) -> list[Done]:
    """`work` on every job, several at a time, each with one BLAS thread; results in the order of the jobs."""
    with single_thread(), ThreadPoolExecutor(min(cores(), len(jobs))) as pool:
        return list(pool.map(work, jobs))
