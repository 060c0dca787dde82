"""How the loops of road one are compiled: once, cached on disk, free of the interpreter's lock.

Compilation is what a first call waits for, so a loop is compiled only where NumPy would be slow, and:
arrays enter with one type each (contiguous), no array is allocated, reshaped or assigned as a whole
inside, and few functions are nested, because each caller optimises all that it calls once more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., Any])


def _compiler(**options: Any) -> Callable[[Function], Function]:
    # Sums may be reordered so that they vectorise, and a division is not checked, which would prevent
    # it; infinities keep their meaning. Nobody asks for a C entry.
    fastmath = {"reassoc", "contract", "nsz"}
    make = cast(Any, njit)(
        nogil=True, error_model="numpy", fastmath=fastmath, no_cfunc_wrapper=True, **options
    )
    return cast(Callable[[Function], Function], make)


compiled = _compiler(cache=True)
"""For functions that Python calls."""

inner = _compiler(no_cpython_wrapper=True)
"""For functions that only compiled functions call: no entry from Python, no file of their own."""
