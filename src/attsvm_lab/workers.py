"""Executors for many independent jobs: worker processes by default, or the workers of a Dask cluster.

Only `submit` and `map` of `concurrent.futures.Executor` are used, so that mpi4py.futures, loky and a Dask
client's `get_executor()` serve, too.
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
from typing import Annotated, Any

import typer

from attsvm._support.ctrl_c import deferring_ctrl_c, ignoring_ctrl_c
from attsvm._support.optional_dependencies import missing
from attsvm._support.options import BadOption
from attsvm._support.xla_flags import compile_quickly
from attsvm.numbers.threads import cores

Cluster = Annotated[
    str | None, typer.Option(help="Run on Dask: the address of a scheduler, or local:8 for 8 workers here.")
]

PER_GPU = 8
"""Worker processes per GPU: while one trains, the others draw data and measure."""

PATIENCE = 5.0
"""Seconds within which a scheduler must answer a first connection, and one after a loss."""

_LOSSES = ("KilledWorker", "CommClosedError")
"""Names of Dask's errors for lost workers and schedulers: Dask itself may not be installed."""

_LOSS_MESSAGE = "workers were killed, perhaps for lack of memory, or their cluster went away. Run it again."

_INHERITED = {
    "OMP_NUM_THREADS": "1",  # the workers use all cores already
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # or the first worker takes all of the GPU's memory
}
_SERVER = "forkserver" in multiprocessing.get_all_start_methods()


class BadWorkers(ConnectionError):
    """The workers cannot be used; the message says why."""


class LostWorkers(BadWorkers):
    """Workers ended before their jobs."""


class SerialExecutor(Executor):
    """Runs each job in this process, when it is submitted."""

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

    Raises LostWorkers if workers end before their jobs, whichever error the executor raises then.
    """
    no_new_workers = executor is not None or jobs <= 1
    pool_context = (
        nullcontext(executor or SerialExecutor()) if no_new_workers else workers(min(processes(), jobs))
    )
    try:
        with pool_context as pool:
            yield pool
    except Exception as error:
        if isinstance(error, (BrokenExecutor, CancelledError)) or type(error).__name__ in _LOSSES:
            raise LostWorkers(_LOSS_MESSAGE) from error
        raise


@contextmanager
def cluster_executor(cluster: str | None) -> Iterator[Executor | None]:
    """The executor for the option --cluster: "local:8", the address of a Dask scheduler, or None."""
    if cluster is None:
        yield None
        return
    kind, _, count = cluster.partition(":")
    if kind == "local" and not (count.isdigit() and int(count) > 0):
        raise _unknown_cluster(cluster)
    client: Any
    with _environment(), _dask(int(count) if kind == "local" else cluster) as client:
        pool = client.get_executor(pure=False)
        try:
            yield pool
        except BaseException:
            with suppress(Exception):  # a lost scheduler cannot cancel its jobs
                pool.shutdown(wait=False)
            raise


def processes() -> int:
    """The number of worker processes for this machine: one per core, fewer with a GPU."""
    return min(PER_GPU, cores()) if _gpu() else cores()


def preload(*modules: str) -> None:
    """Import modules in the server from which workers are forked, in the background.

    The server imports JAX and does not run it: once it has run, JAX has threads, which a fork loses. On
    Windows, which cannot fork, each worker imports the modules.
    """
    if _SERVER:
        forkserver.set_forkserver_preload(list(modules))
        with _environment():
            _start_server()


@contextmanager
def workers(count: int) -> Iterator[Executor]:
    """A pool of `count` processes; an error or Ctrl-C ends them and their jobs."""
    context: Any = multiprocessing.get_context("forkserver" if _SERVER else "spawn")
    children_before = multiprocessing.active_children()
    interruptible = signal.getsignal(signal.SIGINT) != signal.SIG_IGN  # it is ignored in a background job
    with (
        _environment(),
        _ProcessPool(count, context, initializer=_initialize_worker, initargs=(interruptible,)) as pool,
    ):
        if _SERVER:
            _start_server()
        try:
            yield pool
        except BaseException:
            with ignoring_ctrl_c():  # a second one must not leave workers that this process waits for
                for child in multiprocessing.active_children():
                    if child not in children_before:
                        child.terminate()
                pool.shutdown(cancel_futures=True)
            raise


# ---------------------------------------------------------------------- details


@contextmanager
def _dask(cluster: int | str) -> Iterator[Any]:
    """A client of a local cluster with this many workers, or of the scheduler at this address."""
    try:
        import distributed
    except ImportError:
        raise missing("--cluster needs Dask", "dask") from None
    dask: Any = distributed
    quiet: Any = {"dashboard_address": ":0", "silence_logs": logging.CRITICAL}
    scheduler_context: Any = nullcontext(cluster)
    if isinstance(cluster, int):
        # The profiler reads the frames of all threads: Python 3.11 can deadlock (python/cpython#106883).
        # Dask restarts a deadlocked worker after five minutes, and its work is lost.
        no_profiler = {"distributed.worker.profile.enabled": False}
        scheduler_context = dask.LocalCluster(
            n_workers=cluster, threads_per_worker=1, config=no_profiler, **quiet
        )
    else:
        _check_address(dask, cluster)
    with scheduler_context as scheduler, dask.Client(scheduler, timeout=PATIENCE) as client:
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)  # callers report errors themselves
        _check_imports(client)
        yield client


def _check_address(dask: Any, address: str) -> None:
    """Raise if no Dask scheduler answers: a client would wait for ever for a service of another kind."""

    async def connect() -> None:
        options = dask.Security().get_connection_args("client")
        connection = await dask.core.connect(address, timeout=PATIENCE, **options)
        await connection.close()

    try:
        asyncio.run(asyncio.wait_for(connect(), PATIENCE))
    except ValueError:
        raise _unknown_cluster(address) from None
    except OSError:
        raise ConnectionError(
            f"no Dask scheduler answers at {address} within {PATIENCE:g} s. Start one with dask scheduler, "
            "or pass local:8 for 8 workers here."
        ) from None


def _check_imports(client: Any) -> None:
    """Raise if a worker cannot import attsvm: Dask closes it at its first job, which then waits for ever."""
    results = client.run(eval, "__import__('attsvm_lab') and None", on_error="return")
    for address, error in results.items():
        if error is not None:
            raise BadWorkers(
                f"the worker {address} cannot import attsvm_lab: {error}. Install attsvm[lab] where "
                "workers run, and let no file on their path be called attsvm.py."
            )


def _unknown_cluster(cluster: str) -> BadOption:
    return BadOption(f"no cluster {cluster!r}. Pass local:8, or an address such as tcp://host:8786.")


class _ProcessPool(ProcessPoolExecutor):
    """A pool that knows every process it has asked for.

    `submit` starts processes. Ctrl-C in the middle would leave one that nobody ends: it would print a
    traceback, as what it waits for has gone.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        with deferring_ctrl_c():
            return super().submit(fn, *args, **options)


def _exit_with_client() -> None:
    client = multiprocessing.parent_process()
    if client is not None:
        wait([client.sentinel])
        os._exit(1)


def _gpu() -> bool:
    """Whether JAX will find a GPU, without JAX: it would allocate the GPU's memory in this process."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1")
    if hidden or os.environ.get("JAX_PLATFORMS", "") == "cpu":
        return False
    plugins = [plugin.name for plugin in entry_points(group="jax_plugins")]
    return any("cuda" in name for name in plugins) and any(File("/dev").glob("nvidia[0-9]*"))


@contextmanager
def _environment() -> Iterator[None]:
    """Set the variables that workers inherit: fast compilation, one thread, GPU memory on demand."""
    variables_before = set(os.environ)
    compile_quickly()
    for variable, value in _INHERITED.items():
        os.environ.setdefault(variable, value)
    try:
        yield
    finally:
        for variable in set(os.environ) - variables_before:
            del os.environ[variable]


def _start_server() -> None:
    """Start the server of workers. It ignores Ctrl-C, which would print a traceback of its imports."""
    with ignoring_ctrl_c():
        forkserver.ensure_running()


def _initialize_worker(interruptible: bool) -> None:
    """Exit without a traceback on Ctrl-C, and exit when the client does; collect garbage rarely."""
    threading.Thread(target=_exit_with_client, daemon=True).start()
    if interruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)
