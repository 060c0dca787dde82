"""A batch: some runs of a cell, drawn, trained and measured at once. It is the unit that is kept or lost.

Where batches begin and end depends on the cell and on the kind of device only, never on how many seeds are
asked for, and a batch is always computed whole: so a run has the same digits in every study that asks for it.
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

from attsvm.path import Path
from attsvm.progress import silence
from attsvm.sweeps.cell import Cell, Data, draw, model_source, study_code
from attsvm.sweeps.measure import RECORDS, Ended, is_own, measured, needs_the_way, of_the_worst
from attsvm.sweeps.store import Columns
from attsvm.theory import NoTheorem, limit_norm
from attsvm.tokens import Tokens
from attsvm.workers import BadWorkers

FEW = 16
"""A study of at most so many seeds trains them in one batch; one of more, in larger ones."""

LENGTHS = {"cpu": (64, 64), "gpu": (4096, 16384)}
"""Runs of the first batch of a cell and of the others: they fill the device, and on a CPU fit its cache."""

SECONDS, ROOM = {"cpu": 1e-8, "gpu": 3e-11}, 1 << 31
"""Of a training step per token entry, roughly; and bytes of the GPU that a batch may take."""

LONG, FREE = 20.0, {"cpu": 0.25, "gpu": 2.0}
"""Seconds that a batch should not exceed; and below which a larger shape costs less than a compilation."""

_ALONE = threading.Lock()
"""Held while a batch is trained: what that sets is of the whole process, and of no other thread's batch."""

ROUND = {"cpu": 8, "gpu": 16}
"""What sizes are rounded up to there: a GPU compiles for longer, and computes small sums in no time."""


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
        """What is compiled for it: batches that agree in this should follow each other in one process."""
        told, runs = self.cell.training, self.stop - self.start
        shape = self.cell.shape[0], *_shared_shape(self.cell, runs, device)
        rule = (told.optimizer, told.norm, bool(told.momentum), bool(told.decay), told.batch, told.train_head)
        weight = (told.weight, told.rank, told.separate, told.depth, told.heads, told.across)
        return (weight, rule, told.loss, runs, shape)

    def seconds(self, device: str) -> float:
        """A rough guess; a call of train() takes milliseconds before its first step."""
        return 0.005 + cost(self.cell, self.stop - self.start, device)


def cost(cell: Cell, runs: int, device: str, shape: tuple[int, ...] | None = None) -> float:
    """Seconds of training, roughly."""
    n, T, d, e = shape or cell.shape
    entries = n * T * d + d * e + (d * e * min(d, e) if cell.decomposes else 0)
    return SECONDS[device] * runs * max(1, cell.training.heads) * cell.training.steps * entries


def batches(cell: Cell, seeds: range, few: bool, device: str) -> list[Batch]:
    """The batches of a cell that hold these seeds."""
    key, edges = cell.key(few), _edges(cell, seeds.stop, few, device)
    return [Batch(cell, key, a, b) for a, b in pairwise(edges) if b > seeds.start]


def compute(todo: Sequence[Batch], code: str) -> list[Columns]:
    """One column per measure of each batch: the job of a worker.

    code: what the client's results are kept under; a worker with other code must not add to them.
    """
    if code != study_code():
        raise BadWorkers("a worker has another version of attsvm. Install the client's version on it.")
    with silence():
        return [_computed(batch) for batch in todo]


def device() -> str:
    """What this process trains on: cpu or gpu."""
    from attsvm.training.compilation import backend

    return "cpu" if backend() == "cpu" else "gpu"


@contextmanager
def one_thread() -> Iterator[None]:
    """Runs are not shared out among cores: their digits must not depend on how many there are."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("OMP_NUM_THREADS", None)
        else:
            os.environ["OMP_NUM_THREADS"] = before


# ---------------------------------------------------------------------- details


def _edges(cell: Cell, stop: int, few: bool, device: str) -> list[int]:
    if few:
        return [0, FEW]
    most = _largest(cell, device)
    edges = [0, min(most, LENGTHS[device][0])]
    while edges[-1] < stop:
        edges.append(edges[-1] + most)
    return edges


def _largest(cell: Cell, device: str) -> int:
    """Runs of a batch at most, a power of two."""
    n, T, d, e = cell.shape
    fitting = LONG / cost(cell, 1, device)
    if device == "gpu":
        fitting = min(fitting, ROOM / (64 * (n * T * d + d * e)))
    return 1 << int(np.log2(max(1, min(fitting, LENGTHS[device][1]))))


def _computed(batch: Batch) -> Columns:
    cell = batch.cell
    path, v = _trained(cell, batch.seeds)
    few = max(cell.programs - batch.start, 0) if cell.programs else len(batch.seeds)
    norm, several = predicted(cell), range(path.heads or 0)
    ended = Ended(path, v, norm, few, cell.measures)
    heads = [Ended(path.head(h), None if v is None else v[:, h], norm, few, cell.measures) for h in several]
    found: Columns = {"stopped": np.asarray(path.stopped)}
    for name in cell.measures:
        whole = is_own(name) or not heads
        found[name] = measured(name, ended, cell.folder) if whole else of_the_worst(name, heads)
    return found


def predicted(cell: Cell) -> Any:
    """The norm that theory predicts; None where it predicts nothing."""
    words = cell.training.arguments()
    try:
        return limit_norm(words["weight"], words["optimizer"], words["batch"]).norm
    except NoTheorem:
        return None


def _trained(cell: Cell, seeds: range) -> tuple[Path, Any]:
    from attsvm.training.compilation import few_optimisations
    from attsvm.training.heads import Linear
    from attsvm.training.train import train

    at = device()
    few = cost(cell, len(seeds), at) <= FREE[at]
    shape, heads = _shared_shape(cell, len(seeds), at), cell.training.heads
    source = model_source(cell.data, cell.folder)
    tokens, head, wide, wide_head = _data(cell.data, cell.folder, seeds, shape, heads, source)
    record: Any = RECORDS if any(map(needs_the_way, cell.measures)) else [cell.training.steps]
    # XLA's optimiser would take longer than a short training.
    with _ALONE, one_thread(), few_optimisations() if few and at == "cpu" else nullcontext():
        given = cell.training.arguments() | {"batch": cell.batches(seeds)}
        path = train(wide, wide_head, init=cell.start(seeds), record=record, **given)
    if wide is not tokens:
        path = path.changed(tokens=tokens, W=path.W[..., : tokens.d, : tokens.e], state=None)
        path = path if path.v is None else path.changed(v=path.v[..., : tokens.values.shape[-1]])
    if cell.training.weight.startswith("diagonal"):
        path = as_prompts(path)
    if path.v is not None:
        return path, path.v[:, -1]
    return path, np.asarray(head.v) if isinstance(head, Linear) else None


def as_prompts(path: Path) -> Path:
    """Diagonal weights as prompts w on the keys x ⊙ z: their programs are those of diagonals."""
    told = path.tokens
    keys = np.asarray(told.keys) * np.asarray(told.queries)[..., None, :]
    prompts = Tokens(keys, labels=told.labels, mask=told.mask, values=told.values)
    return path.changed(tokens=prompts, W=np.diagonal(path.W, axis1=-2, axis2=-1)[..., None], state=None)


@lru_cache(maxsize=2)
def _data(
    data: Data, folder: str, seeds: range, size: tuple[int, int, int], heads: int, source: str
) -> tuple[Tokens, Any, Tokens, Any]:
    """Tokens and head, as drawn and padded; the next cell often differs in its training only."""
    from attsvm.training.heads import Head, Linear

    tokens, head = draw(data, folder, seeds, heads)
    if not isinstance(head, Head):
        head = Linear(head if heads else np.broadcast_to(head, (len(seeds), np.shape(head)[-1])))
    return tokens, head, *_padded(tokens, head, *size)


def _shared_shape(cell: Cell, runs: int, device: str) -> tuple[int, int, int]:
    """T, d and e rounded up where that is free: cells that agree in them share one compilation."""
    (n, T, d, e), to = cell.shape, ROUND[device]
    wider = [to * -(-size // to) if size > 1 and cell.padded_width else size for size in (d, e)]
    sizes = to * -(-T // to), wider[0], wider[1]
    few = runs <= LENGTHS[device][0]  # of longer batches there may be many
    return sizes if few and cost(cell, runs, device, (n, *sizes)) <= FREE[device] else (T, d, e)


def _padded(tokens: Tokens, head: Any, T: int, d: int, e: int) -> tuple[Tokens, Any]:
    """The tokens with more of them, all masked, and with coordinates of zeros."""
    from attsvm.training.heads import Linear

    own = tokens.values is not tokens.keys
    if not (own or isinstance(head, Linear)):
        d, e = tokens.d, tokens.e  # a head of the user's own knows how wide the values are
    if (T, d, e) == (tokens.T, tokens.d, tokens.e):
        return tokens, head
    after = [(0, 0), (0, 0)]
    more, wider = (0, T - tokens.T), (0, d - tokens.d)
    keys = np.pad(np.asarray(tokens.keys), [*after, more, wider])
    queries = np.pad(np.asarray(tokens.queries), [*after, (0, e - tokens.e)])
    mask = np.pad(np.asarray(tokens.mask), [*after, more])
    values: Any = np.pad(np.asarray(tokens.values), [*after, more, (0, 0)]) if own else None
    if not own:
        head = Linear(np.pad(head.v, [*[(0, 0)] * (head.v.ndim - 1), wider]))
    return Tokens(keys, queries, tokens.labels, mask, values), head
