"""The leading runs axis: who has it, and how the others are shared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Named = Mapping[str, NDArray[Any]]


def counts(arrays: Named, axes: Mapping[str, int]) -> dict[str, int]:
    """Number of runs of every array that has one axis more than its own `axes[name]`."""
    return {name: a.shape[0] for name, a in arrays.items() if a.ndim > axes[name]}


def common(found: Mapping[str, int | None]) -> int | None:
    """The number of runs that all agree on; None where nothing has a runs axis."""
    given = {name: count for name, count in found.items() if count is not None}
    if len(set(given.values())) > 1:
        raise ValueError(f"the runs axes differ: {given}. Give every array the same number, or none.")
    for name, count in given.items():
        if count == 0:
            raise ValueError(f"{name} has 0 runs. Pass at least one, or an array without a runs axis.")
    return next(iter(given.values()), None)


def repeated(arrays: Named, axes: Mapping[str, int], runs: int | None) -> dict[str, NDArray[Any]]:
    """Every array with the runs axis, shared ones repeated; unchanged without runs."""
    return {
        name: a if runs is None or a.ndim > axes[name] else np.broadcast_to(a, (runs, *a.shape))
        for name, a in arrays.items()
    }
