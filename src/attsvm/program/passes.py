"""Compiled passes over the keys: one read of the data, no copy of it, whatever its precision."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm.program.compiled import compiled
from attsvm.program.threads import in_threads
from attsvm.stored import PricedThere, Stored
from attsvm.tokens import Float

HALF, BRAIN = 13, 16
"""Bits by which float16 and bfloat16 are shifted to become float32, the former 2^−112 times as large."""


def stored_margins(
    keys: Stored, examples: NDArray[np.intp], anchor: NDArray[np.intp], queries: Float, W: Float
) -> Float:
    """(x_a − x_t)ᵀ W z of some examples that are stored elsewhere, part by part, on all cores.

    examples (k,): increasing; anchor (k,), queries (k, e), W (d, e) → (k, T).
    """
    keys.passes += len(examples) / len(keys)
    if keys.exponent is not None:
        queries = np.ldexp(queries, -keys.exponent[examples, None])
    if isinstance(keys, PricedThere):
        return keys.margins(examples, anchor, queries, W)
    out, anchor = np.empty((len(examples), keys.shape[1])), np.ascontiguousarray(anchor)

    def work(part: slice) -> None:
        raw = keys.raw(examples[part])
        raw.flags.writeable = False  # one kind of array, one compilation
        first, y = anchor[part], np.ascontiguousarray(queries[part] @ W.T)
        if raw.itemsize == 2:
            scratch = np.empty((2, raw.shape[2]), np.uint32)
            shift = HALF if raw.dtype == np.float16 else BRAIN
            bits = raw.view(np.uint16)
            half_margins(bits, shift, first, y, scratch, scratch.view(np.float32), out[part])
        else:
            margins(raw, first, y, out[part])

    in_threads(work, keys.parts(len(examples)))
    return out


@compiled
def margins(keys: Float, anchor: NDArray[np.intp], directions: Float, out: Float) -> None:
    """(x_a − x_t)ᵀ y_i, the difference first: keys (n, T, d), anchor (n,), y (n, d) → out (n, T)."""
    n, T, d = keys.shape
    for i in range(n):
        first, y = keys[i, anchor[i]], directions[i]
        for t in range(T):
            total, token = 0.0, keys[i, t]
            for c in range(d):
                total += (np.float64(first[c]) - np.float64(token[c])) * y[c]
            out[i, t] = total


@compiled
def half_margins(
    bits: NDArray[np.uint16],
    shift: int,
    anchor: NDArray[np.intp],
    directions: Float,
    scratch: NDArray[np.uint32],
    numbers: NDArray[np.float32],
    out: Float,
) -> None:
    """The same for numbers of 16 bits; scratch (2, d) is memory, and numbers (2, d) its float32 view.

    Shifted to the place of float32, exponent and fraction are those of a number 2^−112 times as large
    (float16), or of the number itself (bfloat16): subnormal numbers too, and without a table.
    """
    n, T, d = bits.shape
    scale = 2.0**112 if shift == HALF else 1.0
    for i in range(n):
        y = directions[i]
        for j in range(T + 1):
            t = anchor[i] if j == 0 else j - 1
            row, token = 0 if j == 0 else 1, bits[i, t]
            for c in range(d):
                b = np.uint32(token[c])
                scratch[row, c] = ((b & np.uint32(0x8000)) << 16) | ((b & np.uint32(0x7FFF)) << shift)
            if j > 0:
                total = 0.0
                for c in range(d):
                    total += (np.float64(numbers[0, c]) - np.float64(numbers[1, c])) * y[c]
                out[i, t] = scale * total


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


@compiled
def widen(
    bits: NDArray[np.uint16],
    shift: int,
    centre: NDArray[np.float32],
    scratch: NDArray[np.uint32],
    out: NDArray[np.float32],
) -> None:
    """x − centre in float32 of numbers of 16 bits: (m, d), (d,) → out (m, d), whose bits are scratch."""
    m, d = bits.shape
    scale = np.float32(2.0**112 if shift == HALF else 1.0)
    for t in range(m):
        for c in range(d):
            b = np.uint32(bits[t, c])
            scratch[t, c] = ((b & np.uint32(0x8000)) << 16) | ((b & np.uint32(0x7FFF)) << shift)
        for c in range(d):
            out[t, c] = scale * out[t, c] - centre[c]
