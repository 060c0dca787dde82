"""Vector problems (e = 1 or d = 1) in the l2 norm: a working set around the dual active set.

    min ‖p‖  subject to  z_i (x_a − x_t)ᵀ p ≥ required_i

Small problems go to the dual active set whole. Large ones keep a pool of a few rows per dimension
and read the data only to find the rows the pool has missed; most examples are skipped, because a
slack (of a row of length one) can change by no more than p has moved since it was last measured.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from attsvm.program import active_set
from attsvm.program.active_set import ACTIVE, CONTRADICTORY, COUNT, DEPENDENT, STALLED, TINY
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.prompt_rows import Prompts, price, solve_range
from attsvm.tokens import Bool, Float

SMALL = 50_000
"""Numbers in the largest dense matrix of rows."""

PROBE, FIRST, LATER, LARGEST = 16, 8, 4, 48
"""Rows per dimension: in the probe, added in the first round, in later rounds, and in the pool."""

ROUNDS = 300

Index = NDArray[np.intp]


def solve(rows: Constraints) -> Answer:
    """The shortest vector W that satisfies the rows; d or e is 1, no runs axis."""
    if rows.e > 1:
        return _transposed(rows)
    if rows.n * rows.T * rows.d <= SMALL:
        answer = _solve_whole(rows, 1)
        return Answer(answer.W[0], answer.multipliers[0], bool(answer.separable[0]))  # type: ignore[index]
    return _WorkingSet(rows).solve()


def solve_runs(rows: Constraints) -> Answer:
    """`solve` for a batch of small problems with e = 1, on all cores: arrays with a runs axis."""
    return _solve_whole(rows, os.cpu_count() or 1)


def _solve_whole(rows: Constraints, threads: int) -> Answer:
    """All rows of each run at once; one compiled loop per thread."""
    prompts = _prompts(rows)
    runs = len(prompts.keys)
    W = np.zeros((runs, rows.d, 1))
    multipliers = np.zeros((runs, rows.n, rows.T))
    separable = np.zeros(runs, bool)

    def work(start: int, stop: int) -> None:
        state = active_set.empty(rows.n * rows.T, rows.d)
        solve_range(prompts, state, (W, multipliers, separable), start, stop)

    threads = max(1, min(threads, runs // 16))
    if threads == 1:
        work(0, runs)
    else:
        # Four parts per thread, so that a thread with harder problems does not keep the others.
        edges = np.linspace(0, runs, 4 * threads + 1).astype(int)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, edges[:-1], edges[1:]))
    return Answer(W, multipliers, separable)


def _prompts(rows: Constraints) -> Prompts:
    """The arrays of the rows with a runs axis, for compiled code."""
    parts = (rows.keys, rows.queries[..., 0], rows.anchor, rows.active, rows.tied, rows.required)
    if rows.runs is None:
        parts = tuple(part[None] for part in parts)  # type: ignore[assignment]
    keys, query, anchor, active, tied, required = (np.ascontiguousarray(part) for part in parts)
    return Prompts(keys, query, anchor.astype(np.int64), active, tied, required)


def _transposed(rows: Constraints) -> Answer:
    """d = 1: the row is a number δ times the query, so few rows of an example matter.

    For inequalities these are the smallest δ > 0, the δ < 0 nearest to zero, and a zero; of the ties
    one that is not zero.
    """
    delta = np.take_along_axis(rows.keys[..., 0], rows.anchor[:, None], 1) - rows.keys[..., 0]
    size = np.where(delta == 0, np.inf, np.abs(delta))
    free = rows.separating
    kinds = [(free & (delta > 0), size), (free & (delta < 0), size), (free & (delta == 0), -size)]
    kinds.append((rows.tied & (delta != 0), -size))
    example, token = [], []
    for kind, order in kinds:
        token.append(np.argmin(np.where(kind, order, np.inf), 1)[kind.any(1)])
        example.append(np.flatnonzero(kind.any(1)))
    at = np.concatenate(example), np.concatenate(token)
    point = active_set.solve_rows(delta[at][:, None] * rows.queries[at[0]], rows.bound[at], rows.tied[at])
    multipliers = np.zeros(rows.active.shape)
    multipliers[at] = point.multipliers
    return Answer(point.w[None, :], multipliers, point.separable)


class _WorkingSet:
    """The pool of rows and what is known about the slacks of all others.

    example, token: names of the pool's rows; known (n, T): rows in the pool; length: of its rows.
    slack, worst (n, 2): the two least slacks of each example when last measured, and their tokens.
    measured (n,): the round of that measurement; points: p of each round.
    """

    def __init__(self, rows: Constraints) -> None:
        self.rows = rows
        self.prompts = _prompts(rows)
        self.state = active_set.empty(LARGEST * rows.d, rows.d)
        self.example: Index = np.zeros(0, np.intp)
        self.token: Index = np.zeros(0, np.intp)
        self.length: Float = np.zeros(0)
        self.known: Bool = np.zeros(rows.active.shape, bool)
        self.slack = np.full((rows.n, 2), -np.inf)
        self.worst = np.zeros((rows.n, 2), np.int64)
        self.measured = np.full(rows.n, -1)
        self.points: list[Float] = []

    def solve(self) -> Answer:
        """Probe a few examples; then measure, add the worst rows and advance, until none is left."""
        self._add(*independent_ties(self.rows))
        self._add(*self._probe())
        stuck = 0
        for _ in range(ROUNDS):
            status = active_set.advance(self.state)
            if status == CONTRADICTORY:
                return self._answer(*active_set.proof(self.state), separable=False)
            stuck = stuck + 1 if status == STALLED else 0
            self._measure()
            example, token = self._violated()
            if example.size and np.isneginf(self.slack[example[0], 0]):
                return self._impossible(example[0], token[0])
            if not example.size or stuck == 3:
                break
            self._add(example, token)
        return self._answer(*active_set.active(self.state), separable=True)

    def _probe(self) -> tuple[Index, Index]:
        """All rows of a few examples, evenly spaced: enough to expose a hopeless selection."""
        most = PROBE * self.rows.d
        few = np.linspace(0, self.rows.n - 1, min(self.rows.n, -(-most // (self.rows.T - 1)))).astype(int)
        place, token = np.nonzero(self.rows.separating[few])
        return few[place][:most], token[:most]

    def _measure(self) -> None:
        """Read the examples whose least slack may have become negative since it was measured."""
        p = self.state.p.copy()
        moved = np.array([np.linalg.norm(p - q) for q in self.points] + [np.inf])
        old = np.flatnonzero(self.slack[:, 0] < moved[self.measured])
        price(self.prompts, old, p, self.slack, self.worst)
        self.measured[old] = len(self.points)
        self.points.append(p)

    def _violated(self) -> tuple[Index, Index]:
        """The most violated rows that are not in the pool, the worst first."""
        p = self.points[-1]
        fresh = (self.measured == len(self.points) - 1)[:, None]
        floor = 4e-16 * float(np.linalg.norm(p))
        example, place = np.nonzero(fresh & (self.slack < -floor))
        token = self.worst[example, place]
        slack = self.slack[example, place]
        new = ~self.known[example, token]
        example, token, slack = example[new], token[new], slack[new]
        most = (FIRST if len(self.points) == 1 else LATER) * self.rows.d
        order = np.argsort(slack)[:most]
        return example[order], token[order]

    def _add(self, example: Index, token: Index) -> None:
        delta = self.rows.differences(example, token) * self.rows.queries[example]
        length = active_set.lengths(delta)
        real = length > TINY  # a zero row is found, and named, when its example is measured
        example, token, delta, length = example[real], token[real], delta[real], length[real]
        if self.state.sizes[COUNT] + len(example) > len(self.state.rows):
            self._purge()
        bound, tied = self.rows.bound[example, token], self.rows.tied[example, token]
        active_set.fill(self.state, delta, bound, tied, length)
        self.example = np.append(self.example, example)
        self.token = np.append(self.token, token)
        self.length = np.append(self.length, length)
        self.known[example, token] = True

    def _purge(self) -> None:
        """Keep the active rows and, of the others, the half of the pool with the least slack."""
        s, count = self.state, int(self.state.sizes[COUNT])
        slack = s.rows[:count] @ s.p - s.bound[:count]
        slack[s.inside[:count] | s.equality[:count]] = -np.inf
        kept = np.sort(np.argsort(slack)[: len(s.rows) // 2])
        for array in (s.rows, s.bound, s.equality, s.inside):
            array[: len(kept)] = array[kept]
        place = np.zeros(count, np.int64)
        place[kept] = np.arange(len(kept))
        q = int(s.sizes[ACTIVE])
        s.active[:q] = place[s.active[:q]]
        s.sizes[COUNT] = len(kept)
        self.known[self.example, self.token] = False
        self.example, self.token, self.length = self.example[kept], self.token[kept], self.length[kept]
        self.known[self.example, self.token] = True

    def _answer(self, index: Index, weight: Float, separable: bool) -> Answer:
        multipliers = np.zeros(self.rows.active.shape)
        multipliers[self.example[index], self.token[index]] = weight / self.length[index]
        W = self.state.p[:, None].copy() if separable else np.zeros((self.rows.d, 1))
        return Answer(W, multipliers, separable)

    def _impossible(self, example: int, token: int) -> Answer:
        """A zero row that asks for a margin is a proof by itself."""
        multipliers = np.zeros(self.rows.active.shape)
        multipliers[example, token] = 1.0
        return Answer(np.zeros((self.rows.d, 1)), multipliers, False)


def independent_ties(rows: Constraints) -> tuple[Index, Index]:
    """Names of tied rows that span all tied rows, at most d, by pivoted QR in bounded memory."""
    example, token = np.nonzero(rows.tied)
    kept = np.zeros(0, np.intp)
    chunk = 4 * rows.d
    for start in range(0, len(example), chunk):
        tried = np.append(kept, np.arange(start, min(start + chunk, len(example))))
        delta = rows.differences(example[tried], token[tried]) * rows.queries[example[tried]]
        length = active_set.lengths(delta)
        tried, delta = tried[length > TINY], delta[length > TINY] / length[length > TINY, None]
        if len(tried):
            R, pivot = scipy.linalg.qr(delta.T, mode="r", pivoting=True)
            kept = tried[pivot[: int((np.abs(np.diagonal(R)) > DEPENDENT).sum())]]
    return example[kept], token[kept]
