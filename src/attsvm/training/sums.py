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

from attsvm.training import attention
from attsvm.training.attention import Attention, Reading, Scaled
from attsvm.training.data import Data, widened
from attsvm.training.losses import Loss
from attsvm.training.prediction_heads import Head, Linear, LinearHeads, SquaredError, over_heads


class Needed(NamedTuple):
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


class Seen(NamedTuple):
    """What is known of each example: attention, what the head reads; in blocks, pull and attended value."""

    look: Attention
    reading: Reading
    pulled: Scaled | None
    attended: Array | None


def over_examples(
    needed: Needed, loss: Loss, data: Data, W: Array, head: Head, scores: Array | None, block: int | None
) -> Sums:
    """The sums over all examples; block: how many are looked at in turn, None for all at once.

    A block of keys that a core's cache holds is read from the memory once, for logits and for pulls.
    Several heads (W, values and scores with the heads first) each attend by themselves; what they have in
    common is the margin, the sum of theirs. Each has a slope in its own log scale.
    """
    if block is None or block >= data.labels.shape[0]:
        data = widened(data, W.dtype)
        seen = over_heads(partial(_seen, data), head)(W, head, scores)
    else:
        seen = _seen_in_blocks(needed, data, W, head, scores, block)
    margin = _of_all_heads(seen.reading.margin, head)

    def slope(seen: Seen) -> Scaled:
        return attention.gradient(data, seen.look, seen.reading._replace(margin=margin), loss, seen.pulled)

    def pull(seen: Seen) -> Scaled:
        reading = seen.reading._replace(margin=margin)
        return attention.head_gradient(data, seen.look, reading, loss, seen.attended)

    return Sums(
        over_heads(slope, head)(seen) if needed.slope else None,
        over_heads(pull, head)(seen) if needed.pull else None,
        attention.mean_loss(data, margin, loss) if needed.loss else None,
        _log_excess(data, seen, head, loss) if needed.excess else None,
    )


def _log_excess(data: Data, seen: Seen, head: Head, loss: Loss) -> Array:
    if not isinstance(head, (Linear, SquaredError)):
        return jnp.full(seen.reading.margin.shape[1:], jnp.nan, seen.reading.margin.dtype)
    best, log_drop = over_heads(partial(attention.drops, data), head)(seen.look, seen.reading)
    if isinstance(head, LinearHeads):
        log_drop = jax.nn.logsumexp(log_drop, axis=0)
    return attention.log_excess(data, _of_all_heads(best, head), log_drop, loss)


def _of_all_heads(each: Array, head: Head) -> Array:
    return each.sum(0) if isinstance(head, LinearHeads) else each


def _seen(data: Data, W: Array, head: Head, scores: Array | None) -> Seen:
    scores = attention.known_scores(data, head, scores)
    look = attention.attend(data, W, scores=scores)
    return Seen(look, attention.read(data, look, head, scores), None, None)


def _seen_in_blocks(
    needed: Needed, data: Data, W: Array, head: Head, scores: Array | None, block: int
) -> Seen:
    several = isinstance(head, LinearHeads)

    def looked(data: Data, directions: Array, scores: Array | None) -> Seen:
        if not several:
            return _looked(needed, data, directions, head, scores)
        one = jax.vmap(partial(_looked, needed, data), in_axes=(1, 0, 1), out_axes=1)
        return one(directions, head, scores)

    given = over_heads(partial(attention.directions, data), head)(W), scores
    if several:  # blocks are cut along the first axis
        given = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), given)
    seen: Seen = in_blocks(looked, data.labels.shape[0], block, data, *given)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), seen) if several else seen


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


def _looked(needed: Needed, data: Data, directions: Array, head: Head, scores: Array | None) -> Seen:
    data = widened(data, directions.dtype)
    scores = attention.known_scores(data, head, scores)
    look = attention.attend_along(data, directions, scores=scores)
    reading = attention.read(data, look, head, scores)
    return Seen(
        look._replace(pulling=None),
        reading,
        attention.pulls(data, look, reading) if needed.slope else None,
        attention.pooled(data, look) if needed.pull else None,
    )


def added(one: Sums, other: Sums) -> Sums:
    def scaled(a: Scaled, b: Scaled) -> Scaled:  # with a scale for each of several heads
        return (jax.vmap(attention.added) if a.log_scale.ndim else attention.added)(a, b)

    return Sums(
        None if one.slope is None or other.slope is None else scaled(one.slope, other.slope),
        None if one.pull is None or other.pull is None else scaled(one.pull, other.pull),
        None if one.loss is None or other.loss is None else one.loss + other.loss,
        None
        if one.log_excess is None or other.log_excess is None
        else jnp.logaddexp(one.log_excess, other.log_excess),
    )
