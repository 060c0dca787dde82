"""Loss and excess at the records of a run, looked at when somebody asks for them.

A look is a compiled program of its own, which takes nearly as long to compile as the steps do, and most who
train ask for weights only. It sees W alone: all weights of one shape share it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from attsvm.data.tokens import Tokens
from attsvm.training import engine
from attsvm.training.compilation import few_optimisations, kept_programs
from attsvm.training.data import Data
from attsvm.training.devices import Share
from attsvm.training.plan import Model, Snapshot
from attsvm.training.prediction_heads import Head, with_arrays
from attsvm.training.ties import decided

FEW, MANY, MOST_BYTES = 64, 1024, 2**23
"""Records that a call has room for, in a run of few or of many; and the most bytes that they may take."""
HASTY = 1 << 19
"""Numbers of keys below which a record is computed sooner than a quick program for it compiled."""

Arrays = dict[str, NDArray[Any]]


def room(records: int, size: int) -> int:
    """Records of a call, of so many bytes each: not the number of all, which would compile a program each."""
    return max(1, min(FEW if records < FEW else MANY, MOST_BYTES // max(size, 1)))


def quickly(data: Data, runs: int, parts: int) -> AbstractContextManager[None]:
    """Compile with few optimisations what looks at few keys, of so many runs in each of the parts."""
    numbers = parts * (1 if data.keys.ndim == 4 else runs) * data.keys.size
    return few_optimisations() if numbers < HASTY else nullcontext()


@dataclass(frozen=True, eq=False)
class Look:
    """What is known of k records W ((runs,) k, d, e): under a head or, where it was trained, under their v.

    It holds NumPy's arrays, which the path holds too, and nothing on a device.
    """

    model: Model
    share: Share
    tokens: Tokens
    head: Head
    W: NDArray[Any]
    v: NDArray[Any] | None

    @cached_property
    def seen(self) -> Arrays:
        """loss and log_excess, ((runs,) k)."""
        with kept_programs(), jax.enable_x64(True), jax.default_device(self.share.device):
            parts = [self._of_part(j) for j in range(self.share.parts)]
        return {name: _joined(parts, name)[: self.share.count] for name in parts[0]}

    def _of_part(self, j: int) -> Arrays:
        share, model = self.share, self.model
        data, scores = decided(self.tokens, self.head, self.v is not None)
        data = share.placed(data, j) if model.data_runs else share.everywhere(data)
        (head, scores), axis = share.placed((self.head, scores), j), int(model.runs)
        own = None if self.v is None else with_arrays(self.head, {"v": self.v})
        trained: Any = {"W": self.W}
        records = jax.tree.map(lambda x: share.part(x, j), Snapshot(trained, own))
        leaves = jax.tree.leaves(records)
        count = leaves[0].shape[axis]
        size = room(count, sum(x.nbytes for x in leaves) // count)
        found: list[Arrays] = []
        with quickly(data, share.size or 1, share.parts):
            for begin in range(0, count, size):
                some = share.put(jax.tree.map(lambda x, begin=begin: _cut(x, axis, begin, size), records))
                kept = min(size, count - begin)
                seen = engine.observe(model, data, scores, head, some, kept)
                found.append({name: np.asarray(array)[:kept] for name, array in seen._asdict().items()})
        return {name: _joined(found, name).T for name in found[0]}


def _joined(parts: list[Arrays], name: str) -> NDArray[Any]:
    return np.concatenate([part[name] for part in parts])


def _cut(array: NDArray[Any], axis: int, begin: int, size: int) -> NDArray[Any]:
    """So many records from `begin` on, filled up with zeros."""
    part = array[(slice(None),) * axis + (slice(begin, begin + size),)]
    missing = [(0, size - part.shape[axis] if k == axis else 0) for k in range(part.ndim)]
    return np.pad(part, missing)
