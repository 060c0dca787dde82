"""Nuclear and spectral programs by a primal-dual interior point: 7 to 14 steps; the general path: 60 to 90.

Both norms are semidefinite programs over one pair of matrices, P that holds W and Q that holds the
combined rows M = Σ λ_j A_j, so one predictor-corrector with the Nesterov–Todd direction serves both;
a norm brings its start and its Newton system only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from scipy.linalg.lapack import dgesdd, dpotrf, dsyevd
from scipy.sparse.linalg import ArpackError, eigsh

from attsvm.numbers import Bool, Float
from attsvm.numbers.linear import Cholesky
from attsvm.program.rows import Rows

CORRECTORS = 3
"""Second-order corrections tried per factorisation: each costs one solve and saves iterations."""

FIRST = 0.1
"""Share of the way to its target that the first step is expected to leave out."""

SHORT = 0.1
"""Step length below which the first-order step competes with its corrections."""

ROUNDING = 1e-11
"""Residual of a linear system above which its solutions are refined: it stays as infeasibility."""

LIMIT, PATIENCE, FALL = 100, 3, 0.95
"""Iterations in all, and iterations in which the gap hardly falls, before the path is left."""


FAR = 5
"""Multiple of the goal above which the gap is not computed."""

WIDE, NEAR = 400, 1e-2
"""Width from which the least eigenvalue is found by Lanczos steps, and how well."""


@dataclass(frozen=True, eq=False)
class Iterate:
    """P, Q (d+e, d+e) positive definite; slack, multipliers (w,): positive, but 0 and free where tied."""

    P: Float
    Q: Float
    slack: Float
    multipliers: Float

    def moved(self, step: Iterate, primal: float, dual: float) -> Iterate:
        return Iterate(
            self.P + primal * step.P,
            self.Q + dual * step.Q,
            self.slack + primal * step.slack,
            self.multipliers + dual * step.multipliers,
        )

    @property
    def products(self) -> float:
        """⟨P, Q⟩ + sᵀλ: the complementarity that falls to zero."""
        return float(np.vdot(self.P, self.Q) + self.slack @ self.multipliers)


@dataclass(frozen=True, eq=False)
class Step:
    """A Newton step with its matrices in scaled coordinates, where P̂ + Q̂ is the aim.

    unknowns: of the norm's linear system, from which `Newton.unscaled` restores the step.
    """

    P: Float
    Q: Float
    slack: Float
    multipliers: Float
    unknowns: Float


class Newton(Protocol):
    """The factored Newton system of one norm at one iterate."""

    def step(self, aim: Float, products: Float) -> Step:
        """The step with P̂ + Q̂ = aim (d+e, d+e) and s dλ + λ ds = products (w,)."""
        ...

    def unscaled(self, step: Step) -> Iterate: ...


class Form(Protocol):
    """A norm's semidefinite form over a pool."""

    @property
    def pool(self) -> Rows: ...
    def weight(self, at: Iterate) -> Float: ...
    def start(self, W: Float, slack: Float, multipliers: Float) -> Iterate:
        """A point near a weight and multipliers."""
        ...

    def shifted(self, at: Iterate, change: Float) -> Iterate:
        """The point whose weight is larger by a small change (d, e)."""
        ...

    def newton(self, at: Iterate, scaling: Scaling) -> Newton: ...


def advance(form: Form, at: Iterate, gap: Callable[[Iterate], float], goal: float) -> Iterate:
    """Follow the central path until the gap is below the goal, or falls no more; return the best."""
    best, least, since, share = at, np.inf, 0, FIRST
    for _ in range(LIMIT):
        try:
            at, share = _iterate(form, at, share)
            # Far from the goal the complementarity serves as the gap: it costs nothing.
            end, reached = at, at.products / abs(float(at.multipliers @ form.pool.bound))
            if reached <= FAR * goal:
                end, reached = _measured(form, at, gap, goal)
        except np.linalg.LinAlgError:  # rounding has reached the boundary of the cone
            break
        since = since + 1 if reached > FALL * least else 0
        if reached <= least:
            best, least = end, reached
        # An infeasible point has no gap yet: patience counts from the first finite one.
        if least <= goal or (since > PATIENCE and np.isfinite(least)):
            break
    return best


def _measured(form: Form, at: Iterate, gap: Callable[[Iterate], float], goal: float) -> tuple[Iterate, float]:
    """The point and its gap; where the gap is above the goal, with the active rows at their bounds if better.

    Rounding in the Newton systems leaves margins that are off by 1e-8 where W is long, and a gap as large,
    however small the complementarity is.
    """
    reached = gap(at)
    if reached <= goal:
        return at, reached
    try:
        exact = _at_bounds(form, at)
        better = gap(exact)
    except np.linalg.LinAlgError:
        return at, reached
    return (exact, better) if better < reached else (at, reached)


def _at_bounds(form: Form, at: Iterate) -> Iterate:
    """The point whose weight is the nearest one, by least squares, with the active rows at their bounds."""
    pool, W = form.pool, form.weight(at)
    # Of a complementary pair the multiplier is the large one where the row is active.
    active = pool.tied | (at.slack * at.multipliers.max() < at.multipliers * at.slack.max())
    if not active.any():
        return at
    rows = pool.some(np.flatnonzero(active))
    gram = rows.gram
    factor, change = Cholesky(gram.copy), np.zeros_like(W)
    for _ in range(2):
        change = change + rows.combine(factor.solve(rows.bound - rows.margins(W + change)))
    return form.shifted(at, change)


def mean_product(form: Form, at: Iterate) -> float:
    """The μ of the central path that the iterate is closest to."""
    return at.products / (len(at.P) + np.count_nonzero(~form.pool.tied))


def _iterate(form: Form, at: Iterate, share: float) -> tuple[Iterate, float]:
    """A first-order step and the best of a few correctors, all with one factorisation.

    share: how much of the way to its target the last step left out; returned for this step. It replaces a
    predictor that chooses the target: after a short step the centre, after a long one the boundary.
    """
    scaling, pool = Scaling.of(at.P, at.Q), form.pool
    newton = form.newton(at, scaling)
    bounds = inverse(at.slack, pool.tied), inverse(at.multipliers, pool.tied)
    target = share / (3 - 2 * share) * mean_product(form, at)
    matrix, rows = scaling.first(target), target * ~pool.tied - at.slack * at.multipliers
    plain = step = newton.step(matrix, rows)

    best, length, worth = step, (0.0, 0.0), 0.0
    for _ in range(CORRECTORS):
        second = scaling.second(step.P, step.Q), step.slack * step.multipliers
        step = newton.step(matrix + second[0], rows - second[1])
        primal, dual = _reach(step, scaling, bounds)
        previous, worth = worth, min(primal, 1.0) * min(dual, 1.0)
        if worth < 1.01 * previous:
            break
        best, length = step, (primal, dual)
    if min(*length) < SHORT:  # far from the central path the second order misleads
        reach = _reach(plain, scaling, bounds)
        best, length = (plain, reach) if min(*reach) > min(*length) else (best, length)
    keep = 0.9 + 0.09 * min(*length, 1.0)
    primal, dual = min(keep * length[0], 1.0), min(keep * length[1], 1.0)
    return at.moved(newton.unscaled(best), primal, dual), 1 - min(primal, dual)


def _reach(step: Step, scaling: Scaling, bounds: tuple[Float, Float]) -> tuple[float, float]:
    """Largest primal and dual steps that stay in the cone; bounds: 1/slack and 1/multipliers."""
    primal = _ratio(float((step.slack * bounds[0]).min()))
    dual = _ratio(float((step.multipliers * bounds[1]).min()))
    return min(scaling.reach(step.P), primal), min(scaling.reach(step.Q), dual)


def inverse(values: Float, tied: Bool) -> Float:
    """1 / values (w,) on the inequalities, 0 where tied."""
    return ~tied / np.where(tied, 1.0, values)


def _ratio(least: float) -> float:
    """Largest α with 1 + α least ≥ 0."""
    return np.inf if least >= 0 else -1 / least


class Refined:
    """Solutions of one linear system, each refined once if the first of them was inexact.

    Without it the gap stops falling near 1e-8; with it at every solve, half the time goes into it.
    """

    def __init__(self, solve: Callable[[Float], Float], times: Callable[[Float], Float]) -> None:
        self.solve, self.times = solve, times
        self.inexact: bool | None = None

    def __call__(self, right: Float) -> Float:
        solution = self.solve(right)
        if self.inexact is False:
            return solution
        residual = right - self.times(solution)
        if self.inexact is None:
            self.inexact = bool(np.abs(residual).max() > ROUNDING)
        return solution + self.solve(residual) if self.inexact else solution


# ---------------------------------------------------------------------- Nesterov–Todd scaling


@dataclass(frozen=True, eq=False)
class Scaling:
    """Coordinates in which P and Q become the same diagonal matrix.

        P = G diag(v) Gᵀ,    Q = G⁻ᵀ diag(v) G⁻¹

    forward (k, k): G; backward (k, k): G⁻ᵀ; values (k,): v.
    A scaled step of P is G⁻¹ dP G⁻ᵀ, one of Q is Gᵀ dQ G.
    Reference: Todd, Toh, Tütüncü 1998, "On the Nesterov–Todd direction in semidefinite programming".
    """

    forward: Float
    backward: Float
    values: Float

    @classmethod
    def of(cls, P: Float, Q: Float) -> Scaling:
        """From Cholesky factors, so that neither G nor its inverse is inverted.

        LAPACK is called directly: at width 16 NumPy's checks cost more than a factorisation.
        """
        R, not_P = dpotrf(P, lower=1)
        L, not_Q = dpotrf(Q, lower=1)
        if not_P or not_Q:
            raise np.linalg.LinAlgError("a matrix is not positive definite")
        U, values, Vt, failed = dgesdd(R.T @ L)
        if failed:
            raise np.linalg.LinAlgError("singular values did not converge")
        root = np.sqrt(values)
        return cls(R @ (U / root), L @ (Vt.T / root), values)

    @cached_property
    def _over_sum(self) -> Float:
        return -1 / (self.values[:, None] + self.values)

    @cached_property
    def _over_root(self) -> Float:
        root = np.sqrt(self.values)
        return 1 / (root[:, None] * root)

    def first(self, target: float) -> Float:
        """The scaled sum X = dP̂ + dQ̂ that moves P̂ Q̂ to target · I:  ½(v X + X v) = target · I − v²."""
        return np.diag(target / self.values - self.values)

    def second(self, P: Float, Q: Float) -> Float:
        """What a scaled step's second order adds to it:  v X + X v = −(P Q + Q P)."""
        product = P @ Q
        return np.asarray((product + product.T) * self._over_sum)

    def reach(self, step: Float) -> float:
        """Largest α with diag(v) + α step ⪰ 0, for a scaled step."""
        least = _least_eigenvalue(step * self._over_root)
        return float(np.inf if least >= 0 else -1 / least)


def _least_eigenvalue(matrix: Float) -> float:
    """The least eigenvalue, or of a wide matrix a number slightly below it."""
    if len(matrix) >= WIDE:
        try:
            value, vector = eigsh(matrix, 1, which="SA", tol=NEAR, v0=np.ones(len(matrix)))
            return float(value[0] - np.linalg.norm(matrix @ vector - value * vector))
        except ArpackError:
            pass
    values, _, failed = dsyevd(matrix, compute_v=0)
    if failed:
        raise np.linalg.LinAlgError("eigenvalues did not converge")
    return float(values[0])
