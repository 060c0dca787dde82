"""Tokens with equal keys: every W gives them equal logits, so that only the mean of their values matters.

Rows are compared as stored. Computed rows are not compared: equal rows may differ by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.data.tokens import Tokens
from attsvm.numbers.stored import Stored

SUM_TOLERANCE = 1e-12
"""Relative difference below which two sums may be of equal rows."""
AT_ONCE = 1 << 22
"""How many numbers are compared at once."""


def merged(tokens: Tokens, visible: NDArray[np.bool_] | None = None) -> Tokens:
    """The tokens; values of tokens of an example with equal keys are replaced by their mean.

    Attention averages these values for every W, so that its outputs are the same. Without the mean, a token
    with the winner's key and another score keeps its weight in the gradient for ever, with direction
    x_s − x_t = 0; past e^(−745) it hides the weights of all other tokens.
    visible (…, n, d) or (…, n, 1): the entries of keys that the weight uses; None: all of them.
    """
    all_visible = visible is None or bool(visible.all())
    if tokens.values is tokens.keys and all_visible:
        return tokens
    visible = None if all_visible else visible
    keys, values, mask = tokens.keys, tokens.values, tokens.mask
    stored = [x for x in (keys, values) if isinstance(x, Stored)]
    chunks = stored[0].parts() if stored else [slice(None)]
    differ = np.concatenate([_values_differ(_hide(keys[c], visible, c), values[c], mask[c]) for c in chunks])
    if not differ.any():
        return tokens
    if stored:
        means: Any = Stored(AveragedValues(tokens, differ, visible), "values")
    else:
        means = np.array(values)
        for examples in _batches(differ, keys.shape[-2] * keys.shape[-1]):
            visible_keys = _hide(keys[examples], visible, examples)
            means[examples] = _averaged(visible_keys, mask[examples], means[examples])
    with_means = copy(tokens)
    object.__setattr__(with_means, "values", means)
    return with_means


def without_shared_entries(tokens: Tokens) -> Tokens:
    """The tokens with zeros for entries of keys that all tokens of an example share, with values as they are.

    Such an entry moves all logits of the example alike, and its gradient is zero. A sum of products would
    make it rounding, whose sign is a full step of sign descent. Keys in a file stay as they are.
    """
    if isinstance(tokens.keys, Stored):
        return tokens
    keys, mask = tokens.keys, tokens.mask
    ends = [np.argmax(mask, axis=-1), tokens.T - 1 - np.argmax(mask[..., ::-1], axis=-1)]
    first, last = (np.take_along_axis(keys, end[..., None, None], axis=-2)[..., 0, :] for end in ends)
    shared = (first == last) & (first != 0) & (ends[0] < ends[1])[..., None]
    if not shared.any():
        return tokens
    shared &= ((keys == first[..., None, :]) | ~mask[..., None]).all(-2)
    if not shared.any():
        return tokens
    centred = copy(tokens)
    for name in {"key_size", "in_units"} & vars(centred).keys():
        del vars(centred)[name]  # cached for the old keys
    for name, array in (("keys", np.where(shared[..., None, :], 0, keys)), ("values", tokens.values)):
        object.__setattr__(centred, name, array)
    return centred


def equal_rows(rows: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[np.int32] | None:
    """For each token, the first token (…, n, T) of its example with an equal row of numbers (…, n, T, c).

    None if all rows differ. A masked token equals itself only.
    """
    weights = np.random.default_rng(0).random(rows.shape[-1])
    with np.errstate(invalid="ignore", over="ignore"):
        sums = np.sort(np.where(mask, np.einsum("...c,c->...", rows, weights), np.nan), axis=-1)
        # Equal rows have nearly equal weighted sums. The negation includes sums that are infinite.
        close = ~(np.diff(sums, axis=-1) > SUM_TOLERANCE * np.abs(sums[..., 1:])) & ~np.isnan(sums[..., 1:])
    first = np.broadcast_to(np.arange(mask.shape[-1], dtype=np.int32), mask.shape).copy()
    for examples in _batches(close.any(-1), rows.shape[-2] * rows.shape[-1]):
        first[examples] = _first_equal(rows[examples], mask[examples])
    return first if (first != np.arange(mask.shape[-1])).any() else None


class AveragedValues:
    """Stored values, read by slices of examples, and averaged over equal keys.

    differ (n,): the examples in which tokens with equal keys have different values.
    """

    def __init__(self, tokens: Tokens, differ: NDArray[Any], visible: NDArray[Any] | None) -> None:
        self.tokens, self.differ, self.visible = tokens, differ, visible
        self.shape, self.dtype = tokens.values.shape, np.dtype(np.float64)

    def __getitem__(self, examples: slice) -> NDArray[Any]:
        values = np.array(self.tokens.values[examples])
        within = np.flatnonzero(self.differ[examples])
        if within.size:
            averaged = np.arange(len(self.differ))[examples][within]
            keys = _hide(self.tokens.keys[averaged], self.visible, averaged)
            values[within] = _averaged(keys, self.tokens.mask[averaged], values[within])
        return values


def _hide(keys: NDArray[Any], visible: NDArray[Any] | None, examples: Any) -> NDArray[Any]:
    """Keys (…, T, d) of these examples, with zeros in the entries that the weight does not use."""
    return keys if visible is None else np.where(visible[examples][..., None, :], keys, 0)


def _values_differ(keys: NDArray[Any], values: NDArray[Any], mask: NDArray[Any]) -> NDArray[Any]:
    """The examples (…, n) in which tokens with equal keys have different values."""
    first = equal_rows(keys, mask)
    differ = np.zeros(mask.shape[:-1], bool)
    if first is not None:
        examples = np.nonzero((first != np.arange(mask.shape[-1])).any(-1))
        repeated = values[examples]
        of_first = np.take_along_axis(repeated, first[examples][..., None], 1)
        differ[examples] = (repeated != of_first).any((-2, -1))
    return differ


def _first_equal(rows: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[np.int32]:
    """For each token, the first one (m, T) with an equal row, of rows (m, T, c)."""
    position = np.arange(mask.shape[-1])
    digest = np.where(mask, _digest(rows), ~position.astype(np.uint64))
    order = np.argsort(digest, axis=-1, kind="stable")
    rows, mask = np.take_along_axis(rows, order[..., None], 1), np.take_along_axis(mask, order, 1)
    repeats = np.zeros(order.shape, bool)
    repeats[:, 1:] = (rows[:, 1:] == rows[:, :-1]).all(-1) & mask[:, 1:] & mask[:, :-1]
    start = np.maximum.accumulate(np.where(repeats, 0, position), axis=1)
    first = np.empty(order.shape, np.int32)
    np.put_along_axis(first, order, np.take_along_axis(order, start, 1).astype(np.int32), 1)
    return first


def _digest(rows: NDArray[Any]) -> NDArray[np.uint64]:
    """A hash (…) of rows of numbers (…, c)."""
    bits = (rows.astype(np.float64) + 0.0).view(np.uint64)  # −0 is 0
    mixed = (bits ^ (bits >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(29)
    halves = np.random.default_rng(1).integers(0, 2**63, rows.shape[-1], np.uint64)
    odd_factors = halves * np.uint64(2) + np.uint64(1)
    digest: NDArray[np.uint64] = (mixed * odd_factors).sum(-1, dtype=np.uint64)
    return digest


def _averaged(keys: NDArray[Any], mask: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """The values (m, T, c); of tokens with equal keys (m, T, d) and different values, their mean."""
    first = _first_equal(keys, mask)
    group = np.arange(len(first))[:, None], first
    sums, counts, differ = np.zeros(values.shape), np.zeros(first.shape), np.zeros(first.shape, bool)
    np.add.at(sums, group, values)
    np.add.at(counts, group, 1)
    np.logical_or.at(differ, group, (values != values[group]).any(-1))
    means = sums[group] / counts[group][..., None]
    return np.where(differ[group][..., None], means, values)


def _batches(examples: NDArray[np.bool_], numbers: int) -> Iterator[tuple[NDArray[np.intp], ...]]:
    """Indices of the marked examples (…, n) in batches of at most AT_ONCE numbers; each has `numbers`."""
    indices, size = np.argwhere(examples), max(1, AT_ONCE // max(numbers, 1))
    for start in range(0, len(indices), size):
        yield tuple(indices[start : start + size].T)
