"""What a step needs of the examples: sums over them, taken at once or chunk by chunk.

Keys in half or single precision are widened one chunk at a time, and data larger than the memory are read so
(streaming.py). The sums are those over all examples: each carries its own log scale, so none underflows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from attsvm.training import attention
from attsvm.training.attention import Data, Scaled
from attsvm.training.heads import Head, Linear
from attsvm.training.losses import Loss

WIDENED = 1 << 20
"""Numbers of the keys that are widened at once (8 MB in float64)."""


class Asked(NamedTuple):
    """Which sums: the slope of the weight, that of a trained head, the mean loss, log(L − L*)."""

    slope: bool = False
    pull: bool = False
    loss: bool = False
    excess: bool = False


class Sums(NamedTuple):
    """The sums that were asked for, None in the place of the others."""

    slope: Scaled | None
    pull: Scaled | None
    loss: Array | None
    log_excess: Array | None


def over_examples(
    asked: Asked, loss: Loss, data: Data, W: Array, head: Head, scores: Array | None, chunk: int | None
) -> Sums:
    """The sums over all examples; chunk: how many at once, None for all."""
    if chunk is None or chunk >= data.labels.shape[0]:
        return over_chunk(asked, loss, data, W, head, scores)
    n = data.labels.shape[0]
    if data.share is None:
        data = data._replace(share=jnp.full_like(data.labels, 1 / n))

    def one(i: Any) -> Sums:
        begin = jnp.minimum(i * chunk, n - chunk)  # the last chunk is as long as the others

        def cut(x: Array) -> Array:
            return lax.dynamic_slice_in_dim(x, begin, chunk)

        part, own = jax.tree.map(cut, (data, scores))
        new = begin + jnp.arange(chunk) >= i * chunk
        part = part._replace(share=jnp.where(new, part.share, 0))
        return over_chunk(asked, loss, part, W, head, own)

    nothing = empty(jax.eval_shape(one, 0))
    return lax.fori_loop(0, -(-n // chunk), lambda i, found: added(found, one(i)), nothing)


def over_chunk(asked: Asked, loss: Loss, data: Data, W: Array, head: Head, scores: Array | None) -> Sums:
    """The sums over these examples, whose keys and values may be narrower than the weight."""
    data = data._replace(
        keys=data.keys.astype(W.dtype), values=None if data.values is None else data.values.astype(W.dtype)
    )
    look = attention.attend(data, W)
    reading = attention.read(data, look, head, scores)
    excess = None
    if asked.excess and isinstance(head, Linear):
        excess = attention.log_excess(data, look, reading.scores, loss)
    elif asked.excess:
        excess = jnp.full(reading.margin.shape[1:], jnp.nan, reading.margin.dtype)
    return Sums(
        attention.gradient(data, look, reading, loss) if asked.slope else None,
        attention.head_gradient(data, look, reading, loss) if asked.pull else None,
        attention.mean_loss(data, reading, loss) if asked.loss else None,
        excess,
    )


def empty(like: Sums) -> Sums:
    """Sums over no examples."""
    zeros: Sums = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
    return zeros if zeros.log_excess is None else zeros._replace(log_excess=zeros.log_excess - jnp.inf)


def added(one: Sums, other: Sums) -> Sums:
    return Sums(
        None if one.slope is None or other.slope is None else attention.added(one.slope, other.slope),
        None if one.pull is None or other.pull is None else attention.added(one.pull, other.pull),
        None if one.loss is None or other.loss is None else one.loss + other.loss,
        None
        if one.log_excess is None or other.log_excess is None
        else jnp.logaddexp(one.log_excess, other.log_excess),
    )
