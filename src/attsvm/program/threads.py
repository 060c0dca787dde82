"""Local control of BLAS threads: many small calls run slower on two threads than on one."""

from __future__ import annotations

from functools import cache

from threadpoolctl import ThreadpoolController


@cache
def _controller() -> ThreadpoolController:
    import scipy.linalg  # noqa: F401  (its BLAS must be loaded to be found)

    return ThreadpoolController()


def single_thread():  # type: ignore[no-untyped-def]
    """Context in which BLAS uses one thread; the user's setting comes back at its end."""
    return _controller().limit(limits=1, user_api="blas")
