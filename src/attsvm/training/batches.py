"""Mini-batches: which examples a step takes, computed from a seed and the number of the step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import NDArray

from attsvm._support.validation import as_integer, describe, is_integer
from attsvm.training.data import Data
from attsvm.training.init import seeds_of
from attsvm.training.programs import where
from attsvm.training.types import AnyArray, Index, Steps

ORDERS = ("shuffled", "replacement")


@dataclass(frozen=True)
class Batches:
    """Mini-batches: `size` examples per step, of n.

    order: "shuffled", every example once per epoch, in a new order each time; the last batch of an epoch is
        what is left. "replacement", each batch drawn by itself, an example perhaps twice.
    seed: one for all runs, or several, one per run.

    The batch of a step depends on seed, step and n alone, by integers that are the same on every machine:
    nothing is remembered, so a run may be cut anywhere. Shuffled batches of all n are the full batch.
    """

    size: int
    seed: int | tuple[int, ...] = 0
    order: str = "shuffled"

    def __init__(self, size: int, seed: int | Iterable[int] = 0, order: str = "shuffled") -> None:
        size = as_integer(size)
        if not (is_integer(size) and size >= 1):
            raise ValueError(f"the size of a batch is {describe(size)}. Pass a positive integer.")
        if order not in ORDERS:
            raise ValueError(f"order is {order!r}. Pass {' or '.join(map(repr, ORDERS))}.")
        several, runs = seeds_of(seed)
        if max(several) >= 2**63:
            raise ValueError(f"seed is {describe(max(several))}. Pass integers below 2⁶³.")
        object.__setattr__(self, "size", int(size))
        object.__setattr__(self, "seed", several if runs else several[0])
        object.__setattr__(self, "order", order)

    @property
    def runs(self) -> int | None:
        """How many seeds; None for one that all runs share."""
        return len(self.seed) if isinstance(self.seed, tuple) else None

    @property
    def form(self) -> BatchForm:
        return BatchForm(self.size, self.order == "replacement")


class BatchForm(NamedTuple):
    """The settings of a batch that are compiled in: its size, and whether examples may come twice."""

    size: int
    replacement: bool


class Place(NamedTuple):
    """Counts of steps: those before the compiled call, and those before the current step."""

    first: Index
    now: Index


def of_examples(batch: Batches | None, n: int) -> Batches | None:
    """The argument `batch` of train() as batches of n examples, None for all of them at every step."""
    if batch is None:
        return None
    if not isinstance(batch, Batches):
        raise TypeError(f"batch is {describe(batch)}. Pass Batches(size), or None for all examples.")
    if batch.size > n:
        raise ValueError(f"the batch has {batch.size} examples but the tokens {n}. Pass {n} at most.")
    return None if batch.size == n and batch.order == "shuffled" else batch


def seeds(batches: Batches | None, count: int | None) -> NDArray[np.uint64] | None:
    """One seed, or one per run."""
    if batches is None:
        return None
    seed = np.asarray(batches.seed, np.uint64)
    return seed if count is None else np.ascontiguousarray(np.broadcast_to(seed, count))


def drawn(form: BatchForm, seed: AnyArray, order: AnyArray, place: Any) -> tuple[Array, Array, Array | None]:
    """The examples of a step (size,), the order (n,) of its epoch, and shares where the batch is not full.

    order: of the step before; the first step of a call computes it anew. Places behind the end of an epoch
    repeat the last example, with a share of zero.
    """
    n, size = order.shape[0], form.size
    if form.replacement:
        return _integers(seed, place.now, size) % n, order, None
    turns = -(-n // size)
    epoch, turn = place.now // turns, place.now % turns
    new = (turn == 0) | (place.now == place.first)
    order = lax.cond(new, lambda: jnp.argsort(_integers(seed, epoch, n)), lambda: order)
    places = turn * size + jnp.arange(size)
    share = None
    if n % size:
        share = where(places < n, 1 / jnp.minimum(size, n - turn * size), 0.0)
    return order[jnp.minimum(places, n - 1)], order, share


def examples_of(
    data: Data, scores: Array | None, batch: Array, share: Array | None
) -> tuple[Data, Array | None]:
    """The examples of a batch, and their scores (n, T), which may have several heads first."""
    data = jax.tree.map(lambda x: x[batch], data)
    scores = None if scores is None else scores[..., batch, :]
    return data if share is None else data._replace(share=share.astype(data.queries.dtype)), scores


def on_host(form: BatchForm, seed: AnyArray, n: int, step: int) -> Steps:
    """The examples of a step, of one seed; at the end of an epoch fewer than `size`."""
    if form.replacement:
        return (_integers(seed, step, form.size, np) % np.uint64(n)).astype(np.int64)
    turns = -(-n // form.size)
    order = np.argsort(_integers(seed, step // turns, n, np), kind="stable")
    begin = step % turns * form.size
    return order[begin : begin + form.size]


def _integers(seed: AnyArray, turn: Index, count: int, xp: Any = jnp) -> AnyArray:
    """Random integers of 64 bits (count,): SplitMix64 of seed, turn and place (Steele, Lea, Flood 2014)."""
    odd = xp.uint64(0x9E3779B97F4A7C15)
    state = xp.asarray(seed).astype(xp.uint64).reshape(1)
    state = _mixed(_mixed(state, xp) + xp.asarray(turn).astype(xp.uint64) * odd, xp)
    return _mixed(state + xp.arange(count, dtype=xp.uint64) * odd, xp)


def _mixed(x: AnyArray, xp: Any) -> AnyArray:
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> xp.uint64(shift))) * xp.uint64(factor)
    return x ^ (x >> xp.uint64(31))
