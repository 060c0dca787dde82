"""One loop for every norm: a pool of rows is solved, and the rows that its W violates join.

    pool → engine → W, λ → slacks of the other rows → add the most violated ones → …, until none is

Where the keys live matters to `Slacks` alone. Most rows are not read again: the slack of a row of length
one changes by no more than W has moved since it was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from attsvm._support.progress import ProgressLine
from attsvm.norms import Norm
from attsvm.numbers import Bool, Float, Index
from attsvm.numbers.compiled import compiled
from attsvm.numbers.threads import cores, in_threads
from attsvm.program.answer import Answer
from attsvm.program.constraints import DEPENDENT, TINY, Constraints
from attsvm.program.rows import Candidate, Rows

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

SHARE = 1 << 22
"""Numbers that are priced on one core."""

LARGEST_POOL = 48
"""Rows per unknown in a pool at most."""


@dataclass(frozen=True, eq=False)
class Stage:
    """What an engine hands to the loop: a candidate over the rows of the pool.

    final: False while the engine has not ended: it requests the rows that W violates.
    retained (k,): the rows that stay in the pool; None: all.
    allowed (n,): by how much examples may fall short, in the units of the program; None: by nothing.
    """

    candidate: Candidate
    final: bool = True
    retained: Bool | None = None
    allowed: Float | None = None


Engine = Callable[[Rows], Stage]
"""A pool → a candidate over its rows. An engine may remember the pool before, of which these rows stayed."""

Algorithm = Callable[[Rows], Candidate | None]
"""The same for one pool alone: None where there is no candidate."""


# ---------------------------------------------------------------------- the first pool


def room(program: Constraints | Rows, each: int, dense: bool = False) -> int:
    """`each` rows per unknown, but fewer where rows are long; dense: a row is stored as d·e numbers."""
    unknowns, length = min(program.d * program.e, program.n), program.d * (program.e if dense else 1)
    share = min(1.0, max(1 / 8, MEMORY / (16 * unknowns * length)))
    return int(share * each * unknowns)


def some_examples(program: Constraints, each: int, share: float = 0.0) -> Bool:
    """A first pool of so many rows per unknown (n, T): all rows of a few examples, evenly spaced, and ties.

    All rows of an example expose a hopeless selection. Ties that depend on others are omitted.
    share: the share of all examples that is selected at least.
    """
    candidates = np.flatnonzero(program.separating.any(1))
    count = 1 + max(room(program, each, dense=True) // program.T, int(share * len(candidates)))
    count = min(len(candidates), count)
    examples = candidates[np.linspace(0, len(candidates) - 1, count).astype(int)]
    pool = _independent_ties(program) if program.relaxed else np.zeros(program.active.shape, bool)
    pool[examples] |= program.separating[examples]
    return pool


def _independent_ties(program: Constraints) -> Bool:
    """Tied rows (n, T) that span all of them, at most d·e, by pivoted QR in bounded memory."""
    from scipy.linalg import qr

    example, token = np.nonzero(program.tied)
    basis, size = Rows.named(program, example[:0], token[:0]), 4 * program.d * program.e
    for start in range(0, len(example), size):
        new = Rows.named(program, example[start : start + size], token[start : start + size])
        basis = basis.joined(new)
        if len(basis):
            R, pivot = qr(basis.dense.T, mode="r", pivoting=True)
            basis = basis.some(np.sort(pivot[: int((np.abs(np.diagonal(R)) > DEPENDENT).sum())]))
    return basis.spread(np.ones(len(basis))) > 0


def hardest(program: Constraints, W: Float, count: int, most: int) -> Bool:
    """All rows up to `most` of them; else the ties, and so many with a bound, so many without (n, T).

    Selected are rows of least margin at W, relative to the bound. A margin of exactly zero is that of a zero
    row, which is not selected; other rows join when they are violated.
    """
    if np.count_nonzero(program.active) <= most:
        return program.active
    margins, bounded = program.margins(W), program.bound > 0
    order = margins / np.where(bounded, program.bound, 1.0)
    free = program.separating & ~bounded & (margins != 0)
    return program.tied | least(order, bounded, count) | least(order, free, count)


def least(values: Float, among: Bool, count: int) -> Bool:
    """Of some rows of a program (n, T) exactly `count` with the least values, however many are equal."""
    example, token = np.nonzero(among)
    if len(example) <= count:
        return among
    smallest = np.argpartition(values[example, token], count)[:count]
    subset = np.zeros(among.shape, bool)
    subset[example[smallest], token[smallest]] = True
    return subset


def nearest(rows: Rows, W: Float, needed: Bool, dense: bool = False) -> Bool | None:
    """Of a pool that is too large, the needed rows (k,) and others of least slack; else None."""
    most = room(rows, LARGEST_POOL, dense)
    if len(rows) <= most:
        return None
    slack = np.where(needed, -np.inf, rows.margins(W) - rows.bound)
    retained = np.zeros(len(rows), bool)
    retained[np.argsort(slack)[: max(most // 2, int(needed.sum()))]] = True
    return retained


# ---------------------------------------------------------------------- the loop


def solve_on_pools(
    program: Constraints,
    norm: Norm,
    engine: Engine,
    first: Bool,
    strides: Sequence[int] = (),
    most: int | None = None,
    exact: bool = False,
    scaled: bool = False,
) -> Answer:
    """The answer over all rows of one run, from a first pool of them (n, T), which may be all.

    strides: at first, while W is crude, only every so-many-th example is priced.
    most: rows that may join in a round, where not ADDED per unknown.
    exact: the engine has more digits than float64. A row that is zero here may be none there and stays in the
    pool, and one joins however little it is violated.
    scaled: the engine's W and λ are those of the program; else both are known up to positive factors, and λ
    belongs to rows at length one.
    """
    most = max(room(program, ADDED), FEWEST_ADDED) if most is None else most
    pool, new = Pool(program, exact), Names(*np.nonzero(first))
    with ProgressLine() as line:
        for turn in range(ROUNDS):
            proof = pool.join(new)
            if proof is not None:
                return proof
            rows, stage = pool.rows, engine(pool.rows)
            candidate = stage.candidate
            if not candidate.separable:
                return rows.answer(candidate)
            stride = strides[turn] if turn < len(strides) else 1
            new = pool.violated(stage, stride, turn, most)
            line.show(f"pass {turn + 1}, pool of {len(rows):,} rows: {len(new.token):,} others violated")
            if stage.final and stride == 1 and not len(new.token):
                if scaled:
                    return rows.answer_at_lengths(candidate)
                return rows.at_margin_one(candidate, norm, 1.0 - SATISFIED if pool.incomplete else np.inf)
            pool.keep(stage.retained)
    return replace(rows.at_margin_one(candidate, norm), gap=np.inf)


# ---------------------------------------------------------------------- the rows inside


class Names(NamedTuple):
    """Rows of a program by name: example, token (k,), sorted by example."""

    example: Index
    token: Index


NONE = Names(np.zeros(0, np.intp), np.zeros(0, np.intp))


class Pool:
    """The rows inside, at length one and as a subset of all (n, T); rows outside are known by their slacks.

    exact: see `solve_on_pools`.
    """

    rows: Rows

    def __init__(self, program: Constraints, exact: bool) -> None:
        self.program, self.exact = program, exact
        self.inside = np.zeros(program.active.shape, bool)
        self.count = np.count_nonzero(program.separating)

    @cached_property
    def slacks(self) -> Slacks:
        """Of all rows, when one outside is first priced."""
        return Slacks(self.program, self.exact)

    @property
    def incomplete(self) -> bool:
        """Whether an inequality is outside."""
        return bool(self.count > np.count_nonzero(~self.rows.tied))

    def join(self, names: Names) -> Answer | None:
        """Add rows. A zero row among them that requires a margin is a contradiction by itself."""
        new = Rows.named(self.program, *names, zeros=self.exact)
        self.rows = self.rows.joined(new) if self.inside.any() else new
        self.inside[names] = True
        if len(new) < len(names.token):
            zero = self.inside & (self.program.bound > 0)
            zero[self.rows.example, self.rows.token] = False
            if zero.any():
                multipliers = (np.arange(zero.size) == zero.argmax()).reshape(zero.shape) * 1.0
                return Answer(np.zeros((self.rows.d, self.rows.e)), multipliers, False, gap=0.0)
        return None

    def keep(self, retained: Bool | None) -> None:
        """Remove the other rows; None: keep all."""
        if retained is not None:
            self.inside[self.rows.example[~retained], self.rows.token[~retained]] = False
            self.rows = self.rows.some(retained)

    def violated(self, stage: Stage, stride: int, turn: int, most: int) -> Names:
        """The rows outside that W violates most, so many at most; none where pricing does not pay."""
        # A pass over rows that are stored elsewhere costs more than an engine's end.
        if not self.incomplete or (self.program.stored and not stage.final):
            return NONE
        (example, token), slack = self.slacks.worst(stage.candidate.W, stride, turn, stage.allowed)
        outside = np.flatnonzero(~self.inside[example, token])
        outside = np.sort(outside[np.argsort(slack[outside])[:most]])
        return Names(example[outside], token[outside])


# ---------------------------------------------------------------------- the rows outside


class Slacks:
    """The slack of each row when it was last measured, and the W of that round.

    slack (n, T): margin less bound, at length one; length (n, T): |x_a − x_t| |z|, ∞ before it is measured,
        or a bound on it; round (n, T): of the measurement; points: the W of each round.
    least, token (n, 2): the two least slacks of each example in this round, and their tokens.
    exact: any shortfall is a violation; else one below SATISFIED of the bound, or below rounding, is none.
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
        moved = np.array([np.inf, *(np.linalg.norm(W - point) for point in self.points)])
        examples = np.arange(turn % stride, program.n, stride)
        self.least[:] = np.inf
        measured = self.slack, self.length, self.round, self.least, self.token
        ease = self.zeros if allowed is None else allowed / np.where(program.reach > 0, program.reach, 1.0)
        allowed = self.zeros if allowed is None else allowed
        limits = program.separating, self.required, allowed, ease
        if program.stored:
            doubt(examples, moved, limits, measured)
            examples = np.flatnonzero(self.least[:, 0] < np.inf)
            note(examples, len(moved), program.some_margins(W, examples), limits, measured)
        else:
            self._price(W, examples, moved, limits, measured)
        self.points.append(W.copy())
        floor = self.floor * float(np.linalg.norm(W))
        example = np.flatnonzero(self.least[:, 0] < -floor)
        slack, token = self.least[example].ravel(), self.token[example].ravel()
        violated = slack < -floor
        return Names(example.repeat(2)[violated], token[violated]), slack[violated]

    def _price(self, W, examples, moved, limits, measured) -> None:  # type: ignore[no-untyped-def]
        """In memory: only the rows in doubt are read, on all cores where they are many."""
        program = self.program
        vector = program.e == 1
        y, factor = (W.T, program.queries[:, 0]) if vector else (program.queries @ W.T, np.ones(program.n))
        keys = program.flat_keys, np.ascontiguousarray(program.anchor)
        sizes = np.ascontiguousarray(y), factor, self.size

        def work(share: Index) -> None:
            price(*keys, *sizes, share, moved, limits, measured)

        shares = min(-(-len(examples) * program.T * program.d // SHARE), cores())
        if shares > 1:
            in_threads(work, np.array_split(examples, shares))
        else:
            work(examples)


# limits: separating (n, T), required, allowed, ease (n,); measured: slack, length, round, least and token of
# `Slacks`.


@compiled
def price(keys, anchor, directions, factor, size, examples, moved, limits, measured):  # type: ignore[no-untyped-def]
    """Measure the rows of the named examples (k,) that may be violated; the differences come first.

        slack_it = (factor_i δ_itᵀ y_i − required_i) / |z_i| ‖δ_it‖,   δ_it = x_a − x_t

    keys (n, T, d); directions (n, d), or (1, d) for all; moved (r,): the distance of W from the points of
    all rounds before. A slack changes by no more, so a row with a larger one holds and is not read. A
    zero row that requires a margin has slack −∞.
    """
    (separating, required, allowed, ease), (slack, length, turn, least, token) = limits, measured
    T, d = keys.shape[1:]
    shared = len(directions) == 1
    for i in examples:
        first, y, easy = keys[i, anchor[i]], directions[0 if shared else i], ease[i]
        bound = required[i]
        lowest, second = np.inf, np.inf
        for t in range(T):
            if slack[i, t] + easy >= moved[turn[i, t]] or not separating[i, t]:
                continue
            # One loop in one function: calls and views per token cost as much as the arithmetic.
            dot, key = 0.0, keys[i, t]
            for c in range(d):
                dot += (first[c] - key[c]) * y[c]
            span = length[i, t]
            if span == np.inf:
                square = 0.0
                for c in range(d):
                    square += (first[c] - key[c]) * (first[c] - key[c])
                span = length[i, t] = size[i] * np.sqrt(square)
            over = factor[i] * dot - bound
            slack[i, t], turn[i, t] = over / span if span > TINY else over, len(moved)
            over += allowed[i]
            short = over / span if span > TINY else (-np.inf if over < 0 else np.inf)
            if short < lowest:
                second, token[i, 1] = lowest, token[i, 0]
                lowest, token[i, 0] = short, t
            elif short < second:
                second, token[i, 1] = short, t
        least[i, 0], least[i, 1] = lowest, second


@compiled
def doubt(examples, moved, limits, measured):  # type: ignore[no-untyped-def]
    """Mark in least (n, 2), ∞ before, the named examples that have a row which may be violated."""
    (separating, _, _, ease), (slack, _, turn, least, _) = limits, measured
    for i in examples:
        for t in range(slack.shape[1]):
            if separating[i, t] and not slack[i, t] + ease[i] >= moved[turn[i, t]]:
                least[i, 0] = 0.0
                break


@compiled
def note(examples, rounds, margins, limits, measured):  # type: ignore[no-untyped-def]
    """What `price` writes, for examples (k,) with these margins (k, T); least is ∞ for the others."""
    (separating, required, allowed, _), (slack, length, turn, least, token) = limits, measured
    for place in range(len(examples)):
        i = examples[place]
        lowest, second = np.inf, np.inf
        for t in range(slack.shape[1]):
            if not separating[i, t]:
                continue
            span, over = length[i, t], margins[place, t] - required[i]
            slack[i, t], turn[i, t] = over / span if span > TINY else over, rounds
            over += allowed[i]
            short = over / span if span > TINY else (-np.inf if over < 0 else np.inf)
            if short < lowest:
                second, token[i, 1] = lowest, token[i, 0]
                lowest, token[i, 0] = short, t
            elif short < second:
                second, token[i, 1] = short, t
        least[i, 0], least[i, 1] = lowest, second
