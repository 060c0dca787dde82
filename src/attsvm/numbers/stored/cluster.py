"""Keys in the chunks of a dask array: priced where the chunks are, and only margins come back.

Dask is not imported: whoever brings an array of it has it. It decides where chunks are computed, on the
threads of this machine or on the workers of a cluster, and computes those of a lost worker again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Float, Index
from attsvm.numbers.stored.array import PART, Stored
from attsvm.numbers.stored.tasks import Failed, computed

Work = Callable[..., Float]
"""Some numbers of a chunk (k, …), in float64, and what belongs to each, → (k, …)."""


class OnCluster(Stored):
    """A dask array (n, T, d), in chunks of whole examples: dask makes others so, where they are."""

    def __init__(self, array: Any, name: str = "keys", exponent: NDArray[np.int_] | None = None) -> None:
        if np.isnan(array.shape).any():
            raise ValueError(f"{name} has chunks of unknown size. Pass {name}.compute_chunk_sizes().")
        array = array.rechunk({1: -1, 2: -1})
        if len(array.dask.layers) > 1:  # made one: sorting many out takes longer than a pass over few chunks
            (array,) = sys.modules["dask"].optimize(array)
        super().__init__(array, name, exponent)
        self.starts = np.cumsum((0, *self.array.chunks[0][:-1]))

    def raw(self, examples: slice | Index) -> NDArray[Any]:
        return self._each(lambda x: x, self.shape[1:], np.arange(len(self))[examples])

    def largest(self) -> Float:
        self.passes += 1
        top = self._each(lambda x: np.abs(x).max(-1), self.shape[1:2], np.arange(len(self)))
        return np.where(np.isnan(top), np.inf, top)

    def products(self, vector: Float) -> Float:
        self.passes += 1
        examples = np.arange(len(self))
        found = self._each(lambda x: np.einsum("ntd,d->nt", x, vector), self.shape[1:2], examples)
        return self._units(found, examples)

    def margins(self, examples: Index, anchor: Index, queries: Float, W: Float) -> Float:
        """(x_a − x_t)ᵀ W z in float64, the difference first: (k,), (k,), (k, e), (d, e) → (k, T)."""
        return self._each(partial(_margins(), W=W), self.shape[1:2], examples, own=(anchor, queries))

    def _rows(self, example: Index, token: Index) -> Float:
        return self._units(self._each(lambda x: x, self.shape[2:], example, token), example)

    def _each(self, work: Work, shape: tuple[int, ...], *index: Index, own: tuple[Any, ...] = ()) -> Float:
        """`work` on array[index] and on arrays (k, …) of its own, in the chunks asked for: (k, *shape)."""
        out = np.empty((len(index[0]), *shape))
        if not len(out):
            return out
        home = np.searchsorted(self.starts, index[0], side="right") - 1
        order = np.argsort(home, kind="stable")
        places = np.split(order, np.flatnonzero(np.diff(home[order])) + 1)
        chunks, task, tasks = [int(home[place[0]]) for place in places], _in_parts(work), []
        for place, chunk in zip(places, chunks, strict=True):
            inside = (index[0][place] - self.starts[chunk], *(i[place] for i in index[1:]))
            whole = (self.array.chunks[0][chunk], *self.shape[1:])
            tasks.append(partial(task, shape=whole, index=inside, own=[array[place] for array in own]))
        sizes = (tuple(map(len, places)), *((width,) for width in shape))
        try:
            out[order] = computed(_applied(tasks, self.array, chunks, sizes))
        except Failed as failed:
            asked = chunks if failed.block is None else chunks[failed.block :][:1]
            last = self.starts[asked[-1]] + self.array.chunks[0][asked[-1]] - 1
            raise ValueError(
                f"{self.name}, examples {self.starts[asked[0]]} to {last}, could not be computed: {failed}"
            ) from failed.__cause__
        return out


def _applied(tasks: list[Any], array: Any, chunks: list[int], sizes: tuple[tuple[int, ...], ...]) -> Any:
    """Each task on its chunk of an array (n, T, d), as a dask array with chunks of these sizes."""
    name, rest = f"attsvm-{uuid4().hex}", [0] * (len(sizes) - 1)
    layer = {
        (name, block, *rest): (task, (array.name, chunk, 0, 0))
        for block, (task, chunk) in enumerate(zip(tasks, chunks, strict=True))
    }
    graph = sys.modules["dask.highlevelgraph"].HighLevelGraph.from_collections(name, layer, [array])
    return type(array)(graph, name, sizes, dtype=np.float64)


def _margins() -> Work:
    def work(x: Float, anchor: Index, queries: Float, W: Float) -> Float:
        np.subtract(x[np.arange(len(x)), anchor][:, None], x, out=x)
        return np.einsum("ntd,nd->nt", x, np.einsum("ne,de->nd", queries, W))

    return work


def _in_parts(work: Work) -> Callable[..., Float]:
    """`work` on what is asked of a chunk, a part at a time.

    A function inside a function travels by value: a worker needs only NumPy.
    """

    def task(chunk: Any, shape: tuple[int, ...], index: tuple[Index, ...], own: list[Any]) -> Float:
        if chunk.shape != shape:
            raise ValueError(f"a chunk has shape {chunk.shape}, expected {shape}.")
        step, out = max(1, PART // (shape[1] * shape[2])), []
        with np.errstate(invalid="ignore", over="ignore"):  # masked tokens may be anything
            for start in range(0, len(index[0]), step):
                part = slice(start, start + step)
                x = np.asarray(chunk[tuple(i[part] for i in index)], dtype=np.float64)
                out.append(work(x, *(array[part] for array in own)))
        return np.concatenate(out)

    return task
