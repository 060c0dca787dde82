"""How the loops of road one are compiled: once, cached on disk, free of the interpreter's lock.

Compilation is what a first call waits for, so a loop is compiled only where NumPy would be slow, and:
arrays enter with one type each (contiguous), no array is allocated, reshaped or assigned as a whole
inside, and few functions are nested, because each caller optimises all that it calls once more.
"""

from __future__ import annotations

from typing import Any

from numba import njit

# Sums may be reordered so that they vectorise, and a division is not checked, which would prevent it;
# infinities keep their meaning.
_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",
    "fastmath": {"reassoc", "contract", "nsz"},
}

compiled = njit(cache=True, no_cfunc_wrapper=True, **_OPTIONS)
"""For functions that Python calls."""

inner = njit(no_cpython_wrapper=True, no_cfunc_wrapper=True, **_OPTIONS)
"""For functions that only compiled functions call: no entry from Python, no file of their own."""
