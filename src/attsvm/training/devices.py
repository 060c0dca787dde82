"""Where runs are computed: side by side on the cores of a CPU, or sharded over several devices."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attsvm.training.compilation import local_devices
from attsvm.training.data import Data
from attsvm.training.plan import Model, Plan, State
from attsvm.training.prediction_heads import Head
from attsvm.training.runs import FEWEST
from attsvm.training.schedules import Rates
from attsvm.training.types import AnyArray, Config, Device, Tree
from attsvm.training.weights import Params

_SPEC: Any = PartitionSpec
CACHED, MOST = 5 << 17, 64
"""Bytes of the arrays of one chunk, which the cache of a core should hold; the largest number of chunks."""
WHOLE, PADDED = 8, 28
"""Float64 numbers in a line of the cache; from so many runs on, chunks of whole lines are faster."""


@dataclass(frozen=True)
class Chunk:
    """Runs on the same devices: their data, the scores of a fixed linear head, and their state.

    runs: their indices; None without a runs axis.
    """

    data: Data
    scores: AnyArray
    state: State
    runs: AnyArray = None

    def plan(self, plan: Plan) -> Plan:
        """The plan with the numbers of these runs, where numbers are given per run."""

        def cut(x: AnyArray) -> AnyArray:
            return x[self.runs] if not isinstance(x, Rates) and np.ndim(x) else x

        return jax.tree.map(cut, plan, is_leaf=lambda x: isinstance(x, Rates))


def initial_state(plan: Plan, params: Params, head: Head, seed: Array | None = None) -> State:
    """The state before the first step: a few arrays of zeros, made without a program."""

    def memories(params: Params, head: Head) -> tuple[Tree, Tree]:
        return plan.rule.init(params), None if plan.head_rule is None else plan.head_rule.init(head)

    runs = next(iter(params.values())).shape[:1] if plan.model.runs else ()
    memory, head_memory = (jax.vmap(memories) if plan.model.runs else memories)(params, head)
    yes = jnp.asarray(np.ones(runs, bool))
    return State(params, head, memory, head_memory, yes, yes, seed)


def sharing(model: Model, data: Data, start: Tree, count: int | None) -> Share:
    """How the runs are distributed.

    One CPU device computes as many chunks at once as there are cores; several devices share one chunk.
    """
    arrays = (data, start) if model.data_runs else start
    size = sum(x.nbytes for x in jax.tree.leaves(arrays))
    settings: Config = jax.config
    return replace(
        Share.of(local_devices(), count, size, model.runs_last), device=settings.jax_default_device
    )


def chunks_of(
    share: Share, plan: Plan, data: Data, scores: AnyArray, start: Tree, saved: State | None = None
) -> list[Chunk]:
    """The runs in chunks of equal size, ready for the first step; the last run fills up the last chunk.

    data, scores, start, saved: NumPy's arrays, runs first; scores: of a linear head that is not trained;
    start: parameters, head, seed of mini-batches; saved: the state from which a run is resumed.
    """
    chunks = []
    for j in range(share.chunks):
        placed = share.placed(data, j) if plan.model.data_runs else share.everywhere(data)
        state = share.placed(saved, j)
        if state is None:
            state = initial_state(plan, *share.placed(start, j))
        runs = None if share.count is None else share.cut(np.arange(share.count), j)
        chunks.append(Chunk(placed, share.placed(scores, j), state, runs))
    return chunks


def without_padding(tree: Tree, count: int | None, axis: int) -> Tree:
    """Arrays of all chunks without the runs that fill up the last one."""
    if count is None:
        return tree
    return jax.tree.map(lambda x: np.asarray(x)[(slice(None),) * axis + (slice(count),)], tree)


@dataclass(frozen=True)
class Share:
    """`count` runs in `chunks` of `size` runs each, and the sharding of one chunk.

    device: where there is no sharding, the user's jax.default_device, None for JAX's own.
    """

    count: int | None
    chunks: int
    size: int | None
    sharding: NamedSharding | None
    device: Device = None

    @classmethod
    def of(cls, devices: list[Device], count: int | None, size: int, runs_last: bool) -> Share:
        if count is None:
            return cls(None, 1, None, None)
        if len(devices) > 1 and count >= 2 * len(devices):
            sharding = NamedSharding(Mesh(np.array(devices), ("runs",)), _SPEC("runs"))
            return cls(count, 1, -(-count // len(devices)) * len(devices), sharding)
        if devices[0].platform != "cpu" or len(devices) > 1:
            return cls(count, 1, count, None)
        turns = -(-min(size // CACHED + 1, MOST) // cores())
        chunks = max(1, min(turns * cores(), count // (2 * FEWEST)))
        runs = -(-count // chunks)
        runs = -(-runs // WHOLE) * WHOLE if runs_last and runs >= PADDED else runs
        return cls(count, -(-count // runs), runs, None)

    def placed(self, tree: Tree, j: int) -> Tree:
        """Chunk j of arrays with runs first."""
        return self.put(jax.tree.map(lambda x: self.cut(x, j), tree))

    def put(self, tree: Tree) -> Tree:
        """Arrays of one chunk, runs first."""
        return jax.device_put(tree, self.sharding)

    def everywhere(self, tree: Tree) -> Tree:
        """Arrays that all runs share."""
        if self.sharding is None:
            return jax.device_put(tree)
        return jax.device_put(tree, NamedSharding(self.sharding.mesh, _SPEC()))

    def cut(self, array: AnyArray, j: int) -> AnyArray:
        if self.size is None:
            return array
        chunk = array[j * self.size : (j + 1) * self.size]
        missing = self.size - len(chunk)
        return np.concatenate([chunk, np.repeat(array[-1:], missing, axis=0)]) if missing else chunk


def cores() -> int:
    """Cores that this process may use; one if OMP_NUM_THREADS is 1."""
    if os.environ.get("OMP_NUM_THREADS") == "1":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
