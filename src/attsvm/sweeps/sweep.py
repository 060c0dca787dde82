"""sweep(): run what is missing of a study, keep each finished batch at once, and show the whole."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, as_completed
from pathlib import Path as File
from typing import Any

from attsvm.progress import Line
from attsvm.sweeps.batch import FEW, Batch, batches, compute, device
from attsvm.sweeps.cell import Cell, study_code
from attsvm.sweeps.result import Sweep, assembled
from attsvm.sweeps.store import Piece, Store
from attsvm.sweeps.study import Study, read_study
from attsvm.workers import LostWorkers, begin, using

TASK, SHARES = 1.0, 64
"""Seconds of work that are worth a job of their own; jobs that a study should have at least."""

NEEDED = ("attsvm.sweeps.batch", "attsvm.training.train")
"""What a worker imports, once for all of them."""

PATIENCE = 3
"""Broken pools in a row, without one finished job, after which a study gives up."""


def sweep(
    study: str | os.PathLike[str] | Mapping[str, Any] | Study,
    executor: Executor | None = None,
    *,
    scale: str = "default",
    out: str | os.PathLike[str] | None = None,
) -> Sweep:
    """Run a study: train every cell on every seed, measure, and keep everything in a folder.

    study: a TOML file, a dictionary that reads like one, or a Study.
    executor: any `concurrent.futures.Executor`; by default worker processes, one per core.
    scale: a [scale.NAME] of the study. out: the folder, by default out/NAME of the study.

    The folder has runs.parquet and runs.csv with one row per run, cells.csv with shares and means with their
    intervals, sweep.html, and every finished batch: a rerun computes only what is missing, more seeds or
    sizes extend the table, and several processes may work on one folder. Results are kept for as long as
    the code is the same. A run has the same digits however its study is cut, interrupted or extended, on one
    kind of device; on another they differ by rounding.
    """
    if executor is None:
        begin(*NEEDED)
    chosen = read_study(study, scale)
    folder = File(out) if out is not None else File("out") / chosen.name
    seeds = dict.fromkeys(chosen.cells, chosen.seeds.begin)
    few = not chosen.seeds.quantity and chosen.seeds.begin.stop <= FEW
    keys = {cell: cell.key(few) for cell in chosen.cells}
    store = Store(folder, set(keys.values()), ("stopped", *chosen.measures))
    while True:
        asked = {cell: seeds[cell] for cell in chosen.cells if not store.has(keys[cell], seeds[cell])}
        if asked:
            _run(asked, few, store, executor)
        wider = _wider(chosen, seeds, keys, store)
        if not wider:
            break
        seeds |= wider
    rows = [store.rows(keys[cell], seeds[cell]) for cell in chosen.cells]
    done = assembled(chosen, [seeds[cell] for cell in chosen.cells], rows, folder)
    done.write()
    return done


def _wider(
    study: Study, seeds: Mapping[Cell, range], keys: Mapping[Cell, str], store: Store
) -> dict[Cell, range]:
    """The cells whose interval is still too wide, with the seeds they go on to."""
    if not study.seeds.quantity:
        return {}
    more = {cell: study.seeds.more(s, store.rows(keys[cell], s)) for cell, s in seeds.items()}
    return {cell: found for cell, found in more.items() if found is not None}


def _run(asked: Mapping[Cell, range], few: bool, store: Store, executor: Executor | None) -> None:
    """Compute what is missing, in jobs; a pool whose worker was killed is started again."""
    failed = 0
    while True:
        held = _held(store)
        try:
            with using(executor, 2) as pool:
                at = pool.submit(device).result()
                todo = [
                    b
                    for c, s in asked.items()
                    for b in batches(c, s, few, at)
                    if not store.has(b.key, b.seeds)
                ]
                _submit(todo, at, store, pool)
                return
        except LostWorkers as error:
            failed = failed + 1 if _held(store) == held else 1
            if executor is not None or failed >= PATIENCE:
                raise LostWorkers(f"{error} Finished batches are kept.") from error


def _submit(todo: Sequence[Batch], at: str, store: Store, pool: Executor) -> None:
    jobs = {pool.submit(compute, job, study_code()): job for job in _jobs(todo, at)}
    left = Counter(batch.key for batch in todo)
    cells, runs, done, began = len(left), sum(len(batch.seeds) for batch in todo), 0, time.perf_counter()
    with Line(runs) as line:
        for finished in as_completed(list(jobs)):
            job = jobs.pop(finished)
            columns = zip(job, finished.result(), strict=True)
            store.add([Piece(batch.key, batch.start, batch.stop, found) for batch, found in columns])
            left -= Counter(batch.key for batch in job)  # what is at zero goes
            done += sum(len(batch.seeds) for batch in job)
            speed = done / (time.perf_counter() - began)
            line.show(f"{cells - len(left):,} of {cells:,} cells, {speed:,.0f} runs per second", done)


def _jobs(todo: Sequence[Batch], at: str) -> list[list[Batch]]:
    """Small batches of one compiled program together in a job; long jobs first, none is then waited for."""
    program: dict[Batch, Any] = {batch: batch.program(at) for batch in todo}
    order = sorted(todo, key=lambda batch: (program[batch], batch.start))
    limit = min(TASK, sum(batch.seconds(at) for batch in order) / SHARES)
    jobs: list[list[Batch]] = []
    room = 0.0
    for batch in order:
        if room <= 0 or program[batch] != program[jobs[-1][-1]]:
            jobs.append([])
            room = limit
        jobs[-1].append(batch)
        room -= batch.seconds(at)
    return sorted(jobs, key=lambda job: -sum(batch.seconds(at) for batch in job))


def _held(store: Store) -> int:
    return sum(len(pieces) for pieces in store.pieces.values())
