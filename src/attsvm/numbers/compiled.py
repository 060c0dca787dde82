"""How loops are compiled: once, cached on disk, without the interpreter's lock.

The first call waits for the compiler. Therefore a loop is compiled only where NumPy would be slow, each array
enters with one type and contiguous, no array is allocated, reshaped or assigned as a whole inside, and few
functions are nested, because the compiler optimises a function again for each of its callers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numba.extending import register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])

REORDERED = frozenset({"reassoc", "contract", "nsz"})
"""Sums may be reordered so that they vectorise; infinities keep their meaning."""


def _compiler(fastmath: frozenset[str] = REORDERED, **options: Any) -> Callable[[Function], Function]:
    # Checks of divisions would prevent vector instructions. No caller needs an entry from C.
    make = cast(Any, njit)(
        nogil=True, error_model="numpy", fastmath=set(fastmath), no_cfunc_wrapper=True, **options
    )
    return cast(Callable[[Function], Function], make)


compiled = _compiler(cache=True)
"""For functions that Python calls."""

inner = _compiler(no_cpython_wrapper=True)
"""For functions that only compiled functions call: no entry from Python, no file of their own."""

exactly = _compiler(frozenset(), cache=True)
"""For functions that Python calls and that rely on the rounding of every single operation."""

exactly_inner = _compiler(frozenset(), no_cpython_wrapper=True)
"""The same for functions that only compiled functions call."""


def anywhere(formula: Function) -> Function:
    """For formulas that NumPy code and compiled functions share: Python runs them as they are."""
    return cast(Function, cast(Any, register_jitable)(error_model="numpy", fastmath=False)(formula))


# ---------------------------------------------------------------------- functions that vectorise
# The exp and log of the mathematical library do not.


@inner
def exponential(x):  # type: ignore[no-untyped-def]
    """e^x for x ≤ 0, to about |x| units in the last place."""
    x = -708.0 if x < -708.0 else x
    n = np.floor(x * 1.4426950408889634 + 0.5)
    r = (x - n * 0.693145751953125) - n * 1.42860682030941723212e-6
    total = 1.0 / 479001600.0
    for factor in (39916800.0, 3628800.0, 362880.0, 40320.0, 5040.0, 720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0):
        total = total * r + 1.0 / factor
    return total * np.int64((np.int64(n) + 1023) << 52).view(np.float64)


@inner
def log_one_plus(x):  # type: ignore[no-untyped-def]
    """log(1 + x) for 0 ≤ x ≤ 1, to rounding: 2 artanh(x / (2 + x)), whose series ends soon."""
    w = x / (2.0 + x)
    square, total = w * w, 1.0 / 35.0
    for odd in (33, 31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1):
        total = total * square + 1.0 / odd
    return 2.0 * w * total
