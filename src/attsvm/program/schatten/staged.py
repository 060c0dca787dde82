"""The engine of semidefinite norms: a central path in stages, between which rows leave and join."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import block_diag

from attsvm.norms import Norm
from attsvm.numbers import Float
from attsvm.program import bounds
from attsvm.program.answer import Answer
from attsvm.program.rows import Candidate, Rows, Span
from attsvm.program.schatten import compiled_path
from attsvm.program.schatten.interior_point import Form, Iterate, advance, mean_product
from attsvm.program.schatten.nuclear import NuclearForm
from attsvm.program.schatten.spectral import SpectralForm
from attsvm.program.working_set import Stage

GAP_GOAL, GAP_ENOUGH = 4e-10, 5e-9
"""Relative gap at which the interior point stops, and above which a slower attempt follows."""

SMALL_POOL, NARROW_POOL = 150, 20
"""Pools of at most this many rows drop none: the choice would cost more than it saves. In a pool that spans
less than the space every row costs a dimension: there the limit is lower."""

LEAST = 0.1
"""The least bound, in units of the largest, to which the excess of a row is relative in a wide program."""

STAGES = ((1e-1, 0.2), (1e-2, 0.07), (1e-4, 0.015))
"""(gap, excess): once the gap is reached, only rows with a smaller excess stay, and violated ones join."""

MORE = 1.1
"""W moves this many times as far as needed towards the Frobenius solution."""

ROOM = 1.2
"""The start is this multiple of the Frobenius solution: every row has slack."""

Stages = tuple[tuple[float, float], ...]


@dataclass(frozen=True, eq=False)
class PathPoint:
    """A point of the path over some rows, in the coordinates of a span."""

    form: Form
    span: Span
    at: Iterate

    @property
    def W(self) -> Float:
        return self.span.expand(self.form.weight(self.at))


class StagedPath:
    """The central path over a pool, resumed when rows leave and join: an engine.

    From a point close to the optimum of a smaller pool the central path of a larger one is hard to reach:
    a pool that grows after the last stage is solved from the point after the first stage.
    first: the Frobenius solution at the required margins; stages: see STAGES.
    span: that of all rows, or None where each pool has its own; gpu: the library that holds keys on a GPU.
    """

    def __init__(self, norm: Norm, first: Answer, stages: Stages, span: Span | None, gpu: Any = None) -> None:
        self.norm, self.first, self.stages, self.span, self.gpu = norm, first, stages, span, gpu
        self.point: PathPoint | None = None
        self.early: PathPoint | None = None
        self.solved = 0

    def __call__(self, rows: Rows) -> Stage:
        first, self.solved = not self.solved, len(rows)
        compiled = self._compiled(rows) if first else None
        if compiled is not None and compiled.gap <= GAP_ENOUGH:
            return Stage(compiled)
        start = self._start(rows)
        pool = start.form.pool
        wide = self.span is None and pool.d < rows.d
        if len(rows) <= (NARROW_POOL if wide else SMALL_POOL):
            self.stages = ()
        goal, keep = self.stages[0] if self.stages else (GAP_GOAL, np.inf)

        def gap(at: Iterate) -> float:
            norm = self.measured_by(start.form, at)
            return bounds.gap(pool, norm, start.form.weight(at), at.multipliers)

        at = advance(start.form, start.at, gap, goal)
        if self.early and self.point is not self.early and gap(at) > goal:
            early = self._moved(self.early, rows, start.form, start.span)
            at = advance(start.form, early, gap, goal)
        if self.point and gap(at) > max(goal, GAP_ENOUGH):  # no path leads here from another pool
            at = advance(start.form, self._first(rows, start.form, start.span), gap, goal)
        point = replace(start, at=at)
        self.early = self.early or (point if self.stages else start)
        self.point = point if self.stages else self.early
        final, self.stages = not self.stages, self.stages[1:]
        W, multipliers = point.W, point.at.multipliers
        if final:
            return Stage(Candidate(W * (1 + GAP_GOAL), multipliers, gap(point.at)))
        retained = rows.margins(W) - rows.bound < keep * (np.maximum(rows.bound, LEAST) if wide else 1.0)
        # Rows that are nearly violated join too where they cost no dimension.
        candidate = Candidate(W if wide else W / (1 + keep), multipliers)
        return Stage(candidate, final=False, retained=retained | rows.tied)

    def _compiled(self, rows: Rows) -> Candidate | None:
        """The answer of the compiled path, if the pool is small and every row has a bound."""
        span = rows.span
        if not (rows.bound > 0).all() or not compiled_path.fits(len(rows), *span.shape, self.norm):
            return None
        start = span.reduce(self.first.W), rows.pick(self.first.multipliers) * rows.length
        W, multipliers, gap = compiled_path.solve_small(rows.within(span), self.norm, *start, GAP_GOAL)
        return Candidate(span.expand(W), multipliers, gap)

    def _start(self, rows: Rows) -> PathPoint:
        """The first point, near the Frobenius solution, or the previous point over these rows."""
        span = self.span or rows.span
        pool = rows.within(span)
        form = self.form_of(pool)
        at = self._moved(self.point, rows, form, span) if self.point else self._first(rows, form, span)
        return PathPoint(form, span, at)

    def form_of(self, pool: Rows) -> Form:
        """The semidefinite form of the norm over a pool."""
        return NuclearForm(pool, self.gpu) if self.norm.p == 1 else SpectralForm(pool)

    def measured_by(self, form: Form, at: Iterate) -> Norm:
        """The norm with which the gap of an iterate is measured."""
        return self.norm

    def _first(self, rows: Rows, form: Form, span: Span) -> Iterate:
        W = ROOM * self.first.W
        slack = np.maximum(rows.margins(W) - rows.bound, 0.1) * ~rows.tied
        return form.start(span.reduce(W), slack, rows.pick(self.first.multipliers) * rows.length)

    def _moved(self, point: PathPoint, rows: Rows, form: Form, span: Span) -> Iterate:
        """The same point over other rows in another span: new rows enter near the central path."""
        previous, at, mean = point.form.pool, point.at, mean_product(point.form, point.at)
        old = rows.pick(previous.spread(np.ones(len(previous)))) > 0
        margins = rows.margins(point.W)
        turn = block_diag(span.left.T @ point.span.left, span.right.T @ point.span.right)
        beyond = np.eye(len(turn)) - turn @ turn.T
        P, Q = turn @ at.P @ turn.T + mean * beyond, turn @ at.Q @ turn.T + beyond
        slack, multipliers = (rows.pick(previous.spread(x)) for x in (at.slack, at.multipliers))
        if isinstance(form, NuclearForm) and form.pool.d < rows.d:
            # Far from the path of a small pool: W moves towards the Frobenius solution until all rows have
            # slack, and λ shrinks until M is no longer than it was.
            new, plain = ~old, rows.margins(self.first.W) * ~rows.tied
            short = MORE * float(((rows.bound - margins)[new] / plain[new]).max(initial=0.0))
            P += short * form.lift(span.reduce(self.first.W))
            margins, slack = margins + short * plain, slack + short * plain
            products = float(np.vdot(P, Q)) + float(slack @ multipliers)
            mean = products / (len(P) + np.count_nonzero(old))
            multipliers = np.where(old, multipliers, mean / np.maximum(margins - rows.bound, 0.01))
            multipliers = form.inside(multipliers, Q[: form.pool.d, form.pool.d :])
            Q = form.pair(multipliers)
        fresh = np.maximum(margins - rows.bound, 0.01)
        slack = np.where(old, slack, fresh)
        multipliers = np.where(old | (multipliers != 0), multipliers, mean / fresh)
        return Iterate((P + P.T) / 2, (Q + Q.T) / 2, slack, multipliers)
