"""Loss and excess at the records of a run, computed when they are first read.

Their program takes nearly as long to compile as that of the steps, and most users read weights only. The
program sees W alone: all weights of one shape share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from attsvm.data.tokens import Tokens
from attsvm.training import engine
from attsvm.training.compilation import kept_programs
from attsvm.training.data import with_scores
from attsvm.training.devices import Share
from attsvm.training.plan import Model, Snapshot
from attsvm.training.prediction_heads import Head, with_arrays

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class LazyLosses:
    """Loss and log_excess of k records W ((runs,) k, d, e), under a head or, where it was trained, its v.

    It holds NumPy's arrays, which the path holds too, and nothing on a device.
    """

    model: Model
    share: Share
    tokens: Tokens
    head: Head
    W: NDArray[Any]
    v: NDArray[Any] | None

    @cached_property
    def arrays(self) -> Arrays:
        """loss and log_excess, ((runs,) k)."""
        with kept_programs(), jax.enable_x64(True), jax.default_device(self.share.device):
            chunks = [self._of_chunk(j) for j in range(self.share.chunks)]
        return {name: _joined(chunks, name)[: self.share.count] for name in chunks[0]}

    def _of_chunk(self, j: int) -> Arrays:
        share, model = self.share, self.model
        data, scores = with_scores(self.tokens, self.head, self.v is not None)
        data = share.placed(data, j) if model.data_runs else share.everywhere(data)
        (head, scores), axis = share.placed((self.head, scores), j), int(model.runs)
        trained_head = None if self.v is None else with_arrays(self.head, {"v": self.v})
        params: Any = {"W": self.W}
        records = jax.tree.map(lambda x: share.cut(x, j), Snapshot(params, trained_head))
        leaves = jax.tree.leaves(records)
        count = leaves[0].shape[axis]
        size = engine.room(count, sum(x.nbytes for x in leaves) // count)
        losses: list[Arrays] = []
        with engine.compiled_quickly(data, share.size or 1, share.chunks):
            for begin in range(0, count, size):
                block = share.put(jax.tree.map(lambda x, begin=begin: _cut(x, axis, begin, size), records))
                length = min(size, count - begin)
                record = engine.observe(model, data, scores, head, block, length)
                losses.append({name: np.asarray(array)[:length] for name, array in record._asdict().items()})
        return {name: _joined(losses, name).T for name in losses[0]}


def _joined(pieces: list[Arrays], name: str) -> NDArray[Any]:
    return np.concatenate([arrays[name] for arrays in pieces])


def _cut(array: NDArray[Any], axis: int, begin: int, size: int) -> NDArray[Any]:
    """So many records from `begin` on, filled up with zeros."""
    block = array[(slice(None),) * axis + (slice(begin, begin + size),)]
    missing = [(0, size - block.shape[axis] if k == axis else 0) for k in range(block.ndim)]
    return np.pad(block, missing)
