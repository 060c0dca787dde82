"""A dask array is computed here or on a cluster, and an error tells which block failed."""

from __future__ import annotations

import sys
from concurrent.futures import CancelledError
from time import monotonic
from typing import Any

import numpy as np

from attsvm.numbers import Float

PATIENCE = 60.0
"""Seconds without a single worker after which a cluster counts as dead."""

LARGE = {"distributed.admin.large-graph-warning-threshold": "1 TB"}
"""Directions of many examples are no mistake: dask need not warn of them."""


class Failed(Exception):
    """Why an array could not be computed; block: the one along the first axis that failed, where known."""

    def __init__(self, reason: BaseException | str, block: int | None = None) -> None:
        words = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
        super().__init__(" ".join(words.split()).removesuffix(":"))
        self.block = block


def computed(array: Any) -> Float:
    """The numbers of a dask array with several blocks along its first axis only. Raises Failed."""
    get = sys.modules["dask.base"].get_scheduler(collections=[array])
    client: Any = getattr(get, "__self__", None)
    if not hasattr(client, "nthreads"):
        return _here(array)
    try:
        with client.as_current(), sys.modules["dask"].config.set(LARGE):
            return _on_workers(array, client)
    except Failed:
        raise
    except CancelledError as error:
        raise Failed("the cluster was closed or lost, and what it computed with it") from error
    except Exception as error:
        raise Failed(error) from error


def _here(array: Any) -> Float:
    """On the threads or processes of this machine; after an error the blocks are tried one by one."""
    try:
        return np.asarray(array.compute())
    except Exception as error:
        for block in range(array.numblocks[0]):
            try:
                array.blocks[block].compute()
            except Exception as again:
                raise Failed(again, block) from again
        raise Failed(error) from error


def _on_workers(array: Any, client: Any) -> Float:
    """On the workers of a cluster; what a lost worker had is computed again."""
    found = {future.key[1]: future for future in client.futures_of(client.persist(array))}
    futures = [found[block] for block in range(array.numblocks[0])]
    try:
        for block, future in enumerate(futures):
            _wait(future, client)
            if future.status == "error":
                raise Failed(future.exception(), block) from future.exception()
    except Failed:
        client.cancel(futures)  # the error keeps its frames, and they would keep the futures
        raise
    return np.concatenate(client.gather(futures))


def _wait(future: Any, client: Any) -> None:
    """Until a future has an end, or the cluster no worker for too long."""
    seen = monotonic()
    while not future.done():
        try:
            sys.modules["distributed"].wait(future, PATIENCE / 10)
        except TimeoutError:
            if client.nthreads():
                seen = monotonic()
            elif monotonic() - seen > PATIENCE:
                raise Failed(
                    f"the cluster has had no worker for {PATIENCE:g} s. Start some, and call again."
                ) from None
