"""One loop for every norm: a pool of rows is solved, and the rows that its W violates join.

    pool → engine → W, λ → slacks of the other rows → add the most violated ones → …, until none is

Where the keys live matters to `Slacks` alone. Most rows are not read again: the slack of a row of length
one changes by no more than W has moved since it was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from attsvm.norms import Norm
from attsvm.numbers import Bool, Float, Index
from attsvm.numbers.threads import cores, in_threads
from attsvm.program import passes
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer, Found
from attsvm.program.passes import DEPENDENT
from attsvm.program.rows import Rows
from attsvm.progress import Line

SATISFIED = 1e-11
"""Shortfall of a row, relative to its bound, that needs no further round."""

FLOOR = 4e-16
"""Slack of a row of length one, relative to |W|, that passes for zero."""

ROUNDS = 300

ADDED = 8
"""Rows per unknown that join in a round."""

FEWEST_ADDED = 50
"""Rows that may be added in a round, however small the program."""

MEMORY = 1 << 22
"""Numbers in a pool up to which it may have as many rows as it likes (32 MB)."""

PART = 1 << 22
"""Numbers that are priced on one core."""

Engine = Callable[[Rows], Found]
"""A pool → what was found on it. An engine may remember the pool before, of which it has kept these rows;
it may hand out a W before it has ended (`final` is False), to learn which rows that W violates."""

Algorithm = Callable[[Rows], Found | None]
"""The same for one pool alone: None where nothing was found."""


def room(program: Constraints | Rows, each: int) -> int:
    """So many rows per unknown, but fewer where rows are long."""
    unknowns = min(program.d * program.e, program.n)
    share = min(1.0, max(1 / 8, MEMORY / (16 * unknowns * program.d)))
    return int(share * each * unknowns)


def few_of_each(program: Constraints, each: int) -> Bool:
    """A first choice of so many rows per unknown: the ties, and a few rows of every example."""
    most = max(1, room(program, each) // program.n)
    return program.tied | (program.separating & (program.separating.cumsum(1) <= most))


def some_examples(program: Constraints, each: int) -> Bool:
    """The same of vectors: all rows of a few examples, evenly spaced, which expose a hopeless selection."""
    have = np.flatnonzero(program.separating.any(1))
    count = min(len(have), 1 + room(program, each) // program.T)
    few = have[np.linspace(0, len(have) - 1, count).astype(int)]
    chosen = _independent_ties(program) if program.relaxed else np.zeros(program.active.shape, bool)
    chosen[few] |= program.separating[few]
    return chosen


def _independent_ties(program: Constraints) -> Bool:
    """Tied rows of vectors (n, T) that span all of them, at most d, by pivoted QR in bounded memory."""
    from scipy.linalg import qr

    example, token = np.nonzero(program.tied)
    kept = Rows.named(program, example[:0], token[:0])
    for start in range(0, len(example), 4 * program.d):
        part = slice(start, start + 4 * program.d)
        kept = kept.joined(Rows.named(program, example[part], token[part]))
        if len(kept):
            R, pivot = qr(kept.delta.T, mode="r", pivoting=True)
            kept = kept.some(pivot[: int((np.abs(np.diagonal(R)) > DEPENDENT).sum())])
    return kept.spread(np.ones(len(kept))) > 0


def solve_on_pools(
    program: Constraints,
    norm: Norm,
    engine: Engine,
    chosen: Bool,
    strides: Sequence[int] = (),
    most: int | None = None,
    exact: bool = False,
) -> Answer:
    """The answer over all rows of one run, from a first choice of them (n, T), which may be all.

    strides: at first, while W is crude, only every so-many-th example is looked at.
    most: rows that may join in a round, where not ADDED per unknown.
    exact: the engine has more digits than float64. A row that is zero here may be none there and stays in the
    pool, and one joins however little it is violated.
    """
    most = max(room(program, ADDED), FEWEST_ADDED) if most is None else most
    pool = Pool(program, exact)
    proof = pool.join(Names(*np.nonzero(chosen)))
    with Line() as line:
        for turn in range(ROUNDS):
            if proof is not None:
                return proof
            rows, found = pool.rows, engine(pool.rows)
            if not found.separable:
                return rows.answer(found)
            stride = strides[turn] if turn < len(strides) else 1
            new = pool.violated(found, stride, turn, most)
            line.show(f"pass {turn + 1}, pool of {len(rows):,} rows: {len(new.token):,} others violated")
            if found.final and stride == 1 and not len(new.token):
                if found.scaled:
                    return rows.answer(found)
                return rows.at_margin_one(found, norm, 1.0 - SATISFIED if pool.others else np.inf)
            pool.keep(found.kept)
            proof = pool.join(new) if len(new.token) else None
    return replace(rows.at_margin_one(found, norm), gap=np.inf)


# ---------------------------------------------------------------------- the rows inside


class Names(NamedTuple):
    """Rows of a program by name: example, token (k,), sorted by example."""

    example: Index
    token: Index


NONE = Names(np.zeros(0, np.intp), np.zeros(0, np.intp))


class Pool:
    """The rows inside, at length one and as a choice of all (n, T); what is outside is known by its slacks.

    exact: see `solve_on_pools`.
    """

    rows: Rows

    def __init__(self, program: Constraints, exact: bool) -> None:
        self.program, self.exact = program, exact
        self.inside = np.zeros(program.active.shape, bool)
        self.all = np.count_nonzero(program.separating)

    @cached_property
    def slacks(self) -> Slacks:
        """Of all rows, when one outside is first looked at."""
        return Slacks(self.program, self.exact)

    @property
    def others(self) -> bool:
        """Whether an inequality is outside."""
        return bool(self.all > np.count_nonzero(~self.rows.tied))

    def join(self, new: Names) -> Answer | None:
        """Take rows in. A zero row among them that asks for a margin is a contradiction of its own."""
        more = Rows.named(self.program, *new, zeros=self.exact)
        self.rows = self.rows.joined(more) if self.inside.any() else more
        self.inside[new] = True
        if len(more) < len(new.token):
            zero = self.inside & (self.program.bound > 0)
            zero[self.rows.example, self.rows.token] = False
            if zero.any():
                alone = (np.arange(zero.size) == zero.argmax()).reshape(zero.shape) * 1.0
                return Answer(np.zeros((self.rows.d, self.rows.e)), alone, False, gap=0.0)
        return None

    def keep(self, kept: Bool | None) -> None:
        """Let the other rows go; None: keep all."""
        if kept is not None:
            self.inside[self.rows.example[~kept], self.rows.token[~kept]] = False
            self.rows = self.rows.some(kept)

    def violated(self, found: Found, stride: int, turn: int, most: int) -> Names:
        """The rows outside that W violates most, so many at most; none where it is not worth a look."""
        # A look at rows that are stored elsewhere costs more than an engine's end.
        if not self.others or (self.program.stored and not found.final):
            return NONE
        (example, token), slack = self.slacks.worst(found.W, stride, turn, found.allowed)
        new = np.flatnonzero(~self.inside[example, token])
        new = np.sort(new[np.argsort(slack[new])[:most]])
        return Names(example[new], token[new])


# ---------------------------------------------------------------------- the rows outside


class Slacks:
    """What is known of all rows: by how much each kept its bound when it was measured last, at which W.

    slack (n, T): margin less bound, at length one; length (n, T): |x_a − x_t| |z|, ∞ before it is measured,
        or a bound on it; round (n, T): when; points: the W of each round.
    least, token (n, 2): the two least slacks of each example in this round, and their tokens.
    exact: any shortfall is one; otherwise a bound less SATISFIED, or less rounding, is kept.
    """

    def __init__(self, program: Constraints, exact: bool = False) -> None:
        self.program, self.exact, shape = program, exact, program.active.shape
        self.required, self.floor = (
            (program.required, 0.0) if exact else ((1 - SATISFIED) * program.required, FLOOR)
        )
        self.size = np.sqrt(np.einsum("ne,ne->n", program.queries, program.queries))
        self.slack, self.length = np.full(shape, -np.inf), np.full(shape, np.inf)
        self.round = np.zeros(shape, np.int16)
        self.least, self.token = np.empty((program.n, 2)), np.zeros((program.n, 2), np.int64)
        self.points: list[Float] = []
        self.zeros = np.zeros(program.n)
        if program.stored:
            self.length[:] = program.reach[:, None]

    def worst(
        self, W: Float, stride: int = 1, turn: int = 0, allowed: Float | None = None
    ) -> tuple[Names, Float]:
        """The two most violated rows of each example, and their slacks (k,) at length one.

        allowed (n,): shortfalls that do not count.
        """
        program = self.program
        moved = np.array([np.inf, *(np.linalg.norm(W - before) for before in self.points)])
        examples = np.arange(turn % stride, program.n, stride)
        self.least[:] = np.inf
        known = self.slack, self.length, self.round, self.least, self.token
        ease = self.zeros if allowed is None else allowed / np.where(program.reach > 0, program.reach, 1.0)
        allowed = self.zeros if allowed is None else allowed
        asked = program.separating, self.required, allowed, ease
        if program.stored:
            passes.doubt(examples, moved, asked, known)
            examples = np.flatnonzero(self.least[:, 0] < np.inf)
            passes.note(examples, len(moved), program.some_margins(W, examples), asked, known)
        else:
            self._price(W, examples, moved, asked, known)
        self.points.append(W.copy())
        floor = self.floor * float(np.linalg.norm(W))
        example = np.flatnonzero(self.least[:, 0] < -floor)
        slack, token = self.least[example].ravel(), self.token[example].ravel()
        bad = slack < -floor
        return Names(example.repeat(2)[bad], token[bad]), slack[bad]

    def _price(self, W, examples, moved, asked, known) -> None:  # type: ignore[no-untyped-def]
        """In memory: only the rows in doubt are read, on all cores where they are many."""
        program = self.program
        vector = program.e == 1
        y, factor = (W.T, program.queries[:, 0]) if vector else (program.queries @ W.T, np.ones(program.n))
        keys = program.flat_keys, np.ascontiguousarray(program.anchor)
        sizes = np.ascontiguousarray(y), factor, self.size

        def work(part: Index) -> None:
            passes.price(*keys, *sizes, part, moved, asked, known)

        parts = min(-(-len(examples) * program.T * program.d // PART), cores())
        if parts > 1:
            in_threads(work, np.array_split(examples, parts))
        else:
            work(examples)
