"""sweep(): compute the missing batches of a study, store each as it finishes, and write tables and page."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, as_completed
from dataclasses import asdict
from pathlib import Path as File
from typing import Any

import numpy as np

from attsvm._support.progress import ProgressLine
from attsvm_lab.sweeps.batch import ONE_BATCH, Batch, batches, compute, device
from attsvm_lab.sweeps.cell import Cell, study_code
from attsvm_lab.sweeps.measure import own_bounds
from attsvm_lab.sweeps.result import Sweep
from attsvm_lab.sweeps.store import Columns, Piece, Store
from attsvm_lab.sweeps.study import Study, read_study
from attsvm_lab.sweeps.table import as_column
from attsvm_lab.workers import LostWorkers, preload, using

JOB_SECONDS, JOBS = 1.0, 64
"""Seconds of work in a job, at most; the least number of jobs of a study."""

NEEDED = ("attsvm_lab.sweeps.batch", "attsvm.training.train")
"""Modules that workers import before their first job."""

PATIENCE = 3
"""Number of pools that may break in a row, without one finished batch, before a study gives up."""


def sweep(
    study: str | os.PathLike[str] | Mapping[str, Any] | Study,
    executor: Executor | None = None,
    *,
    scale: str = "default",
    out: str | os.PathLike[str] | None = None,
) -> Sweep:
    """Run a study: train every cell on every seed, measure, and keep everything in a folder.

    study: a TOML file, a dictionary with the same keys, or a Study.
    executor: any `concurrent.futures.Executor`; by default worker processes, one per core.
    scale: a [scale.NAME] of the study. out: the folder, by default out/NAME of the study.

    The folder has runs.parquet and runs.csv with one row per run, cells.csv with shares and means with their
    intervals, sweep.html, and every finished batch. A rerun computes only the missing batches, more seeds or
    sizes extend the table, and several processes may work on one folder. Stored results are reused while the
    code is the same. On one kind of device a run has the same digits however its study is split, interrupted
    or extended; on another kind of device the digits differ by rounding.
    """
    if executor is None:
        preload(*NEEDED)
    plan = read_study(study, scale)
    folder = File(out) if out is not None else File("out") / plan.name
    seeds = dict.fromkeys(plan.cells, plan.seeds.begin)
    one_batch = not plan.seeds.quantity and plan.seeds.begin.stop <= ONE_BATCH
    keys = {cell: cell.key(one_batch) for cell in plan.cells}
    store = Store(folder, set(keys.values()), ("stopped", *plan.measures))
    while True:
        missing = {cell: seeds[cell] for cell in plan.cells if not store.has(keys[cell], seeds[cell])}
        if missing:
            _run(missing, one_batch, store, executor)
        extended = _extended(plan, seeds, keys, store)
        if not extended:
            break
        seeds |= extended
    rows = [store.rows(keys[cell], seeds[cell]) for cell in plan.cells]
    result = _assembled(plan, [seeds[cell] for cell in plan.cells], rows, folder)
    result.write()
    return result


def _extended(
    study: Study, seeds: Mapping[Cell, range], keys: Mapping[Cell, str], store: Store
) -> dict[Cell, range]:
    """The cells whose interval is still too wide, with their next seeds."""
    if not study.seeds.quantity:
        return {}
    extended = {cell: study.seeds.extended(s, store.rows(keys[cell], s)) for cell, s in seeds.items()}
    return {cell: wider for cell, wider in extended.items() if wider is not None}


def _assembled(study: Study, seeds: Sequence[range], rows: Sequence[Columns], folder: File) -> Sweep:
    """The runs of all cells in one table, in the order of the study."""
    counts = list(map(len, seeds))
    columns: Columns = {"cell": np.repeat(np.arange(len(counts), dtype=np.int32), counts)}
    for name in study.parameters:
        values = as_column([cell.words.get(name) for cell in study.cells])
        columns[name] = np.repeat(values, counts)
    columns["seed"] = np.concatenate([np.arange(s.start, s.stop) for s in seeds])
    columns |= {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    precision = {k: v for k, v in asdict(study.seeds).items() if k != "begin" and study.seeds.quantity}
    facts: dict[str, Any] = {
        "title": study.title,
        "about": study.about,
        "name": study.name,
        "scale": study.scale,
        "parameters": list(study.parameters),
        "measures": list(study.measures),
        "show": dict(study.show),
        "wanted": precision,
        "bounds": own_bounds(study.measures, study.cells[0].folder),
        "study": study.text,
    }
    return Sweep(folder, facts, columns)


def _run(missing: Mapping[Cell, range], one_batch: bool, store: Store, executor: Executor | None) -> None:
    """Compute missing batches in jobs. A pool whose worker was killed is started again."""
    failures = 0
    while True:
        stored = _stored_pieces(store)
        try:
            with using(executor, 2) as pool:
                kind = pool.submit(device).result()
                todo = [
                    batch
                    for cell, seeds in missing.items()
                    for batch in batches(cell, seeds, one_batch, kind)
                    if not store.has(batch.key, batch.seeds)
                ]
                _submit(todo, kind, store, pool)
                return
        except LostWorkers as error:
            failures = failures + 1 if _stored_pieces(store) == stored else 1
            if executor is not None or failures >= PATIENCE:
                raise LostWorkers(f"{error} Finished batches are kept.") from error


def _submit(todo: Sequence[Batch], kind: str, store: Store, pool: Executor) -> None:
    jobs = {pool.submit(compute, job, study_code()): job for job in _jobs(todo, kind)}
    remaining = Counter(batch.key for batch in todo)
    cells, runs = len(remaining), sum(len(batch.seeds) for batch in todo)
    finished_runs, start = 0, time.perf_counter()
    with ProgressLine(runs) as line:
        for future in as_completed(list(jobs)):
            job = jobs.pop(future)
            results = zip(job, future.result(), strict=True)
            store.add([Piece(batch.key, batch.start, batch.stop, columns) for batch, columns in results])
            remaining -= Counter(batch.key for batch in job)  # drops the cells that reach zero
            finished_runs += sum(len(batch.seeds) for batch in job)
            speed = finished_runs / (time.perf_counter() - start)
            finished_cells = cells - len(remaining)
            line.show(f"{finished_cells:,} of {cells:,} cells, {speed:,.0f} runs per second", finished_runs)


def _jobs(todo: Sequence[Batch], kind: str) -> list[list[Batch]]:
    """Jobs of small batches with one compiled program, the longest first so that no core idles at the end."""
    program: dict[Batch, Any] = {batch: batch.program(kind) for batch in todo}
    order = sorted(todo, key=lambda batch: (program[batch], batch.start))
    limit = min(JOB_SECONDS, sum(batch.seconds(kind) for batch in order) / JOBS)
    jobs: list[list[Batch]] = []
    unused = 0.0
    for batch in order:
        if unused <= 0 or program[batch] != program[jobs[-1][-1]]:
            jobs.append([])
            unused = limit
        jobs[-1].append(batch)
        unused -= batch.seconds(kind)
    return sorted(jobs, key=lambda job: -sum(batch.seconds(kind) for batch in job))


def _stored_pieces(store: Store) -> int:
    return sum(len(pieces) for pieces in store.pieces.values())
