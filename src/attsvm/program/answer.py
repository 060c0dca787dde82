"""The answer to a program, of one run or of many, and how answers of runs are joined.

Only this file opens a runs axis: engines take all runs of a batch at once, or one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.threads import cores, in_threads
from attsvm.program.constraints import FEW_KEYS, Constraints

BATCH = 512
"""Runs that one thread solves at once: enough to hide Python's overhead, few enough for the cache."""

ENTRIES = 1 << 22
"""Entries of the Gram matrices (n T)² of these runs at most (32 MB)."""

WORTH = 1 << 18
"""Entries of Gram matrices that a thread gets at least where the algorithm is quick."""

SHARES = 4
"""Shares per core at least: with fewer, a share of hard problems would leave other cores idle."""

FEW_ROWS = 100
"""Rows up to which repeated examples cost less than the search for them."""


@dataclass(frozen=True)
class Answer:
    """What an algorithm returns, in the units of the scaled rows.

    W (…, d, e): a weight that has the required margins, up to rounding.
    multipliers (…, n, T): ≥ 0 on inequalities, free on ties, zero where there is no row. With a W
        N*(Σ λ_j A_j) = 1, up to rounding, and Σ λ_j b_j is a lower bound; without they are a Farkas proof.
    separable: whether there is a W, one boolean per run.
    gap: the relative gap over all rows that the algorithm measured, one per run; ∞ if none, and then the pair
        may be anything.

    A certificate uses W and the multipliers only, never the gap.
    """

    W: Float
    multipliers: Float
    separable: Bool | bool = True
    gap: Float | float = np.inf

    def finite(self) -> Answer:
        """This answer; where a number of it is not finite, W = 0, which certifies and proves nothing."""
        if np.isfinite(self.W).all() and np.isfinite(self.multipliers).all():
            return self
        return Answer(np.zeros_like(self.W), np.zeros_like(self.multipliers))

    @property
    def carriers(self) -> int:
        """Rows that suffice to carry W, at most: an interior point leaves small multipliers everywhere."""
        return min(int(np.count_nonzero(self.multipliers)), self.W.size)

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """W, multipliers, separable and gap as arrays with a runs axis, if there are runs."""
        return self.W, self.multipliers, np.asarray(self.separable), np.asarray(self.gap)

    def run(self, index: int) -> Answer:
        """The answer of one run."""
        W, multipliers, separable, gap = (array[index] for array in self.arrays)
        return Answer(W, multipliers, bool(separable), float(gap))

    def as_batch(self) -> Answer:
        """The answer of one run as that of a batch of one."""
        return Answer(*(array[None] for array in self.arrays))


# ---------------------------------------------------------------------- runs


Work = Callable[[Constraints], Answer]


def over_runs(work: Work, program: Constraints, quick: bool) -> Answer:
    """`work` on a program without a runs axis; with one, on shares of the runs in threads.

    quick: the algorithm is so fast that a few small problems do not pay for a thread.
    """
    if program.runs is None:
        return work(program)
    entries = (program.n * program.T) ** 2
    edges = _edges(program.runs, entries, max(1, WORTH // entries) if quick else 1)
    if len(edges) == 2:
        return work(program)
    return joined(in_threads(work, [program.subset(slice(a, b)) for a, b in pairwise(edges)]))


def in_batch(work: Work, program: Constraints) -> Answer:
    """An engine for many runs at once: one problem is a batch of one."""
    return work(program) if program.runs is not None else work(program.as_batch()).run(0)


def in_shares(work: Work, program: Constraints, most: int) -> Answer:
    """The same on at most so many runs at a time, which bounds the memory."""
    if len(program.keys) <= max(1, most):
        return work(program)
    starts = range(0, len(program.keys), max(1, most))
    return joined([work(program.subset(slice(k, k + max(1, most)))) for k in starts])


def one_by_one(work: Work, program: Constraints) -> Answer:
    """Work for one run on each of them. Where no row requires a margin, W = 0 is the answer."""
    if program.runs is not None:
        return joined([one_by_one(work, run).as_batch() for (run,) in program.each_run()])
    zero = Answer(np.zeros((program.d, program.e)), np.zeros(program.active.shape))
    if not (program.bound > 0).any():
        return replace(zero, gap=0.0)
    with suppress(np.linalg.LinAlgError):  # overflow: no factorisation exists, and no answer
        return work(program)
    return zero


def with_runs_replaced(
    work: Callable[[Constraints, Answer], Answer], program: Constraints, answer: Answer, marked: Bool
) -> Answer:
    """The answer with the marked runs (…,) replaced by `work` on their program and their finite answer."""
    if not marked.any():
        return answer
    if program.runs is None:
        return work(program, answer.finite())
    arrays, indices = [array.copy() for array in answer.arrays], np.flatnonzero(marked).tolist()
    for k, (run,) in zip(indices, program.each_run(indices=indices), strict=True):
        for array, entry in zip(arrays, work(run, answer.run(k).finite()).arrays, strict=True):
            array[k] = entry
    return Answer(*arrays)


def joined(answers: Sequence[Answer]) -> Answer:
    """The answers of shares of the runs as one."""
    arrays = zip(*(answer.arrays for answer in answers), strict=True)
    return Answer(*(np.concatenate(pieces) for pieces in arrays))


def _edges(runs: int, entries: int, least: int) -> list[int]:
    """Where shares of `least` runs or more begin and end."""
    most = max(1, min(BATCH, ENTRIES // entries))
    threads = SHARES * cores() if cores() > 1 else 1
    count = max(-(-runs // most), min(-(-runs // least), threads))
    return [runs * share // count for share in range(count + 1)]


# ---------------------------------------------------------------------- repeated examples


def without_copies(work: Work, program: Constraints) -> Answer:
    """`work` on the examples of one run that repeat none before; the multipliers of the others are zero.

    An interior point of k rows costs k³ and needs only one of several equal rows.
    """
    if not program.fits() or not FEW_ROWS < program.active.size <= FEW_KEYS:
        return work(program)
    first = program.distinct_examples()
    if len(first) == program.n:
        return work(program)
    answer = work(program.examples(first))
    multipliers = np.zeros(program.active.shape)
    multipliers[first] = answer.multipliers
    return replace(answer, multipliers=multipliers)
