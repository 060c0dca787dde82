"""Names for arrays, numbers and trees that the files of this package pass on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]
"""Real numbers of any precision, on the host."""
Arrays = dict[str, Floats]
"""Arrays of the host by name: parameters, or records of a run."""
Flags = NDArray[np.bool_]
Steps = NDArray[np.int64]
Shape = tuple[int, ...]
Scalar = Any
"""A number or one number per run, of Python, NumPy or a program that is traced."""
Tree = Any
"""A tree of arrays, as JAX understands it: parameters, gradients, the memory of an optimizer."""
