"""Compiled passes over the keys: one read of the data, no copy of it, whatever its precision."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Float
from attsvm.numbers.compiled import compiled
from attsvm.numbers.halves import BRAIN, HALF, SCALE, shifted, single
from attsvm.numbers.stored import PricedThere, Stored
from attsvm.numbers.threads import in_threads

TINY = 1e-140
"""A row shorter than this is zero: its square has no digits left."""

DEPENDENT = 1e-12
"""A row of length one this close to the span of others depends on them."""


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
    """The same for numbers of 16 bits; scratch (2, d) is memory, and numbers (2, d) its float32 view."""
    n, T, d = bits.shape
    scale = SCALE if shift == HALF else 1.0  # once for a token: keys are finite
    for i in range(n):
        y = directions[i]
        for j in range(T + 1):
            t = anchor[i] if j == 0 else j - 1
            row, token = 0 if j == 0 else 1, bits[i, t]
            for c in range(d):
                scratch[row, c] = shifted(token[c], shift)
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
def unit_differences(keys, anchor, example, token, out, length):  # type: ignore[no-untyped-def]
    """(x_a − x_t) / |x_a − x_t| and its length for named rows: (k,), (k,) → out (k, d), length (k,)."""
    for j in range(len(example)):
        i, square = example[j], 0.0
        first, other = keys[i, anchor[i]], keys[i, token[j]]
        for c in range(keys.shape[2]):
            out[j, c] = first[c] - other[c]
            square += out[j, c] * out[j, c]
        length[j] = np.sqrt(square)
        scale = 1.0 / length[j] if length[j] > 0.0 else 1.0
        for c in range(keys.shape[2]):
            out[j, c] *= scale


@compiled
def row_margins(delta: Float, owner: NDArray[np.intp], directions: Float, out: Float) -> None:
    """δ_jᵀ y of its example: delta (k, d), owner (k,), y (g, d) → out (k,)."""
    for j in range(len(delta)):
        total, i = 0.0, owner[j]
        for c in range(delta.shape[1]):
            total += delta[j, c] * directions[i, c]
        out[j] = total


@compiled
def row_sums(delta: Float, owner: NDArray[np.intp], multipliers: Float, out: Float) -> None:
    """Σ_j λ_j δ_j of each example: λ (k,) → out (g, d), zero at first."""
    for j in range(len(delta)):
        weight, i = multipliers[j], owner[j]
        if weight != 0.0:
            for c in range(delta.shape[1]):
                out[i, c] += weight * delta[j, c]


# What is asked: separating (n, T), required, allowed, ease (n,). What is known: see `working_set.Slacks`.


@compiled
def price(keys, anchor, directions, factor, size, examples, moved, asked, known):  # type: ignore[no-untyped-def]
    """Measure the rows of the named examples (k,) that may be violated; the differences come first.

        slack_it = (factor_i δ_itᵀ y_i − required_i) / |z_i| ‖δ_it‖,   δ_it = x_a − x_t

    keys (n, T, d); directions (n, d), or (1, d) for all; moved (r,): the distance of W from the points of
    all rounds before. A slack changes by no more, so a row with a larger one holds and is not read. A
    zero row that asks for a margin has slack −∞.
    """
    (separating, required, allowed, ease), (slack, length, turn, least, token) = asked, known
    T, d = keys.shape[1:]
    one = len(directions) == 1
    for i in examples:
        first, y, easy = keys[i, anchor[i]], directions[0 if one else i], ease[i]
        bound = required[i]
        lowest, second = np.inf, np.inf
        for t in range(T):
            if slack[i, t] + easy >= moved[turn[i, t]] or not separating[i, t]:
                continue
            # One loop in one function: calls and views per token cost as much as the arithmetic.
            dot, other = 0.0, keys[i, t]
            for c in range(d):
                dot += (first[c] - other[c]) * y[c]
            span = length[i, t]
            if span == np.inf:
                square = 0.0
                for c in range(d):
                    square += (first[c] - other[c]) * (first[c] - other[c])
                span = length[i, t] = size[i] * np.sqrt(square)
            over = factor[i] * dot - bound
            slack[i, t], turn[i, t] = over / span if span > TINY else over, len(moved)
            over += allowed[i]
            short = over / span if span > TINY else (-np.inf if over < 0 else np.inf)
            if short < lowest:
                second, token[i, 1] = lowest, token[i, 0]
                lowest, token[i, 0] = short, t
            elif short < second:
                second, token[i, 1] = short, t
        least[i, 0], least[i, 1] = lowest, second


@compiled
def doubt(examples, moved, asked, known):  # type: ignore[no-untyped-def]
    """Mark in least (n, 2), ∞ before, the named examples that have a row which may be violated."""
    (separating, _, _, ease), (slack, _, turn, least, _) = asked, known
    for i in examples:
        for t in range(slack.shape[1]):
            if separating[i, t] and not slack[i, t] + ease[i] >= moved[turn[i, t]]:
                least[i, 0] = 0.0
                break


@compiled
def note(examples, now, margins, asked, known):  # type: ignore[no-untyped-def]
    """What `price` writes, for examples (k,) whose margins (k, T) are known; least is ∞ for the others."""
    (separating, required, allowed, _), (slack, length, turn, least, token) = asked, known
    for place in range(len(examples)):
        i = examples[place]
        lowest, second = np.inf, np.inf
        for t in range(slack.shape[1]):
            if not separating[i, t]:
                continue
            span, over = length[i, t], margins[place, t] - required[i]
            slack[i, t], turn[i, t] = over / span if span > TINY else over, now
            over += allowed[i]
            short = over / span if span > TINY else (-np.inf if over < 0 else np.inf)
            if short < lowest:
                second, token[i, 1] = lowest, token[i, 0]
                lowest, token[i, 0] = short, t
            elif short < second:
                second, token[i, 1] = short, t
        least[i, 0], least[i, 1] = lowest, second


@compiled
def widen(
    bits: NDArray[np.uint16], shift: int, centre: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    """x − centre in float32 of numbers of 16 bits: (m, d), (d,) → out (m, d)."""
    m, d = bits.shape
    for t in range(m):
        for c in range(d):
            out[t, c] = single(bits[t, c], shift) - centre[c]
