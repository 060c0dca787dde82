"""Names for arrays, numbers and trees that the files of this package pass on."""

from __future__ import annotations

from collections.abc import Callable
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
Index = Any
"""A count or an index, or several of them, of Python, NumPy or a program that is traced."""
AnyArray = Any
"""An array of NumPy or JAX, or of a program that is traced; a `Stored` where keys and values may be one."""
Tree = Any
"""A tree of arrays, as JAX understands it: parameters, gradients, the memory of an optimizer."""
Function = Callable[..., Any]
"""A function of trees that is compiled or mapped."""
Options = dict[str, Any]
"""Options or settings by name."""
OptimizerLike = Any
"""An optimizer of ours or of optax; where limits are looked up, also of torch."""
Config = Any
"""JAX's settings, whose names are attributes."""
Device = Any
"""A device of JAX."""
