"""One loop for every norm: a pool of rows is solved, and the rows that its W violates join.

    pool → engine → W, λ → slacks of the other rows → add the most violated ones → …, until none is

Where the keys live matters to `Slacks` alone. Most rows are not read again: the slack of a row of length
one changes by no more than W has moved since it was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from attsvm.norms import Norm
from attsvm.numbers import Bool, Float, Index
from attsvm.numbers.threads import cores, in_threads
from attsvm.program import passes
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer, Found
from attsvm.program.rows import Rows, zero_row
from attsvm.progress import Line

SATISFIED = 1e-11
"""Shortfall of a row, relative to its bound, that needs no further round."""

FLOOR = 4e-16
"""Slack of a row of length one, relative to |W|, that passes for zero."""

ROUNDS = 300

ADDED = 8
"""Rows per unknown that join in a round."""

FEWEST = 50
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


def room(program: Constraints, each: int) -> int:
    """So many rows per unknown, but fewer where rows are long."""
    unknowns = min(program.d * program.e, program.n)
    share = min(1.0, max(1 / 8, MEMORY / (16 * unknowns * program.d)))
    return int(share * each * unknowns)


def first(program: Constraints, each: int) -> Bool:
    """A first choice of so many rows per unknown.

    Of vectors all rows of a few examples, evenly spaced, which expose a hopeless selection; of matrices,
    which have more room, a few rows of every example.
    """
    have, most = np.flatnonzero(program.separating.any(1)), room(program, each)
    if program.e > 1:
        return program.separating & (program.separating.cumsum(1) <= max(1, most // program.n))
    few = have[np.linspace(0, len(have) - 1, min(len(have), 1 + most // program.T)).astype(int)]
    chosen = np.zeros(program.active.shape, bool)
    chosen[few] = program.separating[few]
    return chosen


def solve_on_pools(
    program: Constraints,
    norm: Norm,
    engine: Engine,
    chosen: Bool,
    strides: Sequence[int] = (),
    most: int | None = None,
    exact: bool = False,
) -> Answer:
    """The answer over all rows of one run, from a first choice of them (n, T).

    strides: at first, while W is crude, only every so-many-th example is looked at.
    most: rows that may join in a round, where not ADDED per unknown.
    exact: the engine has more digits than float64. A row that is zero here may be none there and stays in the
    pool, and one joins however little it is violated.
    """
    most = max(room(program, ADDED), FEWEST) if most is None else most
    slacks, rows = Slacks(program, exact), Rows.of(program, chosen, zeros=exact)
    with Line() as line:
        return _rounds(slacks, norm, engine, rows, strides, most, line)


def _rounds(
    slacks: Slacks, norm: Norm, engine: Engine, rows: Rows, strides: Sequence[int], most: int, line: Line
) -> Answer:
    program = slacks.program
    chosen = rows.spread(np.ones(len(rows)), program.active.shape) > 0
    all_rows = np.count_nonzero(program.separating)
    for turn in range(ROUNDS):
        pool, found = rows, engine(rows)
        if not found.separable:
            break
        stride = strides[turn] if turn < len(strides) else 1
        others = all_rows > np.count_nonzero(~rows.tied)
        look = others and (found.final or slacks.cheap)
        new = slacks.worst(found.W, stride, turn, found.allowed).outside(chosen, most) if look else NONE
        line.show(f"pass {turn + 1}, pool of {len(rows):,} rows: {len(new):,} others violated")
        if found.final and stride == 1 and not len(new):
            if found.scaled:
                return rows.answer(found, program)
            return rows.at_margin_one(found, program, norm, 1.0 - SATISFIED if others else np.inf)
        if found.kept is not None:
            chosen[rows.example[~found.kept], rows.token[~found.kept]] = False
            rows = rows.some(found.kept)
        if len(new):
            chosen[new.example, new.token] = True
            order = np.argsort(new.example, kind="stable")
            more = Rows.named(program, new.example[order], new.token[order], zeros=slacks.exact)
            proof = zero_row(program, more, new.mask(chosen.shape)) if len(more) < len(new) else None
            if proof is not None:
                return proof
            rows = rows.joined(more)
    return pool.answer(replace(found, gap=0.0 if not found.separable else np.inf), program)


# ---------------------------------------------------------------------- the rows outside the pool


class Worst:
    """Violated rows: example, token, slack (k,), at length one."""

    def __init__(self, example: Index, token: Index, slack: Float) -> None:
        self.example, self.token, self.slack = example, token, slack

    def __len__(self) -> int:
        return len(self.slack)

    def outside(self, chosen: Bool, most: int) -> Worst:
        """Those that are not chosen yet, the worst first, not more than so many."""
        new = np.flatnonzero(~chosen[self.example, self.token])
        new = new[np.argsort(self.slack[new])[:most]]
        return Worst(self.example[new], self.token[new], self.slack[new])

    def mask(self, shape: tuple[int, ...]) -> Bool:
        """The same as a choice of rows (n, T)."""
        out = np.zeros(shape, bool)
        out[self.example, self.token] = True
        return out


NONE = Worst(np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros(0))


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
        # A look at rows that are stored elsewhere costs more than an engine's end.
        self.cheap = not program.stored
        if program.stored:
            self.length[:] = program.reach[:, None]

    def worst(self, W: Float, stride: int = 1, turn: int = 0, allowed: Float | None = None) -> Worst:
        """The two most violated rows of each example; allowed (n,): shortfalls that do not count."""
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
        return Worst(example.repeat(2)[bad], token[bad], slack[bad])

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
