"""Frobenius, the usual engine: proximal block pivoting with direct or conjugate-gradient solves.

Up to about ten rows per unknown; memory is linear in the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack, qr, solve_triangular

from attsvm.program.frobenius import contradiction
from attsvm.program.frobenius.unit_rows import Found, UnitRows
from attsvm.tokens import Bool, Float

DIRECT = 300
"""Passive rows up to which a Cholesky factor is faster than conjugate gradients."""

PROX = 1e-9
"""Weight of the proximal term: large enough to factor dependent rows, small against independent ones."""

CAP = 0.9
"""Passive rows per unknown: more of them would depend on each other."""

GROWTH = 0.5
"""How much the passive set may grow in one exchange at first, relative to what stays in it."""

STEPS = 250
"""Conjugate-gradient steps after which the rows are too dependent for this method."""

LARGEST_FACTOR = 4000
"""Passive rows up to which a Cholesky factor is the way out when conjugate gradients fail."""

ROUNDS, PATIENCE = 60, 12
"""Exchanges in all, and without a new least number of wrong rows."""

GOOD = 1e-11
"""Relative gap at which to stop."""

EXACT = 1e-13
"""Relative residual of the last solve."""


def start(unit: UnitRows) -> Bool:
    """A first passive set: the hardest fifth of each example for the weight Σ b_j â_j."""
    asks = unit.bound > 0
    margins = unit.margins(unit.combine(unit.bound))
    ratio = np.where(asks, margins / np.where(asks, unit.bound, 1.0), np.inf)
    room = int(CAP / 2 * unit.rows.d * unit.rows.e) // unit.rows.n
    hardest = max(1, min(unit.rows.T // 5, room))
    cut = np.partition(ratio, hardest - 1, axis=1)[:, hardest - 1 : hardest]
    return unit.free | (asks & (ratio <= cut))


def solve(unit: UnitRows, passive: Bool, lam: Float | None = None) -> Found | None:
    """Exchange the rows on the wrong side, until none is.

        (K_FF + ε) λ_F = b_F + ε λ_F,previous      wrong: λ_F < 0, or margin < b outside F

    lam: multipliers to start from. None when the exchanges do not settle: then another method is
    needed. When no weight exists λ grows without bound, and a proof is sought where it does.
    Reference: Júdice and Pires 1994; the matrix K = (Δ Δᵀ) ∘ (Z Zᵀ) is never formed beyond F.
    """
    tolerance = 1e-2 if lam is None else 1e-6
    lam = np.zeros(unit.live.shape) if lam is None else lam
    pace, reached = Pace(), None
    for _ in range(ROUNDS):
        lam, converged = _solve_passive(unit, passive, lam, tolerance)
        W = unit.combine(lam)
        if unit.steepness(lam, W) < contradiction.STEEP:
            return contradiction.ray(unit, lam) or reached
        if not converged:
            return reached
        short = unit.bound - unit.margins(W)
        wrong = _wrong(unit, passive, lam, short)
        count = int(wrong.sum())
        if count == 0 and (tolerance <= EXACT or passive.sum() <= DIRECT):
            state = Found(lam, W, unit.gap(lam, W))
            if state.gap <= GOOD:
                return state
            if reached is not None and state.gap > 0.1 * reached.gap:
                return _refined(unit, passive, min(state, reached, key=lambda found: found.gap))
            reached = state
        if not pace.goes_on(count):
            return reached
        tolerance = _tolerance(count, int(passive.sum()))
        most = pace.most(int((passive & ~wrong).sum()), unit.rows.d * unit.rows.e)
        passive = exchange(passive, wrong, short, most)
        lam = np.where(passive, np.where(unit.free, lam, np.maximum(lam, 0.0)), 0.0)
    return reached


@dataclass
class Pace:
    """How far the passive set may grow: less after every exchange that does not help.

    An unbounded exchange overshoots the final set, and beyond the number of unknowns when rows are
    many; with little growth the exchanges turn into single steps of a dual active set, which ends.
    """

    best: float = np.inf
    patience: int = PATIENCE
    growth: float = GROWTH

    def goes_on(self, wrong: int) -> bool:
        """Record the number of rows on the wrong side; False when patience is at its end."""
        if wrong < self.best:
            self.best, self.patience = wrong, PATIENCE
        elif wrong > 0:
            self.patience, self.growth = self.patience - 1, 0.7 * self.growth
        return self.patience >= 0

    def most(self, kept: int, unknowns: int) -> int:
        """Rows that the next passive set may have, where so many stay in it."""
        return min(int((1 + self.growth) * kept) + 3, int(CAP * unknowns))


def _wrong(unit: UnitRows, passive: Bool, lam: Float, short: Float) -> Bool:
    """Passive rows that pull the wrong way, and other rows that miss their bound."""
    rounding = EXACT * max(1.0, float(np.abs(lam).max()))
    return np.where(passive, (lam < 0) & ~unit.free, (short > rounding) & unit.live)


def exchange(passive: Bool, wrong: Bool, short: Float, most: int) -> Bool:
    """Let the wrong rows change sides; when too many would enter, only those that lack most."""
    kept, entering = passive & ~wrong, wrong & ~passive
    room = max(most - int(kept.sum()), 1)
    if entering.sum() > room:
        entering &= short >= np.partition(short[entering], -room)[-room]
    return kept | entering


def _tolerance(wrong: int, passive: int) -> float:
    """How exact the next solve must be: coarse while many rows are on the wrong side."""
    if wrong == 0:
        return EXACT
    return 1e-2 if wrong > 0.2 * passive else 1e-4 if wrong > 0.02 * passive else 1e-8


def _solve_passive(unit: UnitRows, passive: Bool, lam: Float, tolerance: float) -> tuple[Float, bool]:
    """λ with (K_FF + ε) λ_F = b_F + ε λ_F,previous, and whether it converged."""
    count = int(passive.sum())
    if count > DIRECT:
        out, converged = _Compressed(unit, passive).conjugate_gradients(lam, tolerance)
        if converged or count > LARGEST_FACTOR:
            return out, converged
    return _direct(unit, passive, lam)


# ---------------------------------------------------------------------- direct


def _direct(unit: UnitRows, passive: Bool, lam: Float) -> tuple[Float, bool]:
    """λ by a Cholesky factor, and whether there is one."""
    example, token = np.nonzero(passive)
    delta, queries = unit.named(example, token)
    x = proximal((delta @ delta.T) * (queries @ queries.T), unit.bound[passive], lam[passive])
    if x is None:
        return lam, False
    out = np.zeros(passive.shape)
    out[passive] = x
    return out, True


def proximal(K: Float, bound: Float, x: Float) -> Float | None:
    """x with K x = b by a Cholesky factor of K + ε, from the x given; None where there is no factor.

    Three proximal steps with one factor: the last ones only refine.
    """
    factor = K.copy()
    factor.flat[:: len(K) + 1] += PROX
    factor, info = lapack.dpotrf(factor.T, lower=0, overwrite_a=1, clean=0)
    if info != 0:
        return None
    for _ in range(3):
        x = x + lapack.dpotrs(factor, bound - K @ x, lower=0)[0]
    return x


def _refined(unit: UnitRows, passive: Bool, state: Found) -> Found:
    """The same active rows by a QR factor, where the Gram matrix has lost too many digits."""
    if passive.sum() * state.W.size > contradiction.DENSE:
        return state
    Q, R = qr(unit.features(*np.nonzero(passive)).T, mode="economic", check_finite=False)
    size = np.abs(np.diagonal(R))
    if size.min() <= 1e-14 * size.max():
        return state
    y = solve_triangular(R, unit.bound[passive], trans=1)
    W, lam = (Q @ y).reshape(state.W.shape), np.zeros(passive.shape)
    lam[passive] = solve_triangular(R, y)
    better = Found(lam, W, unit.gap(lam, W))
    return better if better.gap < state.gap else state


# ---------------------------------------------------------------------- conjugate gradients


class _Compressed:
    """The passive rows, packed to the largest number k that one example has: arrays (n, k, …)."""

    def __init__(self, unit: UnitRows, passive: Bool) -> None:
        self.unit = unit
        k = int(passive.sum(1).max())
        self.token = np.argsort(~passive, axis=1, kind="stable")[:, :k]
        self.used = np.take_along_axis(passive, self.token, 1)
        example = np.arange(unit.rows.n)[:, None]
        self.delta, _ = unit.named(np.broadcast_to(example, self.token.shape), self.token)
        self.delta *= self.used[..., None]
        self.across = np.ascontiguousarray(self.delta.transpose(0, 2, 1))

    @cached_property
    def blocks(self) -> Float:
        """Inverses of the examples' own Gram matrices Δ_i Δ_iᵀ + ε: the preconditioner."""
        gram = self.delta @ self.across
        diagonal = np.arange(gram.shape[-1])
        gram[:, diagonal, diagonal] += np.where(self.used, 1e-6, 1.0)
        return np.linalg.inv(gram)

    def product(self, x: Float) -> Float:
        """(K_FF + ε) x without K: gather by example, mix through the queries, spread."""
        z = self.unit.queries
        sums = np.matmul(x[:, None, :], self.delta)[:, 0]
        mixed = z @ (z.T @ sums)
        return np.asarray(np.matmul(self.delta, mixed[..., None])[..., 0] + PROX * x)

    def conjugate_gradients(self, lam: Float, tolerance: float) -> tuple[Float, bool]:
        """Solve (K_FF + ε) x = b_F + ε λ_F from x = λ_F; the residual is relative to the right side."""
        x = np.take_along_axis(lam, self.token, 1) * self.used
        right = np.take_along_axis(self.unit.bound, self.token, 1) * self.used + PROX * x
        # Margins count relative to their own bound, and bounds may differ by many orders.
        smallest = float(right[right > 0].min(initial=1.0))
        goal = tolerance * min(float(np.linalg.norm(right)), smallest * np.sqrt(right.size))
        residual = right - self.product(x)
        direction, previous = np.zeros_like(x), 1.0
        for _ in range(STEPS):
            if np.linalg.norm(residual) <= goal:
                break
            better = np.matmul(self.blocks, residual[..., None])[..., 0]
            power = float(np.vdot(residual, better))
            direction = better + (power / previous) * direction if direction.any() else better
            image = self.product(direction)
            step = power / float(np.vdot(direction, image))
            x = x + step * direction
            residual = residual - step * image
            previous = power
        out = np.zeros(lam.shape)
        np.put_along_axis(out, self.token, x * self.used, 1)
        return out, bool(np.linalg.norm(residual) <= goal)
