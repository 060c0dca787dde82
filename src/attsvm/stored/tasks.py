"""A dask array is computed, and an error tells which block failed."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from attsvm.stored.array import Float

PATIENCE = 60.0
"""Seconds without a single worker after which a cluster counts as dead."""


class Failed(Exception):
    """Why an array could not be computed; block: the one along the first axis that failed, where known."""

    def __init__(self, error: BaseException | str, block: int | None = None) -> None:
        reason = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
        super().__init__(reason.rstrip(": "))
        self.block = block


def computed(array: Any) -> Float:
    """The numbers of a dask array with several blocks along its first axis only. Raises Failed."""
    get = sys.modules["dask.base"].get_scheduler(collections=[array])
    client = getattr(get, "__self__", None)
    return _on_workers(array, client) if hasattr(client, "nthreads") else _here(array)


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
    try:
        blocks = {future.key[1]: future for future in client.futures_of(client.persist(array))}
        for block in range(array.numblocks[0]):
            _wait(blocks[block], client)
            if blocks[block].status == "error":
                error = blocks[block].exception()
                client.cancel(list(blocks.values()))
                raise Failed(error, block) from error
        return np.concatenate(client.gather([blocks[block] for block in range(len(blocks))]))
    except Failed:
        raise
    except Exception as error:
        raise Failed(error) from error


def _wait(future: Any, client: Any) -> None:
    """Until a future has an end, or the cluster has had no worker for too long."""
    while not future.done():
        try:
            sys.modules["distributed"].wait(future, PATIENCE)
        except TimeoutError:
            if not client.nthreads():
                reason = f"the cluster has had no worker for {PATIENCE:g} s"
                raise Failed(f"{reason}. Start some, and call again.") from None
