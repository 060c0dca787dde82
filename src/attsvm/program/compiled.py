"""How the loops of road one are compiled: once, cached on disk, free of the interpreter's lock."""

from __future__ import annotations

from numba import njit

# Sums may be reordered so that they vectorise, and a division is not checked, which would prevent it;
# infinities keep their meaning.
compiled = njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract", "nsz"})
