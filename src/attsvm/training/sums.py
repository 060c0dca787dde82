"""What a step needs of the examples: sums over them, which are looked at all at once or block by block.

A block of keys is read from the memory once and used twice; keys in half or single precision are widened one
block at a time. Of data larger than the memory (streaming.py) sums over chunks are added: each carries its
own log scale, so none underflows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from attsvm.tokens import Tokens
from attsvm.training import attention
from attsvm.training.attention import Attention, Data, Reading, Scaled
from attsvm.training.heads import Head, Linear
from attsvm.training.losses import Loss

CACHED, WIDENED = 1 << 15, 1 << 20
"""Numbers of keys and values in a block: as a core's own cache holds (256 kB in float64); on other devices,
where narrow ones only are looked at in blocks, 8 MB."""
LARGE = 1 << 22
"""Numbers of float64 keys from which on blocks gain: fewer of them a cache that cores share may hold."""


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


def block(tokens: Tokens, cpu: bool) -> int | None:
    """How many examples are looked at in turn, None for all at once."""
    numbers = tokens.T * (tokens.d + (0 if tokens.values is tokens.keys else tokens.values.shape[-1]))
    if tokens.stored:
        return max(1, (CACHED if cpu else WIDENED) // numbers)
    gains = cpu and tokens.runs is None and tokens.n * numbers >= LARGE and numbers <= 2 * CACHED
    return max(1, CACHED // numbers) if gains else None


class Seen(NamedTuple):
    """What is known of each example: attention, what the head reads; in blocks, pull and attended value."""

    look: Attention
    reading: Reading
    pulled: Array | None
    attended: Array | None


def over_examples(
    asked: Asked, loss: Loss, data: Data, W: Array, head: Head, scores: Array | None, block: int | None
) -> Sums:
    """The sums over all examples; block: how many are looked at in turn, None for all at once.

    A block of keys that a core's cache holds is read from the memory once, for logits and for pulls.
    """

    n = data.labels.shape[0]
    if block is None or block >= n:
        data = attention.widened(data, W.dtype)
        look = attention.attend(data, W)
        reading, pulled, attended = attention.read(data, look, head, scores), None, None
    else:

        def looked(data: Data, directions: Array, scores: Array | None) -> Seen:
            return _looked(asked, data, directions, head, scores)

        given = data, attention.directions(data, W), scores
        look, reading, pulled, attended = in_blocks(looked, n, block, *given)
    excess = None
    if asked.excess and isinstance(head, Linear):
        excess = attention.log_excess(data, look, reading.scores, loss)
    elif asked.excess:
        excess = jnp.full(reading.margin.shape[1:], jnp.nan, reading.margin.dtype)
    return Sums(
        attention.gradient(data, look, reading, loss, pulled) if asked.slope else None,
        attention.head_gradient(data, look, reading, loss, attended) if asked.pull else None,
        attention.mean_loss(data, reading, loss) if asked.loss else None,
        excess,
    )


def in_blocks(function: Callable[..., Any], n: int, block: int, *given: Any) -> Any:
    """A function of n examples, which are the first axis of all arrays, computed in blocks of them."""

    def cut(begin: Any) -> Any:
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, begin, block), given)

    def filled(i: Any, room: Any) -> Any:
        begin = jnp.minimum(i * block, n - block)  # the last block is as long as the others
        found = function(*cut(begin))
        put = partial(lax.dynamic_update_slice_in_dim, start_index=begin, axis=0)
        return jax.tree.map(put, room, found)

    shapes = jax.eval_shape(function, *cut(0))
    room = jax.tree.map(lambda x: jnp.zeros((n, *x.shape[1:]), x.dtype), shapes)
    return lax.fori_loop(0, -(-n // block), filled, room)


def _looked(asked: Asked, data: Data, directions: Array, head: Head, scores: Array | None) -> Seen:
    data = attention.widened(data, directions.dtype)
    look = attention.attend_along(data, directions)
    reading = attention.read(data, look, head, scores)
    return Seen(
        look,
        reading,
        attention.pulls(data, look, reading) if asked.slope else None,
        attention.pooled(data, look) if asked.pull else None,
    )


def added(one: Sums, other: Sums) -> Sums:
    return Sums(
        None if one.slope is None or other.slope is None else attention.added(one.slope, other.slope),
        None if one.pull is None or other.pull is None else attention.added(one.pull, other.pull),
        None if one.loss is None or other.loss is None else one.loss + other.loss,
        None
        if one.log_excess is None or other.log_excess is None
        else jnp.logaddexp(one.log_excess, other.log_excess),
    )
