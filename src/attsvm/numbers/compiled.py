"""How the loops of road one are compiled: once, cached on disk, free of the interpreter's lock.

Compilation is what a first call waits for, so a loop is compiled only where NumPy would be slow, and:
arrays enter with one type each (contiguous), no array is allocated, reshaped or assigned as a whole
inside, and few functions are nested, because each caller optimises all that it calls once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit
from numba.extending import register_jitable

Function = TypeVar("Function", bound=Callable[..., Any])


REORDERED = frozenset({"reassoc", "contract", "nsz"})
"""Sums may be reordered so that they vectorise; infinities keep their meaning."""


def _compiler(fastmath: frozenset[str] = REORDERED, **options: Any) -> Callable[[Function], Function]:
    # A division is not checked, which would prevent vectors. Nobody asks for a C entry.
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
"""The same for functions that only those call."""


def anywhere(formula: Function) -> Function:
    """For formulas that NumPy code and compiled functions share: Python runs them as they are."""
    return cast(Function, cast(Any, register_jitable)(error_model="numpy", fastmath=False)(formula))
