"""Tokens as the compiled programs read them: in the precision in which they are stored, with their ties.

Which tokens of an example score alike is decided once, on the host, before any step. A token with the
winner's score does not pull. Past saturation the rounding of its score, at a weight of e^(−1), would outweigh
the others at e^(−200); and compiled programs may round equal scores differently.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from attsvm.data.equal_keys import AT_ONCE, equal_rows
from attsvm.data.tokens import Tokens
from attsvm.numbers.stored import Stored
from attsvm.training.prediction_heads import Head, Linear
from attsvm.training.types import AnyArray, Flags, Floats


class Data(NamedTuple):
    """The arrays of Tokens as JAX arrays."""

    keys: Array  # (n, T, d)
    queries: Array  # (n, e)
    labels: Array  # (n,)
    mask: Array | None  # (n, T); None where nothing is masked
    values: Array | None  # (n, T, c); None where they are the keys
    fence: Array | None = None  # see runs.contract
    share: Array | None = None  # (n,) of each example in a mean; None: 1/n
    alike: Array | None = None  # (n, T) the first token of the same value; None where values differ


def arrays(tokens: Tokens) -> Data:
    """The tokens as NumPy's arrays."""
    return of_examples(tokens, slice(0, tokens.n))


def of_examples(tokens: Tokens, examples: slice | Floats) -> Data:
    """The tokens of some examples, a slice or increasing indices, as NumPy's arrays.

    Stored numbers as they are stored, bfloat16 as bits (`widened`).
    """

    def rows(array: AnyArray) -> AnyArray:
        if isinstance(array, Stored):
            return array.raw(examples)
        every = isinstance(examples, slice) and examples == slice(0, tokens.n)
        return array if every else array[..., examples, :, :]

    mask = None if tokens.mask.all() else tokens.mask[..., examples, :]
    values = None if tokens.values is tokens.keys else rows(tokens.values)
    queries: AnyArray = tokens.queries[..., examples, :]
    labels: AnyArray = tokens.labels[..., examples]
    return Data(rows(tokens.keys), queries, labels, mask, values)  # type: ignore[arg-type]


def widened(data: Data, dtype: Any) -> Data:
    """Keys and values in this type.

    bfloat16 comes as bits: XLA for CPUs would widen a whole array of bfloat16 before it slices it.
    """

    def wide(x: Array) -> Array:
        bits = x.dtype == jnp.uint16
        return (lax.bitcast_convert_type(x, jnp.bfloat16) if bits else x).astype(dtype)

    values = None if data.values is None else wide(data.values)
    return data._replace(keys=wide(data.keys), values=values)


# ---------------------------------------------------------------------- ties


def with_scores(tokens: Tokens, head: Head, trained: bool) -> tuple[Data, Floats | None]:
    """The tokens' arrays, and for every run the scores of a linear head that is not trained, (…, n, T).

    Where scores are not fixed, tokens tie if their values are equal: then the data have `alike`. So do values
    in half precision, which are not widened for scores.
    """
    data: Any = arrays(tokens)
    values = data.keys if data.values is None else data.values
    if isinstance(head, Linear) and not trained and values.dtype == head.v.dtype:
        return data, linear_scores(values, tokens.labels, tokens.mask, head.v)
    return data._replace(alike=equal_values(tokens)), None


def equal_values(tokens: Tokens) -> NDArray[np.int32] | None:
    """The first token (…, n, T) of the same value; None where all values differ."""
    values = tokens.values
    if not isinstance(values, Stored):
        return equal_rows(values, tokens.mask)
    chunks = list(values.parts())
    alike = [equal_rows(values[chunk], tokens.mask[chunk]) for chunk in chunks]
    if all(first is None for first in alike):
        return None
    every_token = np.broadcast_to(np.arange(tokens.T, dtype=np.int32), tokens.mask.shape)
    return np.concatenate(
        [every_token[chunk] if first is None else first for chunk, first in zip(chunks, alike, strict=True)]
    )


def linear_scores(values: AnyArray, labels: AnyArray, mask: AnyArray, v: AnyArray) -> Floats:
    """γ_t = Y vᵀ value_t, (n, T) behind the runs and heads of v (…, c); those that tie are the same number.

    Scores tie where their difference may be rounding; with a single entry of v no sum is rounded. values (n,
    T, c), labels (n,) and mask (n, T) of all runs, or each with the runs first.
    """
    if values.ndim > 3:
        heads = tuple(range(1, v.ndim - 1))
        values, labels, mask = (np.expand_dims(x, heads) for x in (values, labels, mask))
    scores = _products(values, v)
    terms = np.count_nonzero(v, axis=-1)
    unit = np.where(terms > 1, 2 * terms, 0) * np.finfo(v.dtype).eps  # rounding of two sums, in their terms
    size = max(values.max(), -values.min())
    place = np.nonzero(_near(scores, (unit * np.abs(v).sum(-1) * size)[..., None, None], mask)[1].any(-1))
    step = max(1, AT_ONCE // (values.shape[-2] * values.shape[-1]))
    for begin in range(0, len(place[0]), step):
        block = tuple(index[begin : begin + step] for index in place)
        rows = np.broadcast_to(values, (*scores.shape, v.shape[-1]))[block]
        heads_of_rows = np.broadcast_to(v[..., None, :], (*scores.shape[:-1], v.shape[-1]))[block]
        doubt = unit[block[:-1]][..., None] * (np.abs(rows) * np.abs(heads_of_rows)[:, None]).sum(-1)
        scores[block] = _snapped(scores[block], doubt, np.broadcast_to(mask, scores.shape)[block])
    return np.asarray(labels[..., None] * scores, scores.dtype)


def _products(values: Floats, v: Floats) -> Floats:
    """vᵀ value (…, n, T)."""
    if values.ndim > 3 or v.ndim == 1:
        return np.asarray(np.matmul(values, v[..., None, :, None])[..., 0])
    products = np.matmul(values, v.reshape(-1, v.shape[-1]).T)  # runs and heads that share the values
    return np.ascontiguousarray(np.moveaxis(products, -1, 0)).reshape(*v.shape[:-1], *values.shape[:2])


def _near(scores: Floats, doubt: AnyArray, mask: AnyArray) -> tuple[Floats, Flags]:
    """The order of the scores (…, T), and which of them are no farther than the doubt from the one before."""
    order = np.argsort(np.where(mask, scores, np.inf), axis=-1, kind="stable")
    ordered = np.take_along_axis(scores, order, -1)
    doubt = np.take_along_axis(np.broadcast_to(doubt, scores.shape), order, -1)
    near = np.take_along_axis(np.broadcast_to(mask, scores.shape), order, -1)
    near[..., 0] = False
    near[..., 1:] &= np.diff(ordered, axis=-1) <= np.maximum(doubt[..., 1:], doubt[..., :-1])
    return order, near


def _snapped(scores: Floats, doubt: AnyArray, mask: AnyArray) -> Floats:
    """Scores, where each chain of neighbours closer than their doubt takes the lowest score of the chain."""
    order, near = _near(scores, doubt, mask)
    begin = np.maximum.accumulate(np.where(near, 0, np.arange(order.shape[-1])), axis=-1)
    lowest = np.take_along_axis(np.take_along_axis(scores, order, -1), begin, -1)
    snapped = np.empty_like(scores)
    np.put_along_axis(snapped, order, lowest, -1)
    return snapped
