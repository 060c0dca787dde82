"""Executors: where many independent jobs run. Worker processes by default, Dask's workers by name.

The contract is `concurrent.futures.Executor`, of which only `submit` and `map` are used: whatever has them
(mpi4py.futures, loky, a Dask client's `get_executor()`) will do.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from importlib.metadata import entry_points
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path as File
from typing import Any

from attsvm.extras import missing
from attsvm.numbers.threads import cores
from attsvm.training.compilation import compile_quickly
from attsvm.words import WrongWord

PER_GPU = 8
"""Worker processes that share a GPU: while one trains, the others draw data and measure."""

PATIENCE = 5.0
"""Seconds within which a scheduler must answer, at first and after a connection was lost."""

_GONE = ("KilledWorker", "CommClosedError")
"""Dask's own words for workers and schedulers that went away; it need not be installed to know them."""

_LOST = "workers were killed, perhaps for lack of memory, or their cluster went away. Run it again."

_INHERITED = {
    "OMP_NUM_THREADS": "1",  # threads of small calls would only wait for each other
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # on a GPU the first worker would take all memory
}
_SERVER = "forkserver" in multiprocessing.get_all_start_methods()


class BadWorkers(RuntimeError):
    """Workers that cannot be used, and why."""


class LostWorkers(BadWorkers):
    """Workers that were there and went away in the middle of the work."""


class Here(Executor):
    """Runs every job at once, in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        job: Future[Any] = Future()
        try:
            job.set_result(fn(*args, **options))
        except Exception as error:
            job.set_exception(error)
        return job


@contextmanager
def using(executor: Executor | None, jobs: int) -> Iterator[Executor]:
    """The given executor; without one, a worker process per core, or this process for a single job.

    Raises LostWorkers where they go away, whatever the executor's own word for that is.
    """
    few = executor is not None or jobs <= 1
    try:
        with nullcontext(executor or Here()) if few else workers(min(processes(), jobs)) as pool:
            yield pool
    except Exception as error:
        if isinstance(error, (BrokenExecutor, CancelledError)) or type(error).__name__ in _GONE:
            raise LostWorkers(_LOST) from error
        raise


@contextmanager
def named(cluster: str | None) -> Iterator[Executor | None]:
    """The executor of an option --cluster: "local:8", the address of a Dask scheduler, or None."""
    if cluster is None:
        yield None
        return
    kind, _, count = cluster.partition(":")
    if kind == "local" and not (count.isdigit() and int(count) > 0):
        raise _no_cluster(cluster)
    client: Any
    with _environment(), _dask(int(count) if kind == "local" else cluster) as client:
        pool = client.get_executor(pure=False)
        try:
            yield pool
        except BaseException:
            with suppress(Exception):  # a scheduler that is gone has nothing to cancel
                pool.shutdown(wait=False)
            raise


def processes() -> int:
    """How many worker processes this machine should have: one per core, or a few for its GPU."""
    return min(PER_GPU, cores()) if _gpu() else cores()


def begin(*modules: str) -> None:
    """Import modules in the server that workers are forked from, while this process goes on.

    JAX has threads once it has run, which a fork would not survive; the server imports and runs nothing.
    Where there is no fork (Windows), each worker imports for itself.
    """
    if _SERVER:
        forkserver.set_forkserver_preload(list(modules))
        with _environment():
            forkserver.ensure_running()


@contextmanager
def workers(count: int) -> Iterator[Executor]:
    """A pool of `count` processes; an error or Ctrl-C ends what they are doing."""
    context: Any = multiprocessing.get_context("forkserver" if _SERVER else "spawn")
    others = multiprocessing.active_children()
    with _environment(), ProcessPoolExecutor(count, context, initializer=_settle) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                if child not in others:
                    child.terminate()
            raise


# ---------------------------------------------------------------------- details


@contextmanager
def _dask(where: int | str) -> Iterator[Any]:
    """A client of so many workers on this machine, or of the scheduler at an address."""
    try:
        import distributed
    except ImportError:
        raise missing("--cluster needs Dask", "dask") from None
    dask: Any = distributed
    quiet: Any = {"dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    home: Any = nullcontext(where)
    if isinstance(where, int):
        # The profiler asks for every thread's frame, by which Python 3.11 may lock itself up for ever
        # (python/cpython#106883): after five minutes the worker was started anew, and its work lost.
        calm = {"distributed.worker.profile.enabled": False}
        home = dask.LocalCluster(n_workers=where, threads_per_worker=1, config=calm, **quiet)
    else:
        _reach(dask, where)
    with home as scheduler, dask.Client(scheduler, timeout=PATIENCE) as client:
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # what goes wrong we say ourselves
        yield client


def _reach(dask: Any, address: str) -> None:
    """Refuse an address that no scheduler answers: a client waits for ever for a service of another kind."""

    async def greet() -> None:
        known = dask.Security().get_connection_args("client")
        comm = await dask.core.connect(address, timeout=PATIENCE, **known)
        await comm.close()

    try:
        asyncio.run(asyncio.wait_for(greet(), PATIENCE))
    except ValueError:
        raise _no_cluster(address) from None
    except OSError:
        raise ConnectionError(
            f"no Dask scheduler answers at {address} within {PATIENCE:g} s. Start one with dask scheduler, "
            "or pass local:8 for 8 workers here."
        ) from None


def _no_cluster(word: str) -> WrongWord:
    return WrongWord(f"no cluster {word!r}. Pass local:8, or an address such as tcp://host:8786.")


def _end_with_the_client() -> None:
    client = multiprocessing.parent_process()
    if client is not None:
        wait([client.sentinel])
        os._exit(1)


def _gpu() -> bool:
    """Whether JAX will find a GPU; asking JAX itself would take the GPU's memory in this process."""
    asked = os.environ.get("JAX_PLATFORMS", ""), os.environ.get("CUDA_VISIBLE_DEVICES", "all")
    if asked[0] == "cpu" or asked[1] in ("", "-1"):
        return False
    plugins = [plugin.name for plugin in entry_points(group="jax_plugins")]
    return any("cuda" in name for name in plugins) and any(File("/dev").glob("nvidia[0-9]*"))


@contextmanager
def _environment() -> Iterator[None]:
    """What workers inherit: quick compilation, no threads of their own, memory of the GPU as they need it."""
    before = set(os.environ)
    compile_quickly()
    for setting, value in _INHERITED.items():
        os.environ.setdefault(setting, value)
    try:
        yield
    finally:
        for setting in set(os.environ) - before:
            del os.environ[setting]


def _settle() -> None:
    """End without a traceback on Ctrl-C, and with the client, killed or not; look for garbage but seldom."""
    threading.Thread(target=_end_with_the_client, daemon=True).start()
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # ignored in the background of a script, here too
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
