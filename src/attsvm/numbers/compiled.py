"""How loops are compiled: once, cached on disk, without the interpreter's lock. Functions that numba lacks.

The first call waits for the compiler. Therefore a loop is compiled only where NumPy would be slow, each array
enters with one type and contiguous, no array is allocated, reshaped or assigned as a whole inside, and few
functions are nested, because the compiler optimises a function again for each of its callers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit, types
from numba.core.options import DefaultOptions
from numba.extending import overload, register_jitable
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])

REORDERED = frozenset({"reassoc", "contract", "nsz"})
"""Sums may be reordered so that they vectorise; infinities keep their meaning."""


_COUNTING = hasattr(DefaultOptions, "_nrt")
BORROWED: dict[str, Any] = {"_nrt": False} if _COUNTING else {}
COUNTED: dict[str, Any] = {"_nrt": True} if _COUNTING else {}
"""Whether references to arrays are counted. Arguments outlive the call, so they need not be. Counting two
dozen arrays in every call of an inner function takes longer than some of these functions do."""


def _compiler(fastmath: frozenset[str] = REORDERED, **options: Any) -> Callable[[Function], Function]:
    # Checks of divisions would prevent vector instructions. No caller needs an entry from C.
    make = cast(Any, njit)(
        nogil=True, error_model="numpy", fastmath=set(fastmath), no_cfunc_wrapper=True, **options
    )
    return cast(Callable[[Function], Function], make)


compiled = _compiler(cache=True, **BORROWED)
"""For functions that Python calls."""

# What compiled functions call is always inlined. Else there are two copies of it: one in its own library, and
# one, optimised once more, in that of its caller. A process that compiles the caller runs the first copy, and
# one that reads the caller from the cache the second: they round differently.

inner = _compiler(no_cpython_wrapper=True, forceinline=True, **BORROWED)
"""For functions that only compiled functions call: no entry from Python, no file of their own."""

exactly = _compiler(frozenset(), cache=True, **BORROWED)
"""For functions that Python calls and that rely on the rounding of every single operation."""

exactly_inner = _compiler(frozenset(), no_cpython_wrapper=True, forceinline=True, **BORROWED)
"""The same for functions that only compiled functions call."""

with_blas = _compiler(cache=True, **COUNTED)
inner_with_blas = _compiler(no_cpython_wrapper=True, forceinline=True, **COUNTED)
"""The same as `compiled` and `inner` for functions that call np.dot, which counts its arrays."""


def inlined(function: Function) -> Function:
    """A `compiled` function for compiled functions to call."""
    return inner(cast(Any, function).py_func)


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """A contiguous view for compiled code: one type, whether or not the caller may write to the array."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def anywhere(formula: Function) -> Function:
    """For formulas that NumPy code and compiled functions share: Python runs them as they are."""
    return cast(
        Function, cast(Any, register_jitable)(error_model="numpy", fastmath=False, forceinline=True)(formula)
    )


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


# ---------------------------------------------------------------------- numbers of 16 bits
# numba supports neither float16 nor bfloat16.

HALF, BRAIN = 13, 16
"""Shifts that turn bits of float16 and bfloat16 into float32; a float16 is then SCALE times too small."""

SCALE = 2.0**112


@inner
def shifted(bits, shift):  # type: ignore[no-untyped-def]
    """The shifted bits of a finite number of 16 bits, as those of a float32; subnormal numbers included."""
    b = np.uint32(bits)
    return ((b & np.uint32(0x8000)) << np.uint32(16)) | ((b & np.uint32(0x7FFF)) << np.uint32(shift))


def single(number: Any, shift: int) -> Any:
    """The float32 of 16 bits, infinity and NaN included; numbers of other types are returned unchanged."""
    raise TypeError("`single` is for compiled loops. Widen arrays by `widen`.")


@overload(single, jit_options={"fastmath": set(REORDERED), "forceinline": True})
def _single(number, shift):  # type: ignore[no-untyped-def]
    if number != types.uint16:
        return lambda number, shift: number

    def widened(number, shift):  # type: ignore[no-untyped-def]
        endless = np.uint32(0x70000000 if number & np.uint32(0x7C00) == np.uint32(0x7C00) else 0)
        wide = np.uint32(shifted(number, shift) | endless).view(np.float32)
        return np.float32(SCALE if shift == HALF else 1.0) * wide

    return widened


@compiled
def widen(
    bits: NDArray[np.uint16], shift: int, centre: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    """x − centre in float32 of numbers of 16 bits: (m, d), (d,) → out (m, d)."""
    m, d = bits.shape
    for t in range(m):
        for c in range(d):
            out[t, c] = single(bits[t, c], shift) - centre[c]
