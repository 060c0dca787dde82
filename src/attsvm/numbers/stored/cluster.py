"""Keys in the chunks of a dask array: margins are computed beside the chunks, and only margins come back.

Dask is not imported: the caller who passes such an array has imported it. Dask decides where chunks are
computed, on the threads of this machine or on the workers of a cluster, and computes those of a lost worker
again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from time import monotonic
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Float, Index
from attsvm.numbers.stored.array import BLOCK, Stored

PATIENCE = 60.0
"""Seconds without a single worker after which a cluster counts as dead."""

LARGE = {"distributed.admin.large-graph-warning-threshold": "1 TB"}
"""Directions of many examples make a large graph on purpose: dask need not warn."""

Work = Callable[..., Float]
"""A function of numbers of a chunk (k, …), in float64, and of arrays (k, …) that belong to them: → (k, …)."""


class OnCluster(Stored):
    """A dask array (n, T, d), in chunks of examples; dask makes such chunks of others on the cluster."""

    def __init__(self, array: Any, name: str = "keys", exponent: NDArray[np.int_] | None = None) -> None:
        if np.isnan(array.shape).any():
            raise ValueError(f"{name} has chunks of unknown size. Pass {name}.compute_chunk_sizes().")
        array = array.rechunk({1: -1, 2: -1})
        if len(array.dask.layers) > 1:  # one layer: many slow down each pass over few chunks
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
        products = self._each(lambda x: np.einsum("ntd,d->nt", x, vector), self.shape[1:2], examples)
        return self._units(products, examples)

    def margins(self, examples: Index, anchor: Index, queries: Float, W: Float) -> Float:
        """(x_a − x_t)ᵀ W z in float64, the difference first: (k,), (k,), (k, e), (d, e) → (k, T)."""
        return self._each(partial(_margins(), W=W), self.shape[1:2], examples, arrays=(anchor, queries))

    def _rows(self, example: Index, token: Index) -> Float:
        return self._units(self._each(lambda x: x, self.shape[2:], example, token), example)

    def _each(self, work: Work, shape: tuple[int, ...], *index: Index, arrays: tuple[Any, ...] = ()) -> Float:
        """`work` on array[index] and on arrays (k, …), in the chunks of these examples: (k, *shape)."""
        out = np.empty((len(index[0]), *shape))
        if not len(out):
            return out
        home = np.searchsorted(self.starts, index[0], side="right") - 1
        order = np.argsort(home, kind="stable")
        places = np.split(order, np.flatnonzero(np.diff(home[order])) + 1)
        chunks, task, tasks = [int(home[place[0]]) for place in places], _in_blocks(work), []
        for place, chunk in zip(places, chunks, strict=True):
            inside = (index[0][place] - self.starts[chunk], *(i[place] for i in index[1:]))
            shape_of_chunk = (self.array.chunks[0][chunk], *self.shape[1:])
            of_place = [array[place] for array in arrays]
            tasks.append(partial(task, shape=shape_of_chunk, index=inside, arrays=of_place))
        sizes = (tuple(map(len, places)), *((width,) for width in shape))
        try:
            out[order] = computed(_applied(tasks, self.array, chunks, sizes))
        except Failed as failed:
            suspects = chunks if failed.block is None else chunks[failed.block :][:1]
            last = self.starts[suspects[-1]] + self.array.chunks[0][suspects[-1]] - 1
            raise ValueError(
                f"{self.name}, examples {self.starts[suspects[0]]} to {last}, could not be computed: {failed}"
            ) from failed.__cause__
        return out


def _applied(tasks: list[Any], array: Any, chunks: list[int], sizes: tuple[tuple[int, ...], ...]) -> Any:
    """Each task on its chunk of an array (n, T, d), as a dask array with chunks of these sizes."""
    name, zeros = f"attsvm-{uuid4().hex}", [0] * (len(sizes) - 1)
    layer = {
        (name, block, *zeros): (task, (array.name, chunk, 0, 0))
        for block, (task, chunk) in enumerate(zip(tasks, chunks, strict=True))
    }
    graph = sys.modules["dask.highlevelgraph"].HighLevelGraph.from_collections(name, layer, [array])
    return type(array)(graph, name, sizes, dtype=np.float64)


def _margins() -> Work:
    def work(x: Float, anchor: Index, queries: Float, W: Float) -> Float:
        np.subtract(x[np.arange(len(x)), anchor][:, None], x, out=x)
        return np.einsum("ntd,nd->nt", x, np.einsum("ne,de->nd", queries, W))

    return work


def _in_blocks(work: Work) -> Callable[..., Float]:
    """`work` on indices of a chunk, a block at a time.

    A function inside a function is pickled by value, so that a worker needs only NumPy.
    """

    def task(chunk: Any, shape: tuple[int, ...], index: tuple[Index, ...], arrays: list[Any]) -> Float:
        if chunk.shape != shape:
            raise ValueError(f"a chunk has shape {chunk.shape}, expected {shape}.")
        step, out = max(1, BLOCK // (shape[1] * shape[2])), []
        with np.errstate(invalid="ignore", over="ignore"):  # masked tokens may be anything
            for start in range(0, len(index[0]), step):
                block = slice(start, start + step)
                x = np.asarray(chunk[tuple(i[block] for i in index)], dtype=np.float64)
                out.append(work(x, *(array[block] for array in arrays)))
        return np.concatenate(out)

    return task


# ---------------------------------------------------------------------- computing a dask array


class Failed(Exception):
    """Why dask could not compute an array; block: the number of the failed block, None if unknown."""

    def __init__(self, reason: BaseException | str, block: int | None = None) -> None:
        message = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
        super().__init__(" ".join(message.split()).removesuffix(":"))
        self.block = block


def computed(array: Any) -> Float:
    """The numbers of a dask array that is divided along its first axis only. Raises Failed."""
    get = sys.modules["dask.base"].get_scheduler(collections=[array])
    client: Any = getattr(get, "__self__", None)
    if not hasattr(client, "nthreads"):
        return _on_this_machine(array)
    try:
        with client.as_current(), sys.modules["dask"].config.set(LARGE):
            return _on_workers(array, client)
    except Failed:
        raise
    except CancelledError as error:
        raise Failed("the cluster was closed or lost, and what it computed with it") from error
    except Exception as error:
        raise Failed(error) from error


def _on_this_machine(array: Any) -> Float:
    """Compute on the threads or processes of this machine; after an error, find the block that failed."""
    try:
        return np.asarray(array.compute())
    except Exception as error:
        for block in range(array.numblocks[0]):
            try:
                array.blocks[block].compute()
            except Exception as error_of_block:
                raise Failed(error_of_block, block) from error_of_block
        raise Failed(error) from error


def _on_workers(array: Any, client: Any) -> Float:
    """Compute on the workers of a cluster, and again what a lost worker had."""
    by_block = {future.key[1]: future for future in client.futures_of(client.persist(array))}
    futures = [by_block[block] for block in range(array.numblocks[0])]
    try:
        for block, future in enumerate(futures):
            _wait(future, client)
            if future.status == "error":
                raise Failed(future.exception(), block) from future.exception()
    except Failed:
        client.cancel(futures)  # the frames of the error would keep the futures alive
        raise
    return np.concatenate(client.gather(futures))


def _wait(future: Any, client: Any) -> None:
    """Wait until a future is done. Raises Failed if the cluster has had no worker for too long."""
    last_worker = monotonic()
    while not future.done():
        try:
            sys.modules["distributed"].wait(future, PATIENCE / 10)
        except TimeoutError:
            if client.nthreads():
                last_worker = monotonic()
            elif monotonic() - last_worker > PATIENCE:
                raise Failed(
                    f"the cluster has had no worker for {PATIENCE:g} s. Start some, and call again."
                ) from None
