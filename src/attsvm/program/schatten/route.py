"""Nuclear and spectral programs: the compiled path where small, else an interior point whose pool changes."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from attsvm.norms import Norm
from attsvm.numbers import Bool, Float
from attsvm.numbers.threads import single_thread
from attsvm.program import bounds, working_set
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer, Found
from attsvm.program.frobenius.route import solve_frobenius
from attsvm.program.passes import TINY
from attsvm.program.rows import Rows, least
from attsvm.program.runs import one_by_one
from attsvm.program.schatten import small
from attsvm.program.schatten.interior_point import Form, Iterate, advance, mean_product
from attsvm.program.schatten.nuclear import NuclearForm
from attsvm.program.schatten.spectral import SpectralForm
from attsvm.program.span import Span, basis

GAP_GOAL, GAP_ENOUGH = 4e-10, 5e-9
"""Relative gap at which the interior point stops, and above which a more careful attempt follows."""

SMALL_POOL, NARROW_POOL = 150, 20
"""Pools of at most this many rows stay as they are: choosing would cost more than it saves. A pool that
spans less than the space pays for every row with a dimension: it chooses even among few."""

SHARE, LEAST = 0.9, 0.1
"""Part of the Frobenius multipliers in a first pool that spans less than the space; the least bound, in
units of the largest, to which the excess of its rows is relative."""

STAGES = ((1e-1, 0.2), (1e-2, 0.07), (1e-4, 0.015))
"""(gap, excess): once the gap is reached, only rows with a smaller excess stay, and violated ones join."""

ATTEMPTS = (1.5, 4.0, 16.0)
"""Rows of the first pool in units of the Frobenius support; later attempts do not drop rows."""

MORE = 1.1
"""By how much more than needed W moves towards the Frobenius solution."""

ROOM = 1.2
"""The start is this multiple of the Frobenius solution: every row has slack."""

MANY_KEYS = 1 << 22
"""Numbers in the keys from which BLAS may use all cores."""

Stages = tuple[tuple[float, float], ...]


@one_by_one
def solve_schatten(program: Constraints, norm: Norm) -> Answer:
    """Start at the Frobenius solution, follow the central path, and keep only the rows that matter.

    Feasibility does not depend on the norm: without a Frobenius solution its proof is the answer.
    """
    with nullcontext() if program.keys.size > MANY_KEYS else single_thread():
        first = solve_frobenius(program)
        if not (first.separable and first.W.any()):
            return first
        size = _sizes(program)
        candidates = program.active & (size > TINY)
        size = np.where(candidates, size, 1.0)
        # In this unit of W no row of length one has a bound larger than one, whatever the data.
        unit = float((program.bound / size).max())
        program = program.asking(program.required / unit)
        answer = _best(program, norm, _at_margin_one(program, first), candidates, size)
        return replace(answer, W=answer.W * unit)


def _best(program: Constraints, norm: Norm, first: Answer, candidates: Bool, size: Float) -> Answer:
    best = _compiled(program, norm, first, candidates)
    if best.gap <= GAP_ENOUGH:
        return best
    excess = (program.margins(first.W) - program.bound) / size
    whole = None if norm.p == 1 else Span.of(program)
    for growth in ATTEMPTS:
        count = int(growth * max(SMALL_POOL / ATTEMPTS[0], first.carriers))
        chosen = least(excess, candidates & ~program.tied, count)
        if norm.p == 1 and growth == ATTEMPTS[0]:
            heavy = _heaviest(program, first)
            chosen = heavy if np.count_nonzero(heavy) < program.d else chosen
        chosen = candidates & (program.tied | chosen)
        stages = STAGES if growth == ATTEMPTS[0] else ()
        engine = Path(norm, first, stages, whole, program.library)
        answer = working_set.solve_on_pools(program, norm, engine, chosen)
        best = min(answer, best, key=lambda answer: answer.gap)
        if best.gap <= GAP_ENOUGH or engine.solved == np.count_nonzero(candidates):
            break
    return best


def _compiled(program: Constraints, norm: Norm, first: Answer, candidates: Bool) -> Answer:
    """The answer of the compiled path, if the program is small and all rows are alike."""
    bound = program.bound[candidates]
    span = Span.of(program)
    if not (bound > 0).all() or not small.fits(len(bound), *span.shape, norm):
        return first
    rows = Rows.of(program, candidates, span)
    start = span.reduce(first.W), rows.pick(first.multipliers) * rows.length
    W, multipliers, gap = small.solve_small(rows, norm, *start, GAP_GOAL)
    return rows.answer(Found(span.expand(W), multipliers, gap), program) if gap < 1 else first


@dataclass(frozen=True, eq=False)
class Point:
    """A point of the path over some rows, in the coordinates of a span."""

    form: Form
    span: Span
    at: Iterate

    @property
    def W(self) -> Float:
        return self.span.expand(self.form.weight(self.at))


class Path:
    """The central path over a pool in its own span, resumed when rows leave and join: an engine.

    From a point close to the optimum of a smaller pool the central path of a larger one is hardly
    reached any more: what joins after the last stage is solved from the point after the first.
    """

    def __init__(self, norm: Norm, first: Answer, stages: Stages, span: Span | None, gpu: Any = None) -> None:
        self.norm, self.first, self.stages, self.span, self.gpu = norm, first, stages, span, gpu
        self.point: Point | None = None
        self.early: Point | None = None
        self.solved = 0

    def __call__(self, rows: Rows) -> Found:
        start = self._start(rows)
        pool = start.form.pool
        self.solved = len(rows)
        wide = self.span is None and pool.d < rows.d
        if len(rows) <= (NARROW_POOL if wide else SMALL_POOL):
            self.stages = ()
        goal, keep = self.stages[0] if self.stages else (GAP_GOAL, np.inf)

        def gap(at: Iterate) -> float:
            return bounds.gap(pool, self.norm, start.form.weight(at), at.multipliers)

        at = advance(start.form, start.at, gap, goal)
        if self.early and self.point is not self.early and gap(at) > goal:
            again = self._moved(self.early, rows, start.form, start.span)
            at = advance(start.form, again, gap, goal)
        if self.point and gap(at) > max(goal, GAP_ENOUGH):  # no path leads here from another pool
            at = advance(start.form, self._first(rows, start.form, start.span), gap, goal)
        point = replace(start, at=at)
        self.early = self.early or (point if self.stages else start)
        self.point = point if self.stages else self.early
        final, self.stages = not self.stages, self.stages[1:]
        W, multipliers = point.W, point.at.multipliers
        if final:
            return Found(W * (1 + GAP_GOAL), multipliers, gap(point.at))
        kept = rows.margins(W) - rows.bound < keep * (np.maximum(rows.bound, LEAST) if wide else 1.0)
        # Rows that are nearly violated join too where they cost no dimension.
        return Found(W if wide else W / (1 + keep), multipliers, final=False, kept=kept | rows.tied)

    def _start(self, rows: Rows) -> Point:
        """The first point, near the Frobenius solution, or the one before over other rows."""
        span = self.span or Span(basis(rows.delta), basis(rows.queries))
        pool = rows.within(span)
        form: Form = NuclearForm(pool, self.gpu) if self.norm.p == 1 else SpectralForm(pool)
        at = self._moved(self.point, rows, form, span) if self.point else self._first(rows, form, span)
        return Point(form, span, at)

    def _first(self, rows: Rows, form: Form, span: Span) -> Iterate:
        W = ROOM * self.first.W
        slack = np.maximum(rows.margins(W) - rows.bound, 0.1) * ~rows.tied
        return form.start(span.reduce(W), slack, rows.pick(self.first.multipliers) * rows.length)

    def _moved(self, point: Point, rows: Rows, form: Form, span: Span) -> Iterate:
        """The same point over other rows in another span: what is new enters near the central path."""
        before, at, mean = point.form.pool, point.at, mean_product(point.form, point.at)
        shape = self.first.multipliers.shape
        known = rows.pick(before.spread(np.ones(len(before)), shape)) > 0
        margins = rows.margins(point.W)
        turn = block_diag(span.left.T @ point.span.left, span.right.T @ point.span.right)
        beyond = np.eye(len(turn)) - turn @ turn.T
        P, Q = turn @ at.P @ turn.T + mean * beyond, turn @ at.Q @ turn.T + beyond
        slack, multipliers = (rows.pick(before.spread(x, shape)) for x in (at.slack, at.multipliers))
        if isinstance(form, NuclearForm) and form.pool.d < rows.d:
            # Far from the path of a small pool: W moves towards the Frobenius solution until all rows have
            # slack, and λ shrinks until M is no longer than it was.
            new, plain = ~known, rows.margins(self.first.W) * ~rows.tied
            short = MORE * float(((rows.bound - margins)[new] / plain[new]).max(initial=0.0))
            P += short * form.lift(span.reduce(self.first.W))
            margins, slack = margins + short * plain, slack + short * plain
            products = float(np.vdot(P, Q)) + float(slack @ multipliers)
            mean = products / (len(P) + np.count_nonzero(known))
            multipliers = np.where(known, multipliers, mean / np.maximum(margins - rows.bound, 0.01))
            multipliers = form.inside(multipliers, Q[: form.pool.d, form.pool.d :])
            Q = form.pair(multipliers)
        fresh = np.maximum(margins - rows.bound, 0.01)
        slack = np.where(known, slack, fresh)
        multipliers = np.where(known | (multipliers != 0), multipliers, mean / fresh)
        return Iterate((P + P.T) / 2, (Q + Q.T) / 2, slack, multipliers)


def _heaviest(program: Constraints, first: Answer) -> Bool:
    """The rows (n, T) with the largest multipliers of the Frobenius solution: SHARE of its value."""
    part = np.maximum(first.multipliers, 0.0) * program.bound
    falling = np.sort(part, axis=None)[::-1]
    count = int(np.searchsorted(np.cumsum(falling), SHARE * falling.sum()))
    return np.asarray(part >= falling[count])


def _at_margin_one(program: Constraints, answer: Answer) -> Answer:
    """The Frobenius solution with the required margins; where rounding leaves none, its norm is one."""
    least = bounds.least_margin(program, program.margins(answer.W))
    size = least if least > 0 else np.linalg.norm(answer.W)
    return Answer(answer.W / size, answer.multipliers)


def _sizes(program: Constraints) -> Float:
    """Norms |δ| |z| of the rows (n, T): zero for a token equal to the anchor, or a zero query."""
    out = np.empty(program.active.shape)
    for part, delta in program.chunks():
        out[part] = np.linalg.norm(delta, axis=-1)
    return out * np.linalg.norm(program.queries, axis=-1)[:, None]
