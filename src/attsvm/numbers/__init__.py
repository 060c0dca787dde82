"""Numbers in any place and of any precision, for programs and training.

stored/: arrays that stay in a file, on a GPU or on a cluster, one file per place. files.py reads and writes
files of arrays, in the formats of archives.py; atomic_write.py replaces a file at once. library.py: one
interface for arrays of torch and JAX. compiled.py: how loops are compiled, with functions that vectorise and
numbers of 16 bits in them. threads.py: how loops use the cores. doubled.py: numbers of twice the precision.
linear.py: Cholesky factors and conjugate gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.floating[Any]]
Bool = NDArray[np.bool_]
Index = NDArray[np.intp]

Values = NDArray[Any]
"""A NumPy array of any type: labels, or numbers as they are stored."""

Array = Any
"""An array of any library: NumPy, torch, JAX, or an object with shape, dtype and slices."""
