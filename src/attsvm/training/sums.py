"""The sums over the examples that a step needs, computed of all at once or block by block.

A block of keys is read from the memory once and used twice; keys in half or single precision are widened one
block at a time. Of data larger than the memory (streaming.py) sums over chunks are added: each carries its
own log scale, so none underflows.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from attsvm.training import attention
from attsvm.training.attention import SOFTMAX, Mechanism, Reading, Scaled
from attsvm.training.data import Data, widened
from attsvm.training.losses import Loss
from attsvm.training.prediction_heads import Head, Linear, LinearHeads, SquaredError, over_heads
from attsvm.training.types import Function, Index, Tree


class Needed(NamedTuple):
    """Which sums: the slope of the weight, that of a trained head, the mean loss, log(L − L*)."""

    slope: bool = False
    pull: bool = False
    loss: bool = False
    excess: bool = False


class Sums(NamedTuple):
    """The sums that are needed, None in place of the others."""

    slope: Scaled | None
    pull: Scaled | None
    loss: Array | None
    log_excess: Array | None


class Readout(NamedTuple):
    """Attention and what the head reads, of each example; in blocks, also pull and attended value."""

    weights: Tree  # of the mechanism
    reading: Reading
    pulled: Scaled | None
    attended: Array | None


def over_examples(
    needed: Needed,
    loss: Loss,
    data: Data,
    W: Array,
    head: Head,
    scores: Array | None,
    block: int | None,
    kind: Mechanism = SOFTMAX,
) -> Sums:
    """The sums over all examples; block: how many are computed in turn, of softmax
    attention alone; None for all at once.

    Each of several heads (W, values and scores with the heads first) attends separately; the margin is the
    sum over heads. Each head has a slope in its own log scale.
    """
    if block is None or block >= data.labels.shape[0]:
        data = widened(data, W.dtype)
        readout = over_heads(partial(_readout, kind, data), head)(W, head, scores)
    else:
        readout = _readout_in_blocks(needed, data, W, head, scores, block)
    margin = _of_all_heads(readout.reading.margin, head)

    def slope(readout: Readout, W: Array) -> Scaled:
        reading = readout.reading._replace(margin=margin)
        if readout.pulled is None:
            return kind.gradient(data, W, readout.weights, reading, loss)
        return attention.gradient(data, readout.weights, reading, loss, readout.pulled)

    def pull(readout: Readout) -> Scaled:
        reading = readout.reading._replace(margin=margin)
        attended = kind.pooled(data, readout.weights) if readout.attended is None else readout.attended
        return attention.head_gradient(data, readout.weights, reading, loss, attended)

    return Sums(
        over_heads(slope, head)(readout, W) if needed.slope else None,
        over_heads(pull, head)(readout) if needed.pull else None,
        attention.mean_loss(data, margin, loss) if needed.loss else None,
        _log_excess(kind, data, readout, head, loss) if needed.excess else None,
    )


def _log_excess(kind: Mechanism, data: Data, readout: Readout, head: Head, loss: Loss) -> Array:
    if not isinstance(head, (Linear, SquaredError)):
        return jnp.full(readout.reading.margin.shape[1:], jnp.nan, readout.reading.margin.dtype)
    best, log_drop = over_heads(partial(kind.drops, data), head)(readout.weights, readout.reading)
    if isinstance(head, LinearHeads):
        log_drop = jax.nn.logsumexp(log_drop, axis=0)
    return attention.log_excess(data, _of_all_heads(best, head), log_drop, loss)


def _of_all_heads(each: Array, head: Head) -> Array:
    return each.sum(0) if isinstance(head, LinearHeads) else each


def _readout(kind: Mechanism, data: Data, W: Array, head: Head, scores: Array | None) -> Readout:
    scores = attention.known_scores(data, head, scores)
    weights = kind.attend(data, W, scores)
    return Readout(weights, kind.read(data, weights, head, scores), None, None)


def _readout_in_blocks(
    needed: Needed, data: Data, W: Array, head: Head, scores: Array | None, block: int
) -> Readout:
    several = isinstance(head, LinearHeads)

    def looked(data: Data, directions: Array, scores: Array | None) -> Readout:
        if not several:
            return _looked(needed, data, directions, head, scores)
        of_heads = jax.vmap(partial(_looked, needed, data), in_axes=(1, 0, 1), out_axes=1)
        return of_heads(directions, head, scores)

    arrays = over_heads(partial(attention.directions, data), head)(W), scores
    if several:  # blocks are cut along the first axis
        arrays = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), arrays)
    readout: Readout = in_blocks(looked, data.labels.shape[0], block, data, *arrays)
    return jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), readout) if several else readout


def in_blocks(function: Function, n: int, block: int, *arrays: Tree) -> Tree:
    """A function of n examples, which are the first axis of all arrays, computed in blocks of them."""

    def cut(begin: Index) -> Tree:
        return jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, begin, block), arrays)

    def filled(i: Index, room: Tree) -> Tree:
        begin = jnp.minimum(i * block, n - block)  # the last block is as long as the others
        values = function(*cut(begin))
        put = partial(lax.dynamic_update_slice_in_dim, start_index=begin, axis=0)
        return jax.tree.map(put, room, values)

    shapes = jax.eval_shape(function, *cut(0))
    room = jax.tree.map(lambda x: jnp.zeros((n, *x.shape[1:]), x.dtype), shapes)
    return lax.fori_loop(0, -(-n // block), filled, room)


def _looked(needed: Needed, data: Data, directions: Array, head: Head, scores: Array | None) -> Readout:
    data = widened(data, directions.dtype)
    scores = attention.known_scores(data, head, scores)
    softmax = attention.attend_along(data, directions, scores=scores)
    reading = attention.read(data, softmax, head, scores)
    return Readout(
        softmax._replace(pulling=None),
        reading,
        attention.pulls(data, softmax, reading) if needed.slope else None,
        attention.pooled(data, softmax) if needed.pull else None,
    )


def added(a: Sums, b: Sums) -> Sums:
    """The sums over two sets of examples."""

    def scaled(x: Scaled, y: Scaled) -> Scaled:  # with a scale for each of several heads
        return (jax.vmap(attention.added) if x.log_scale.ndim else attention.added)(x, y)

    together: tuple[Function, ...] = (scaled, scaled, jnp.add, jnp.logaddexp)
    return Sums(*(None if x is None else add(x, y) for add, x, y in zip(together, a, b, strict=True)))
