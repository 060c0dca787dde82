"""A runs axis: the hard-margin problems are shared out among the cores in parts of many runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np

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


def over_runs(work: Callable[[Constraints], Answer], program: Constraints, quick: bool) -> Answer:
    """`work` on rows without a runs axis as they are, with one on parts of the runs in threads.

    quick: the algorithm is so fast on small problems that a few of them are not worth a thread.
    """
    if program.runs is None:
        return work(program)
    entries = (program.n * program.T) ** 2
    edges = _edges(program.runs, entries, max(1, WORTH // entries) if quick else 1)
    parts = [program.part(slice(a, b)) for a, b in pairwise(edges)]
    if len(parts) == 1:
        return work(parts[0])
    answers = in_threads(work, parts)
    return Answer(
        np.concatenate([a.W for a in answers]),
        np.concatenate([a.multipliers for a in answers]),
        np.concatenate([np.asarray(a.separable) for a in answers]),
    )


def _edges(runs: int, entries: int, least: int) -> list[int]:
    """Where the parts of at least so many runs begin and end."""
    most = max(1, min(TOGETHER, ENTRIES // entries))
    shared = PARTS * cores() if cores() > 1 else 1
    count = max(-(-runs // most), min(-(-runs // least), shared))
    return list(np.linspace(0, runs, count + 1).astype(int).tolist())
