"""Sweeps: its costs. By hand: python lab/benchmarks/sweep.py [two] [dask] [tiny], or --gpu [twice].

two: two worker processes against one. dask: Dask's local cluster against worker processes. tiny: 10,000 cells
of next to no work. --gpu: 10⁶ runs of sphere(6, 8, 10) × 2,000 steps on what JAX finds; twice: again,
for the same bytes, and what batches of other lengths change in the digits. Ratios are of readings in turn.
"""

from __future__ import annotations

import sys
import tempfile
import time
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from pathlib import Path as File

import numpy as np

import attsvm as att
import attsvm_lab as lab
from attsvm_lab.workers import cluster_executor, preload, processes, workers

WORK = {
    "measure": ["kind"],
    "seeds": 1024,
    "data": {"model": "sphere", "n": 6, "T": 8, "d": 10},
    "train": {"steps": 2000, "lr": 0.1},
}
"""One shape, sixteen batches of a quarter to half a second: what two workers can share."""


ROUNDS = 5


def timed(study: dict, executor: Executor | None = None) -> float:
    """Wall seconds of a study in an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        lab.sweep(study, executor, out=folder)
        return time.perf_counter() - began


def warm(pool: Executor, count: int) -> None:
    """Every worker has compiled before anything is measured."""
    small = {**WORK, "seeds": 64 * 4 * count, "train": {"steps": 20, "lr": 0.1}}
    timed(small, pool)
    timed(WORK, pool)


def compare(names: tuple[str, str], pools: list[AbstractContextManager], counts: list[int]) -> None:
    """Seconds of the same study on two executors, in turn."""
    with pools[0] as first_pool, pools[1] as second_pool:
        for pool, count in zip((first_pool, second_pool), counts, strict=True):
            warm(pool, count)
        pairs = [(timed(WORK, first_pool), timed(WORK, second_pool)) for _ in range(ROUNDS)]
    for a, b in pairs:
        print(f"    {names[0]} {a:6.2f} s   {names[1]} {b:6.2f} s   ratio {a / b:.2f}")
    best = min(a for a, _ in pairs) / min(b for _, b in pairs)
    print(
        f"  least of each: {best:.2f}; median of ratios: {np.median([a / b for a, b in pairs]):.2f}",
        flush=True,
    )


def two_pools() -> None:
    print("two workers against one (wanted ≥ 1.8)")
    compare(("one", "two"), [workers(1), workers(2)], [1, 2])


def dask() -> None:
    print("worker processes against Dask's local cluster, two workers each (wanted ≥ 0.9)")
    compare(("processes", "dask"), [workers(2), cluster_executor("local:2")], [2, 2])


def tiny() -> None:
    """100 learning rates × 100 numbers of steps, one seed each."""
    study = {
        "measure": ["kind"],
        "seeds": 1,
        "data": {"model": "prompt_sphere", "n": 1, "T": 2, "d": 2},
        "train": {
            "lr": {"from": 0.01, "to": 1.0, "step": 0.01},
            "steps": {"from": 1, "to": 100},
        },
    }
    seconds = timed(study)
    print(
        f"10,000 tiny cells on {processes()} workers: {seconds:.1f} s, {seconds / 10:.2f} ms each", flush=True
    )


def gpu(out: File, twice: bool) -> None:
    """A million runs through the sweep, everything counted: start, drawing, training, measuring, writing."""
    import jax  # on a machine with a GPU the workers, not this process, should take its memory

    study = {
        "title": "A million runs",
        "measure": ["kind"],
        "seeds": 1_000_000,
        "data": {"model": "sphere", "n": 6, "T": 8, "d": 10},
        "train": {"steps": 2000, "lr": 0.1},
    }
    for attempt in ("first", "second") if twice else ("first",):
        began, start = time.perf_counter(), time.time()
        done = lab.sweep(study, out=out / attempt)
        seconds = time.perf_counter() - began
        stored = batches_stored(out / attempt, start)
        print(f"{attempt}: 1,000,000 runs × 2,000 steps in {seconds:.1f} s; {stored}")
        print(f"  {done.cells[0].quantities}", flush=True)
    print(jax.devices())
    print_parts(16_384)
    if not twice:
        return
    equal = (out / "first" / "runs.parquet").read_bytes() == (out / "second" / "runs.parquet").read_bytes()
    print("the two tables are the same bytes:", equal)
    weights = {}
    for runs in (1, 7, 64, 512, 4096):
        tokens, v = att.datasets.sphere(6, 8, 10, seed=range(runs))
        rule = att.steepest(att.frobenius, 0.1)
        weights[runs] = att.train(tokens, att.Linear(v), optimizer=rule, steps=2000, record=[2000]).final
        first = np.abs(weights[runs][0] - weights[1][0]).max() / np.abs(weights[1][0]).max()
        print(f"batch of {runs}: run 0 differs from that of a batch of one by {first:.1e}", flush=True)


def batches_stored(folder: File, start: float) -> str:
    """When the batches of a study were written, in seconds from its start."""
    times = sorted(file.stat().st_mtime - start for file in (folder / "batches").glob("*.parquet"))
    sampled = ", ".join(f"{at:.1f}" for at in times[:: max(1, len(times) // 8)])
    return f"{len(times)} files, kept at {sampled}"


def print_parts(runs: int) -> None:
    """Where the time of one batch goes, alone on the machine; the second of two."""
    for _ in range(2):
        times = [time.perf_counter()]
        tokens, v = att.datasets.sphere(6, 8, 10, seed=range(runs))
        times.append(time.perf_counter())
        rule = att.steepest(att.frobenius, 0.1)
        path = att.train(tokens, att.Linear(v), optimizer=rule, steps=2000, record=[2000])
        times.append(time.perf_counter())
        att.classify(path, v)
        times.append(time.perf_counter())
    draw, train, measure = np.diff(times)
    print(
        f"one batch of {runs:,}: drawn in {draw:.2f} s, trained in {train:.2f} s, measured in {measure:.2f} s"
    )


def main() -> None:
    preload("attsvm_lab.sweeps.batch", "attsvm.training.train")
    names = set(sys.argv[1:])
    if "--gpu" in names:
        with tempfile.TemporaryDirectory() as folder:
            gpu(File(folder), "twice" in names)
        return
    for name, benchmark in {"two": two_pools, "dask": dask, "tiny": tiny}.items():
        if not names or name in names:
            benchmark()


if __name__ == "__main__":
    main()
