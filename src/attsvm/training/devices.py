"""Where runs are computed: side by side on the cores of a CPU, or sharded over several devices."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attsvm.training import engine
from attsvm.training.compilation import local_devices
from attsvm.training.data import Data
from attsvm.training.plan import Model, Plan, State
from attsvm.training.runs import FEWEST
from attsvm.training.schedules import Rates

_SPEC: Any = PartitionSpec
CACHED, MOST = 5 << 17, 64
"""Bytes of the arrays of one part, which a core's own cache should hold; and the most parts this may make."""
WHOLE, PADDED = 8, 28
"""Float64 numbers in a line of the cache: lanes of whole lines are quicker, from so many runs on."""


@dataclass(frozen=True)
class Part:
    """Some of the runs, on the same devices: their data, the scores of a fixed linear head, their state.

    runs: which; None where there are no runs.
    """

    data: Data
    scores: Any
    state: State
    runs: Any = None

    def own(self, plan: Plan) -> Plan:
        """The plan with the numbers of these runs, where they have numbers of their own."""

        def cut(x: Any) -> Any:
            return x[self.runs] if not isinstance(x, Rates) and np.ndim(x) else x

        return jax.tree.map(cut, plan, is_leaf=lambda x: isinstance(x, Rates))


def shared(model: Model, data: Data, start: Any, count: int | None) -> Share:
    """How these runs are shared out.

    One CPU device computes as many parts at once as there are cores; several devices share one part.
    """
    own = (data, start) if model.data_runs else start
    size = sum(x.nbytes for x in jax.tree.leaves(own))
    settings: Any = jax.config
    return replace(
        Share.of(local_devices(), count, size, model.runs_last), device=settings.jax_default_device
    )


def parts(share: Share, plan: Plan, data: Data, scores: Any, start: Any, saved: Any = None) -> list[Part]:
    """The runs in parts of equal size, ready for the first step; the last run fills up the last part.

    data, scores, start, saved: NumPy's arrays, runs first; scores: of a linear head that is not trained;
    start: parameters, head, seed of mini-batches; saved: a state to go on from.
    """
    found = []
    for j in range(share.parts):
        given = share.placed(data, j) if plan.model.data_runs else share.everywhere(data)
        params, head, seed = share.placed(start, j)
        state = engine.begun(plan, params, head, seed) if saved is None else share.placed(saved, j)
        runs = None if share.count is None else share.part(np.arange(share.count), j)
        found.append(Part(given, share.placed(scores, j), state, runs))
    return found


def side_by_side(function: Callable[[Part], Any], parts: list[Part]) -> list[Any]:
    """The function of every part, of as many at once as there are cores.

    By threads: what one thread calls, XLA for CPUs computes one after the other. Threads that meet a
    program that is not compiled would each compile it.
    """
    workers = min(_cores(), len(parts))
    if workers == 1:
        return [function(part) for part in parts]

    settings: Any = jax.config
    chosen = settings.jax_default_device

    def one(part: Part) -> Any:
        with jax.enable_x64(True), jax.default_device(chosen):  # each thread has settings of its own
            return jax.block_until_ready(function(part))  # type: ignore[no-untyped-call]

    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(one, parts))


def joined(trees: list[Any], axis: int) -> Any:
    """The arrays of all parts along their runs axis."""
    if len(trees) == 1:
        return trees[0]
    return jax.tree.map(lambda *x: np.concatenate([np.asarray(a) for a in x], axis), *trees)


def cut(tree: Any, count: int | None, axis: int) -> Any:
    """Without the runs that fill up the last part."""
    if count is None:
        return tree
    return jax.tree.map(lambda x: np.asarray(x)[(slice(None),) * axis + (slice(count),)], tree)


@dataclass(frozen=True)
class Share:
    """So many runs in how many parts, how many in each, and the sharding of one.

    device: where there is no sharding, the user's jax.default_device, None for JAX's own.
    """

    count: int | None
    parts: int
    size: int | None
    sharding: NamedSharding | None
    device: Any = None

    @classmethod
    def of(cls, devices: list[Any], count: int | None, size: int, runs_last: bool) -> Share:
        if count is None:
            return cls(None, 1, None, None)
        if len(devices) > 1 and count >= 2 * len(devices):
            sharding = NamedSharding(Mesh(np.array(devices), ("runs",)), _SPEC("runs"))
            return cls(count, 1, -(-count // len(devices)) * len(devices), sharding)
        if devices[0].platform != "cpu" or len(devices) > 1:
            return cls(count, 1, count, None)
        turns = -(-min(size // CACHED + 1, MOST) // _cores())
        parts = max(1, min(turns * _cores(), count // (2 * FEWEST)))
        runs = -(-count // parts)
        runs = -(-runs // WHOLE) * WHOLE if runs_last and runs >= PADDED else runs
        return cls(count, -(-count // runs), runs, None)

    def placed(self, tree: Any, j: int) -> Any:
        """Part j of arrays with runs first."""
        return self.put(jax.tree.map(lambda x: self.part(x, j), tree))

    def put(self, tree: Any) -> Any:
        """Arrays of one part, runs first."""
        return jax.device_put(tree, self.sharding)

    def everywhere(self, tree: Any) -> Any:
        """Arrays that all runs share."""
        if self.sharding is None:
            return jax.device_put(tree)
        return jax.device_put(tree, NamedSharding(self.sharding.mesh, _SPEC()))

    def part(self, array: Any, j: int) -> Any:
        if self.size is None:
            return array
        part = array[j * self.size : (j + 1) * self.size]
        missing = self.size - len(part)
        return np.concatenate([part, np.repeat(array[-1:], missing, axis=0)]) if missing else part


def _cores() -> int:
    """Cores that this process may use; one where the user asked for one thread."""
    if os.environ.get("OMP_NUM_THREADS") == "1":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
