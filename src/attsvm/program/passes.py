"""Compiled passes over the keys: one read of the data, no copy of it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm.program.factors import compiled
from attsvm.tokens import Float


@compiled
def margins(keys: Float, anchor: NDArray[np.intp], directions: Float, out: Float) -> None:
    """(x_a − x_t)ᵀ y_i, the difference first: keys (n, T, d), anchor (n,), y (n, d) → out (n, T)."""
    n, T, d = keys.shape
    for i in range(n):
        first, y = keys[i, anchor[i]], directions[i]
        for t in range(T):
            total, token = 0.0, keys[i, t]
            for c in range(d):
                total += (first[c] - token[c]) * y[c]
            out[i, t] = total


@compiled
def sums(keys: Float, anchor: NDArray[np.intp], multipliers: Float, out: Float) -> None:
    """Σ_t λ_it (x_a − x_t), reading only tokens with a multiplier: λ (n, T) → out (n, d), zero at first."""
    n, T, d = keys.shape
    for i in range(n):
        first = keys[i, anchor[i]]
        for t in range(T):
            weight = multipliers[i, t]
            if weight != 0.0:
                token = keys[i, t]
                for c in range(d):
                    out[i, c] += weight * (first[c] - token[c])
