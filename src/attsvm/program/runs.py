"""A runs axis, opened here and nowhere else: engines take all runs of a batch at once, or one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from attsvm.numbers import Float
from attsvm.numbers.threads import cores, in_threads
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer

TOGETHER = 512
"""Runs that one thread solves at once: enough to hide Python's share, few enough for the cache."""

ENTRIES = 1 << 22
"""Entries of the Gram matrices (n T)² of these runs at most (32 MB)."""

WORTH = 1 << 18
"""Entries of Gram matrices that a part has at least where the algorithm is quick."""

PARTS = 4
"""Parts per core at least, so that one with harder problems does not keep the others waiting."""


Work = Callable[[Constraints], Answer]


def over_runs(work: Work, program: Constraints, quick: bool) -> Answer:
    """`work` on rows without a runs axis as they are, with one on parts of the runs in threads.

    quick: the algorithm is so fast on small problems that a few of them are not worth a thread.
    """
    if program.runs is None:
        return work(program)
    entries = (program.n * program.T) ** 2
    edges = _edges(program.runs, entries, max(1, WORTH // entries) if quick else 1)
    parts = [program.part(slice(a, b)) for a, b in pairwise(edges)]
    return work(parts[0]) if len(parts) == 1 else joined(in_threads(work, parts))


def in_batch(work: Work, program: Constraints) -> Answer:
    """An engine for many runs at once: one problem is a batch of one."""
    return work(program) if program.runs is not None else work(program.as_batch()).alone()


def in_parts(work: Work, program: Constraints, most: int) -> Answer:
    """The same on so many runs at a time, because their memory is bounded."""
    if len(program.keys) <= max(1, most):
        return work(program)
    starts = range(0, len(program.keys), max(1, most))
    return joined([work(program.part(slice(k, k + max(1, most)))) for k in starts])


def one_by_one(work: Work, program: Constraints) -> Answer:
    """Work for one run on each of them. Where nothing asks for a margin, W = 0 is the answer."""
    if program.runs is not None:
        return joined([one_by_one(work, one).as_batch() for (one,) in each_run(program)])
    if (program.bound > 0).any():
        with suppress(np.linalg.LinAlgError):  # numbers that no factorisation takes are no answer
            return work(program)
    return Answer(np.zeros((program.d, program.e)), np.zeros(program.active.shape))


def each_run(program: Constraints, *arrays: Float, which: Iterable[int] | None = None) -> Iterator[Any]:
    """The runs, all or some, one after the other, each with its part of arrays that have a runs axis too."""
    for k in range(len(program.keys)) if which is None else which:
        yield program.run(k), *(array[k] for array in arrays)


def joined(answers: Sequence[Answer]) -> Answer:
    """The answers of parts of the runs as one."""
    parts = zip(*(answer.parts for answer in answers), strict=True)
    return Answer(*(np.concatenate(part) for part in parts))


def _edges(runs: int, entries: int, least: int) -> list[int]:
    """Where the parts of at least so many runs begin and end."""
    most = max(1, min(TOGETHER, ENTRIES // entries))
    shared = PARTS * cores() if cores() > 1 else 1
    count = max(-(-runs // most), min(-(-runs // least), shared))
    return list(np.linspace(0, runs, count + 1).astype(int).tolist())
