"""Tokens as the compiled programs read them: all or some, where and in the precision they are stored."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from attsvm.data.token_arrays import sizes
from attsvm.data.tokens import Tokens
from attsvm.numbers.stored import COPY_LIMIT, Stored


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


def check_size(tokens: Tokens, v: NDArray[Any] | None, units: Any = None) -> None:
    """Refuse tokens whose gradient, a product of keys, queries and scores, no number can hold.

    It would be zero, and the run "saturated", or infinite and "diverged". v: of a linear head; units: powers
    of two by which keys and queries are divided before, in float64.
    """
    values, known = tokens.key_size, np.finfo(tokens.keys.dtype if units is None else np.float64)
    if tokens.values is not tokens.keys:  # what lies elsewhere is not read for this
        values = np.ones(1) if isinstance(tokens.values, Stored) else sizes(tokens.values, tokens.mask)
    of_keys, of_queries = (0, 0) if units is None else units
    with np.errstate(divide="ignore"):
        head = 0.0 if v is None else np.log2(np.abs(v).max())
        keys, queries, scores = (
            np.log2(x.astype(float)) for x in (tokens.key_size, tokens.query_size, values)
        )
    parts = [keys - of_keys, queries - of_queries, scores + head]
    power = sum(parts).max()  # −∞ where all are zero, which has no gradient at any scale
    least = min(part.max() for part in (*parts, scores))  # what is less than normal is zero on a device
    small = power < known.minexp + known.nmant or least < known.minexp
    if power >= known.maxexp or (-np.inf < power and small):
        told = ", ".join(f"2^{part.max():.0f}" for part in parts)
        raise ValueError(
            f"keys, queries and scores reach {told}: they or their product, as a gradient has it, are beyond "
            f"{known.dtype}. Divide each of them by its size."
        )


def arrays(tokens: Tokens) -> Data:
    """The tokens as NumPy's arrays."""
    return some(tokens, slice(0, tokens.n))


def some(tokens: Tokens, examples: slice | NDArray[Any]) -> Data:
    """Some examples, a stretch or increasing places, as NumPy's arrays.

    Stored numbers as they are stored, bfloat16 as bits (`widened`).
    """

    def there(array: Any) -> Any:
        if isinstance(array, Stored):
            return array.raw(examples)
        whole = isinstance(examples, slice) and examples == slice(0, tokens.n)
        return array if whole else array[..., examples, :, :]

    mask = None if tokens.mask.all() else tokens.mask[..., examples, :]
    values = None if tokens.values is tokens.keys else there(tokens.values)
    queries: Any = tokens.queries[..., examples, :]
    labels: Any = tokens.labels[..., examples]
    return Data(there(tokens.keys), queries, labels, mask, values)  # type: ignore[arg-type]


def in_place(tokens: Tokens) -> Tokens:
    """Tokens as training reads them: large files as they are, all else (small ones, a GPU's) from memory."""
    stored = [x for x in (tokens.keys, tokens.values) if isinstance(x, Stored)]
    near = all(type(x) is Stored for x in stored)
    return tokens if near and sum(x.size for x in stored) > COPY_LIMIT else tokens.in_memory()


def widened(data: Data, dtype: Any) -> Data:
    """Keys and values in this type.

    Bits, since XLA for CPUs slices bfloat16 as float32: it would widen all of them first.
    """

    def wide(x: Array) -> Array:
        bits = x.dtype == jnp.uint16
        return (lax.bitcast_convert_type(x, jnp.bfloat16) if bits else x).astype(dtype)

    values = None if data.values is None else wide(data.values)
    return data._replace(keys=wide(data.keys), values=values)
