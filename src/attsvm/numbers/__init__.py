"""Numbers wherever they live and however exact; the floor that both roads stand on.

`stored/`: arrays that stay in a file, on a GPU or on a cluster, one file per home. `archives.py`: files of
arrays. `library.py`: torch and JAX, where an array is theirs. `threads.py`, `compiled.py`: how loops use the
cores. `halves.py`: 16 bits there; `elementary.py`: functions that vectorise. `doubled.py`: twice the digits.
`linear.py`: factors and conjugate gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.floating[Any]]
Bool = NDArray[np.bool_]
Index = NDArray[np.intp]

Values = NDArray[Any]
"""One of NumPy's arrays, of any type: labels, or numbers as they are stored."""

Array = Any
"""An array of whatever library holds it: NumPy, torch, JAX, or what has shape, dtype and slices."""
