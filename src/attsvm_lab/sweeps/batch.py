"""A batch: some runs of a cell, drawn, trained and measured at once. It is the unit of storage.

The edges of batches depend on the cell and on the kind of device only, never on the number of seeds, and
every batch is computed completely. So a run has the same digits in every study that contains it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from attsvm import NoTheorem, Path, Tokens, limit_norm
from attsvm._support.progress import silence
from attsvm.norms.names import as_norm
from attsvm_lab.sweeps.cell import Cell, Data, draw, model_source, study_code
from attsvm_lab.sweeps.measure import (
    RECORDS,
    TrainedRuns,
    is_user_function,
    measured,
    needs_records,
    worst_head,
)
from attsvm_lab.sweeps.store import Columns
from attsvm_lab.sweeps.trainer import OwnTraining
from attsvm_lab.workers import BadWorkers

ONE_BATCH = 16
"""A study of at most so many seeds trains them in one batch of this length; other batches are longer."""

LENGTHS = {"cpu": (64, 64), "gpu": (4096, 16384)}
"""Runs of the first batch of a cell and of the others: they fill the device, and on a CPU fit its cache."""

SECONDS, ROOM = {"cpu": 1e-8, "gpu": 3e-11}, 1 << 31
"""Seconds of a training step per token entry, roughly; and bytes of the GPU that a batch may take."""

LONG, FREE = 20.0, {"cpu": 0.25, "gpu": 2.0}
"""Seconds that a batch should not exceed; and seconds below which padding costs less than a compilation."""

_PROCESS_SETTINGS = threading.Lock()
"""Held while a batch is trained: training changes settings of the process, which other threads would see."""

ROUND = {"cpu": 8, "gpu": 16}
"""Sizes are rounded up to multiples of this: a GPU compiles for longer, and small sums cost it nothing."""


@dataclass(frozen=True)
class Batch:
    """Runs of a cell with the seeds start … stop − 1."""

    cell: Cell
    key: str
    start: int
    stop: int

    @property
    def seeds(self) -> range:
        return range(self.start, self.stop)

    def program(self, device: str) -> tuple[Any, ...]:
        """A key of its compiled program: batches with equal keys should follow each other in one process."""
        s, runs = self.cell.training, self.stop - self.start
        if isinstance(s, OwnTraining):
            return (s.trainer, *s.keywords)
        shape = self.cell.shape[0], *_shared_shape(self.cell, runs, device)
        rule = (s.optimizer, s.norm, bool(s.momentum), bool(s.decay), s.batch, s.train_head)
        weight = (s.weight, s.rank, s.separate, s.depth, s.heads, s.across)
        return (weight, rule, s.loss, runs, shape)

    def seconds(self, device: str) -> float:
        """A rough estimate; a call of train() takes milliseconds before its first step."""
        return 0.005 + cost(self.cell, self.stop - self.start, device)


def cost(cell: Cell, runs: int, device: str, shape: tuple[int, ...] | None = None) -> float:
    """Seconds of training, roughly."""
    n, T, d, e = shape or cell.shape
    entries = n * T * d + d * e + (d * e * min(d, e) if cell.decomposes else 0)
    return SECONDS[device] * runs * max(1, cell.training.heads) * cell.training.steps * entries


def batches(cell: Cell, seeds: range, one_batch: bool, device: str) -> list[Batch]:
    """The batches of a cell with these seeds. one_batch: whether the study has at most ONE_BATCH seeds."""
    key, edges = cell.key(one_batch), _edges(cell, seeds.stop, one_batch, device)
    return [Batch(cell, key, a, b) for a, b in pairwise(edges) if b > seeds.start]


def compute(todo: Sequence[Batch], code: str) -> list[Columns]:
    """One column per measure of each batch: the job of a worker.

    code: the client's study_code(); a worker with other code must not add to the client's results.
    """
    if code != study_code():
        raise BadWorkers("a worker has another version of attsvm. Install the client's version on it.")
    with silence():
        return [_computed(batch) for batch in todo]


def device() -> str:
    """The kind of device on which this process trains: cpu or gpu."""
    from attsvm.training.compilation import backend

    return "cpu" if backend() == "cpu" else "gpu"


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep runs on one core: their digits must not depend on the number of cores."""
    previous = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if previous is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = previous


# ---------------------------------------------------------------------- details


def _edges(cell: Cell, stop: int, one_batch: bool, device: str) -> list[int]:
    if one_batch:
        return [0, ONE_BATCH]
    length = _maximum_length(cell, device)
    edges = [0, min(length, LENGTHS[device][0])]
    while edges[-1] < stop:
        edges.append(edges[-1] + length)
    return edges


def _maximum_length(cell: Cell, device: str) -> int:
    """The largest number of runs in a batch, a power of two."""
    n, T, d, e = cell.shape
    runs = LONG / cost(cell, 1, device)
    if device == "gpu":
        runs = min(runs, ROOM / (64 * (n * T * d + d * e)))
    return 1 << int(np.log2(max(1, min(runs, LENGTHS[device][1]))))


def _computed(batch: Batch) -> Columns:
    cell = batch.cell
    path, v = _trained(cell, batch.seeds)
    solved = max(cell.programs - batch.start, 0) if cell.programs else len(batch.seeds)
    norm = predicted(cell)
    runs = TrainedRuns(path, v, norm, solved, cell.measures, cell.words)
    heads = [
        TrainedRuns(path.head(h), None if v is None else v[:, h], norm, solved, cell.measures)
        for h in range(path.heads or 0)
    ]
    columns: Columns = {"stopped": np.asarray(path.stopped)}
    for name in cell.measures:
        of_path = is_user_function(name) or not heads
        columns[name] = measured(name, runs, cell.folder) if of_path else worst_head(name, heads)
    return columns


def predicted(cell: Cell) -> Any:
    """The norm that theory predicts; None where it predicts nothing."""
    if isinstance(cell.training, OwnTraining):
        return None
    arguments = cell.training.arguments()
    try:
        limit = limit_norm(arguments["weight"], arguments["optimizer"], arguments["batch"])
    except NoTheorem:
        return None
    return None if limit.layout is not None else as_norm(limit.norm)  # no head has a program of its own


def _trained(cell: Cell, seeds: range) -> tuple[Path, Any]:
    from attsvm import Head, Linear, train
    from attsvm.training.compilation import few_optimisations

    kind = device()
    short = kind == "cpu" and cost(cell, len(seeds), kind) <= FREE[kind]
    if isinstance(cell.training, OwnTraining):
        tokens, head = draw(cell.data, cell.folder, seeds)
        head = (
            head
            if isinstance(head, Head)
            else Linear(np.broadcast_to(head, (len(seeds), np.shape(head)[-1])))
        )
        with _PROCESS_SETTINGS, one_thread(), few_optimisations() if short else nullcontext():
            path = cell.training.trained(tokens, head, seeds, cell.folder)
        return path, np.asarray(head.v) if isinstance(head, Linear) else None
    shape, heads = _shared_shape(cell, len(seeds), kind), cell.training.heads
    source = model_source(cell.data, cell.folder)
    tokens, head, padded_tokens, padded_head = _data(cell.data, cell.folder, seeds, shape, heads, source)
    record: Any = RECORDS if any(map(needs_records, cell.measures)) else [cell.training.steps]
    # XLA's optimiser would take longer than a short training.
    with _PROCESS_SETTINGS, one_thread(), few_optimisations() if short else nullcontext():
        arguments = cell.training.arguments() | {"batch": cell.batches(seeds)}
        path = train(padded_tokens, padded_head, init=cell.start(seeds), record=record, **arguments)
    if padded_tokens is not tokens:
        path = path.changed(tokens=tokens, W=path.W[..., : tokens.d, : tokens.e], state=None)
        path = path if path.v is None else path.changed(v=path.v[..., : tokens.values.shape[-1]])
    if cell.training.weight.startswith("diagonal"):
        path = as_prompts(path)
    if path.v is not None:
        return path, path.v[:, -1]
    return path, np.asarray(head.v) if isinstance(head, Linear) else None


def as_prompts(path: Path) -> Path:
    """Diagonal weights as prompts w on the keys x ⊙ z: both have the same programs."""
    tokens = path.tokens
    keys = np.asarray(tokens.keys) * np.asarray(tokens.queries)[..., None, :]
    prompts = Tokens(keys, labels=tokens.labels, mask=tokens.mask, values=tokens.values)
    return path.changed(tokens=prompts, W=np.diagonal(path.W, axis1=-2, axis2=-1)[..., None], state=None)


@lru_cache(maxsize=2)
def _data(
    data: Data, folder: str, seeds: range, size: tuple[int, int, int], heads: int, source: str
) -> tuple[Tokens, Any, Tokens, Any]:
    """Tokens and head, as drawn and padded; cached, because the next cell often differs in training only."""
    from attsvm import Head, Linear

    tokens, head = draw(data, folder, seeds, heads)
    if not isinstance(head, Head):
        head = Linear(head if heads else np.broadcast_to(head, (len(seeds), np.shape(head)[-1])))
    return tokens, head, *_padded(tokens, head, *size)


def _shared_shape(cell: Cell, runs: int, device: str) -> tuple[int, int, int]:
    """T, d and e rounded up where that costs little: cells with equal sizes share one compilation."""
    (n, T, d, e), multiple = cell.shape, ROUND[device]
    widths = [multiple * -(-size // multiple) if size > 1 and cell.padded_width else size for size in (d, e)]
    sizes = multiple * -(-T // multiple), widths[0], widths[1]
    short = runs <= LENGTHS[device][0]  # there may be many longer batches
    return sizes if short and cost(cell, runs, device, (n, *sizes)) <= FREE[device] else (T, d, e)


def _padded(tokens: Tokens, head: Any, T: int, d: int, e: int) -> tuple[Tokens, Any]:
    """The tokens with masked tokens added, and with coordinates of zeros."""
    from attsvm import Linear

    separate_values = tokens.values is not tokens.keys
    if not (separate_values or isinstance(head, Linear)):
        d, e = tokens.d, tokens.e  # a user's head may depend on the width of the values
    if (T, d, e) == (tokens.T, tokens.d, tokens.e):
        return tokens, head
    unpadded = [(0, 0), (0, 0)]
    length, width = (0, T - tokens.T), (0, d - tokens.d)
    keys = np.pad(np.asarray(tokens.keys), [*unpadded, length, width])
    queries = np.pad(np.asarray(tokens.queries), [*unpadded, (0, e - tokens.e)])
    mask = np.pad(np.asarray(tokens.mask), [*unpadded, length])
    values: Any = None
    if separate_values:
        values = np.pad(np.asarray(tokens.values), [*unpadded, length, (0, 0)])
    else:
        head = Linear(np.pad(head.v, [*[(0, 0)] * (head.v.ndim - 1), width]))
    return Tokens(keys, queries, tokens.labels, mask, values), head
