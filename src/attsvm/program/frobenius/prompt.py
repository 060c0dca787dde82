"""Vector problems (e = 1 or d = 1) in the l2 norm: a working set around the dual active set.

    min ‖p‖  subject to  z_i (x_a − x_t)ᵀ p ≥ required_i

Small problems go to the dual active set whole. Large ones keep a pool of a few rows per dimension
and read the data only to find the rows the pool has missed; most rows are skipped, because a slack
(of a row of length one) changes by no more than p has moved since it was last measured.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer, stacked
from attsvm.program.frobenius import active_set, written_out
from attsvm.program.frobenius.active_set import ACTIVE, CONTRADICTORY, COUNT, DEPENDENT, STALLED, TINY
from attsvm.program.frobenius.prompt_rows import Prompts, Slacks, append, price
from attsvm.tokens import Bool, Float

SMALL = 50_000
"""Numbers in the largest dense matrix of rows."""

PROBE, ADDED, LARGEST = 16, 8, 48
"""Rows per dimension: in the probe, added in a round, and in the pool."""

STRIDES = (16, 4)
"""The first rounds read every 16th and every 4th example."""

ROUNDS = 300

FLOOR, ROUNDING = 4e-16, 1e-13
"""Slack, relative to ‖p‖, that passes for zero; relative error of a margin that needs no other pass."""

Index = NDArray[np.intp]


def solve(rows: Constraints) -> Answer:
    """The shortest vector W that satisfies the rows; d or e is 1, no runs axis."""
    if rows.e > 1:
        return _transposed(rows)
    if _small(rows) or rows.n * rows.T < rows.d:
        return _dense(rows, *np.nonzero(rows.active))
    return _WorkingSet(rows).solve()


def solve_runs(rows: Constraints) -> Answer:
    """`solve` for every run of a batch: arrays with the runs axis first."""
    if _small(rows):
        return written_out.solve_runs(rows)
    return stacked([solve(rows.run(run)) for run in range(len(rows.keys))])


def _small(rows: Constraints) -> bool:
    return rows.e == 1 and max(rows.n * rows.T, rows.d) * rows.d <= SMALL


def _prompts(rows: Constraints) -> Prompts:
    """The arrays of the rows with a runs axis, for compiled code.

    All are read-only: compiled code distinguishes, and compiles once if all calls are alike.
    """
    parts: list[NDArray[Any]] = [
        rows.keys,
        rows.queries[..., 0],
        rows.anchor,
        rows.active,
        rows.tied,
        rows.required,
    ]
    for k, part in enumerate(parts):
        parts[k] = np.ascontiguousarray(part if rows.runs is not None else part[None]).view()
        parts[k].flags.writeable = False
    return Prompts(*parts)


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
    return _dense(rows, np.concatenate(example), np.concatenate(token))


def _dense(rows: Constraints, example: Index, token: Index) -> Answer:
    """The program of the named rows, (k,) and (k,), written out."""
    A = rows.differences(example, token) * rows.queries[example]  # d or e is 1
    at = example, token
    bound = rows.bound[at]
    w, weight, separable = active_set.solve_rows(A, bound, rows.tied[at])
    multipliers = np.zeros(rows.active.shape)
    multipliers[at] = weight
    answer = Answer(w.reshape(rows.d, rows.e), multipliers, separable)
    if not separable:
        return answer
    asks = bound > 0
    least = float((A[asks] @ w / bound[asks]).min(initial=np.inf))
    return at_margin_one(answer, least, float(np.linalg.norm(weight @ A)), float(weight @ bound))


def at_margin_one(answer: Answer, least: float, size: float, gained: float) -> Answer:
    """The answer divided by its least margin and by the length of Σ λ_j A_j, where both are numbers."""
    if not (0 < least < np.inf and 0 < size < np.inf):
        return answer
    gap = 1.0 - gained / size * least / float(np.linalg.norm(answer.W))
    return Answer(answer.W / least, answer.multipliers / size, scaled=True, gap=gap)


class _WorkingSet:
    """The pool of rows and what is known about the slacks of all others.

    names, length: the pool's rows, as i·T + t, and their lengths; known (n·T,): rows in the pool.
    slacks: of all rows, when last measured; points: p of each round.
    """

    def __init__(self, rows: Constraints) -> None:
        self.rows = rows
        self.prompts = _prompts(rows)
        self.state = active_set.empty(min(LARGEST * rows.d, rows.active.size), rows.d)
        self.names: Index = np.zeros(0, np.intp)
        self.length: Float = np.zeros(0)
        self.known: Bool = np.zeros(rows.active.size, bool)
        self.points: list[Float] = []

    @cached_property
    def slacks(self) -> Slacks:
        """Nothing known yet; a probe that finds a contradiction never asks."""
        n, shape = self.rows.n, self.rows.active.shape
        return Slacks(
            np.full(shape, -1.0),
            np.full(shape, -np.inf),
            np.zeros(shape, np.int16),
            np.full((n, 2), np.inf),
            np.zeros((n, 2), np.int64),
        )

    def solve(self) -> Answer:
        """Probe a few examples; then measure, add the worst rows and advance, until none is left."""
        if self.rows.tied.any():
            self._add(independent_ties(self.rows))
        self._add(self._probe())
        stuck = 0
        for turn in range(ROUNDS):
            status = active_set.advance(self.state)
            if status == CONTRADICTORY:
                index, weight = active_set.proof(self.state)
                return self._answer(self.names[index], weight / self.length[index], False)
            stuck = stuck + 1 if status == STALLED else 0
            self._measure(turn)
            names, slack = self._violated()
            if names.size and np.isneginf(slack[0]):  # a zero row that asks for a margin
                return self._answer(names[:1], np.ones(1), False)
            if stuck == 3 or (not names.size and turn >= len(STRIDES)):
                break
            self._add(names)
        index, weight = active_set.active(self.state)
        answer = self._answer(self.names[index], weight / self.length[index], True)
        return answer if stuck else self._scaled(answer, weight @ self.state.rows[index])

    def _scaled(self, answer: Answer, M: Float) -> Answer:
        """The answer at margin one, without another pass; M = Σ λ_j A_j.

        Outside the pool a slack, of a row of length one, may be −FLOOR ‖p‖; no row is longer than 2 √d.
        """
        s, count = self.state, int(self.state.sizes[COUNT])
        asked = self.rows.required[self.rows.required > 0]
        short = FLOOR * float(np.linalg.norm(s.p)) * 2 * np.sqrt(self.rows.d) / asked.min(initial=np.inf)
        asks = s.bound[:count] > 0
        least = float((s.rows[:count][asks] @ s.p / s.bound[:count][asks]).min(initial=1.0 - short))
        if short > ROUNDING:
            return answer
        gained = float((answer.multipliers * self.rows.bound).sum())
        return at_margin_one(answer, least, float(np.linalg.norm(M)), gained)

    def _probe(self) -> Index:
        """All rows of a few examples, evenly spaced: enough to expose a hopeless selection."""
        rows, most = self.rows, PROBE * self.rows.d
        few = np.linspace(0, rows.n - 1, min(rows.n, 1 + most // rows.T)).astype(int)
        place, token = np.nonzero(rows.separating[few])
        return (few[place] * rows.T + token)[:most]

    def _measure(self, turn: int) -> None:
        """Read the rows that may have become violated since they were read last.

        While p is crude, a part of the examples tells enough.
        """
        p = self.state.p.copy()
        moved = np.array([np.inf] + [np.linalg.norm(p - q) for q in self.points])
        stride = STRIDES[turn] if turn < len(STRIDES) else 1
        self.slacks.least[:] = np.inf
        price(self.prompts, np.arange(turn % stride, self.rows.n, stride), p, moved, self.slacks)
        self.points.append(p)

    def _violated(self) -> tuple[Index, Float]:
        """The most violated rows that are not in the pool, and their slacks, the worst first."""
        floor = FLOOR * float(np.linalg.norm(self.points[-1]))
        example = np.flatnonzero(self.slacks.least[:, 0] < -floor)
        slack = self.slacks.least[example].ravel()
        names = (example[:, None] * self.rows.T + self.slacks.token[example]).ravel()
        new = (slack < -floor) & ~self.known[names]
        order = np.argsort(slack[new])[: ADDED * self.rows.d]
        return names[new][order], slack[new][order]

    def _add(self, names: Index) -> None:
        if self.state.sizes[COUNT] + len(names) > len(self.state.rows):
            self._purge()
        length = np.empty(len(names))
        append(self.prompts, 0, names, self.state, length)
        real = length > TINY  # a zero row is found, and named, when its example is measured
        self.names = np.append(self.names, names[real])
        self.length = np.append(self.length, length[real])
        self.known[names[real]] = True

    def _purge(self) -> None:
        """Keep the active rows and, of the others, those of least slack: half of the pool."""
        s = self.state
        count, q = int(s.sizes[COUNT]), int(s.sizes[ACTIVE])
        slack = s.rows[:count] @ s.p - s.bound[:count]
        slack[s.inside[:count] | s.equality[:count]] = -np.inf
        kept = np.sort(np.argsort(slack)[: max(q, len(s.rows) // 2)])
        active_set.keep(s, kept)
        self.known[self.names] = False
        self.names, self.length = self.names[kept], self.length[kept]
        self.known[self.names] = True

    def _answer(self, names: Index, weight: Float, separable: bool) -> Answer:
        multipliers = np.zeros(self.rows.active.shape)
        multipliers.flat[names] = weight
        W = self.state.p[:, None].copy() if separable else np.zeros((self.rows.d, 1))
        return Answer(W, multipliers, separable)


def independent_ties(rows: Constraints) -> Index:
    """Names i·T + t of tied rows that span all tied rows, at most d, by pivoted QR in bounded memory."""
    from scipy.linalg import qr

    example, token = np.divmod(np.flatnonzero(rows.tied), rows.T)
    kept = np.zeros(0, np.intp)
    chunk = 4 * rows.d
    for start in range(0, len(example), chunk):
        tried = np.append(kept, np.arange(start, min(start + chunk, len(example))))
        delta = rows.differences(example[tried], token[tried]) * rows.queries[example[tried]]
        length = active_set.lengths(delta)
        tried, delta = tried[length > TINY], delta[length > TINY] / length[length > TINY, None]
        if len(tried):
            R, pivot = qr(delta.T, mode="r", pivoting=True)
            kept = tried[pivot[: int((np.abs(np.diagonal(R)) > DEPENDENT).sum())]]
    return example[kept] * rows.T + token[kept]
