"""Frobenius pools that follow one another: every engine begins where the pool before has ended."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.frobenius import active_set, pivoting
from attsvm.program.frobenius.active_set import COUNT, SOLVED, TINY, lengths
from attsvm.program.frobenius.pivoting import ROUNDS, Pace, exchange
from attsvm.program.frobenius.prompt import at_margin_one
from attsvm.program.frobenius.unit_rows import UnitRows
from attsvm.program.threads import single_thread
from attsvm.tokens import Bool, Float

FEW = 1000
"""Dimensions of vectors up to which exchanging one row at a time is faster than many."""

ENOUGH = 1e-10
"""Relative gap above which block pivoting has not found the answer."""

MOST = 16_000
"""Rows whose Gram matrix is kept (2 GB)."""

SETTLED = 1e-12
"""Shortfall of a row, relative to the largest bound of a row of length one, that is rounding."""

HELD = 1e-9
"""Shortfall of a passive row, relative likewise, above which its equation has no solution."""

FIRST = 0.2
"""Share of the rows in the first passive set: those that the weight Σ b_j â_j serves least."""


Engine = Callable[[Constraints, NDArray[np.intp]], Answer | None]
"""Rows of a pool and their names (k,), the same in every pool → the answer; None: it must be found afresh."""


def engines(rows: Constraints) -> list[Engine]:
    """What suits pools of these rows, the fastest first."""
    if rows.e > 1:
        return [PivotedMatrices()]
    steady = ActiveSet(rows.d)
    return [steady] if rows.d <= FEW else [PivotedVectors(rows.d, rows.e), steady]


class PivotedMatrices:
    """Block pivoting from the multipliers of the pool before."""

    def __init__(self) -> None:
        self.names: NDArray[np.intp] = np.zeros(0, np.intp)
        self.lam: Float = np.zeros(0)

    def __call__(self, rows: Constraints, names: NDArray[np.intp]) -> Answer | None:
        with single_thread():
            unit, at = UnitRows(rows), np.nonzero(rows.active)
            lam = np.zeros(rows.active.shape)
            if len(self.names):
                place = np.searchsorted(self.names, names).clip(max=len(self.names) - 1)
                lam[at] = np.where(self.names[place] == names, self.lam[place], 0.0) * unit.length[at]
            W = unit.combine(lam)
            square = float(np.vdot(W, W))
            if square > 0:  # the multipliers are known up to a factor
                lam *= float((lam * unit.bound).sum()) / square
                found = pivoting.solve(unit, (lam > 0) | unit.free, lam)
            else:
                found = pivoting.solve(unit, pivoting.start(unit))
        if found is None or found.proof or found.gap > ENOUGH:
            return None
        multipliers = found.lam / unit.length
        order = np.argsort(names)
        self.names, self.lam = names[order], multipliers[at][order]
        return Answer(found.W, multipliers, gap=found.gap)


class ActiveSet:
    """The dual active set of pools that follow one another: rows that stay keep their place in its factor."""

    def __init__(self, d: int) -> None:
        self.d = d
        self._restart()

    def _restart(self) -> None:
        self.state = active_set.empty(0, self.d)
        self.names: NDArray[np.intp] = np.zeros(0, np.intp)
        self.length: Float = np.zeros(0)

    def __call__(self, rows: Constraints, names: NDArray[np.intp]) -> Answer | None:
        """The answer of a pool, or None where it must be solved afresh.

        names (k,): of its active rows in their order; a row has the same name in every pool.
        """
        example, token = np.nonzero(rows.active)
        stay = np.isin(self.names, names)
        new = ~np.isin(names, self.names)
        A = rows.differences(example[new], token[new]) * rows.queries[example[new]]
        length = lengths(A)
        if rows.relaxed or rows.exponent.any() or rows.unit.any() or (length <= TINY).any():
            self._restart()
            return None
        if not stay.all():
            active_set.keep(self.state, np.flatnonzero(stay))
        self._grow(len(length))
        active_set.fill(self.state, A, rows.bound[example[new], token[new]], np.zeros(len(A), bool), length)
        self.names = np.append(self.names[stay], names[new])
        self.length = np.append(self.length[stay], length)
        if active_set.advance(self.state) != SOLVED:
            self._restart()
            return None
        index, weight = active_set.active(self.state)
        order = np.argsort(names)
        place = order[np.searchsorted(names, self.names[index], sorter=order)]
        multipliers = np.zeros(rows.active.shape)
        multipliers[example[place], token[place]] = weight / self.length[index]
        s, count = self.state, len(self.names)
        least = float((s.rows[:count] @ s.p / s.bound[:count]).min())
        M = weight @ s.rows[index]
        answer = Answer(s.p[:, None].copy(), multipliers)
        return at_margin_one(answer, least, float(np.linalg.norm(M)), float(weight @ s.bound[index]))

    def _grow(self, more: int) -> None:
        """Room for more rows."""
        s, count = self.state, int(self.state.sizes[COUNT])
        if count + more <= len(s.rows):
            return
        room = active_set.empty(2 * (count + more), self.d)
        larger = {name: getattr(room, name) for name in ("rows", "bound", "equality", "inside", "reach")}
        for name, array in larger.items():
            array[:count] = getattr(s, name)[:count]
        self.state = s._replace(**larger)


class PivotedVectors:
    """Rows â_j = δ_j z_jᵀ of length one; a pool inherits the Gram matrix and multipliers of the one before.

        (K_FF + ε) λ_F = b_F + ε λ_F,previous      K = (Δ Δᵀ) ∘ (Z Zᵀ)

    delta (k, d), query (k, e), bound and lam (k,); names (k,): a row has the same name in every pool.
    """

    def __init__(self, d: int, e: int) -> None:
        self.names: NDArray[np.intp] = np.zeros(0, np.intp)
        self.delta, self.query = np.zeros((0, d)), np.zeros((0, e))
        self.length, self.bound = np.zeros(0), np.zeros(0)
        self.lam: Float = np.zeros(0)
        self.K = np.zeros((0, 0))

    def __call__(self, rows: Constraints, names: NDArray[np.intp]) -> Answer | None:
        """The answer of a pool, or None where another algorithm must find it."""
        example, token = np.nonzero(rows.active)
        if rows.relaxed or rows.exponent.any() or rows.unit.any() or len(names) > MOST:
            return None
        new = ~np.isin(names, self.names)
        at = example[new], token[new]
        delta, query = rows.differences(*at), rows.queries[at[0]]
        size, reach = lengths(delta), lengths(query)
        if (size * reach <= TINY).any():  # a zero row that asks for a margin
            return None
        fresh = not self.lam.any()
        self._update(np.isin(self.names, names), names[new], delta / size[:, None], query / reach[:, None])
        self.length = np.append(self.length, size * reach)
        self.bound = np.append(self.bound, rows.bound[at] / (size * reach))
        passive = self._first() if fresh else self.lam > 0
        lam = self._solve(passive)
        if lam is None:
            return None
        self.lam = lam
        order = np.argsort(names)
        place = order[np.searchsorted(names, self.names, sorter=order)]
        multipliers = np.zeros(rows.active.shape)
        multipliers[example[place], token[place]] = lam / self.length
        used = lam > 0
        return Answer((lam[used, None] * self.delta[used]).T @ self.query[used], multipliers)

    def _update(self, stay: Bool, names: NDArray[np.intp], delta: Float, query: Float) -> None:
        """Let rows go, and others join."""
        kept = np.flatnonzero(stay)
        self.delta, self.query = self.delta[kept], self.query[kept]
        self.length, self.bound, lam = self.length[kept], self.bound[kept], self.lam[kept]
        across = (self.delta @ delta.T) * (self.query @ query.T)
        own = (delta @ delta.T) * (query @ query.T)
        self.K = np.block([[self.K[np.ix_(kept, kept)], across], [across.T, own]])
        self.delta, self.query = np.concatenate([self.delta, delta]), np.concatenate([self.query, query])
        self.names = np.append(self.names[kept], names)
        self.lam = np.append(lam, np.zeros(len(names)))

    def _first(self) -> Bool:
        ratio = self.K @ self.bound / self.bound
        return ratio <= np.partition(ratio, int(FIRST * len(ratio)))[int(FIRST * len(ratio))]

    def _solve(self, passive: Bool) -> Float | None:
        """Exchange the rows on the wrong side, until none is; None where that does not settle."""
        pace, unknowns = Pace(), self.delta.shape[1] * self.query.shape[1]
        lam: Float = self.lam
        rounding = SETTLED * float(self.bound.max())
        for _ in range(ROUNDS):
            F = np.flatnonzero(passive)
            found = pivoting.proximal(self.K[np.ix_(F, F)], self.bound[F], lam[F])
            if found is None:
                return None
            lam = np.zeros(len(lam))
            lam[F] = found
            short = self.bound - self.K @ lam
            wrong = np.where(passive, lam < 0, short > rounding)
            if not wrong.any():
                # Passive rows that no λ brings to their bounds contradict each other.
                return lam if float(short.max()) <= HELD * float(self.bound.max()) else None
            if not pace.goes_on(int(wrong.sum())):
                return None
            passive = exchange(passive, wrong, short, pace.most(int((passive & ~wrong).sum()), unknowns))
            lam = np.where(passive, np.maximum(lam, 0.0), 0.0)
        return None
