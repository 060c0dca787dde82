"""Primal-dual interior point for the nuclear and the spectral program, on a pool of rows.

Both norms are semidefinite programs over one pair of matrices, P that holds W and Q that holds the
combined rows M = Σ λ_j A_j, so one predictor-corrector with the Nesterov–Todd direction serves both;
a norm brings its start and its Newton system only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.linalg.lapack import dpotrf, dpotrs

from attsvm.program.pool import Pool
from attsvm.program.scaling import Scaling
from attsvm.tokens import Bool, Float

CORRECTORS = 3
"""Second-order corrections tried per factorisation: each costs one solve and saves iterations."""


LIMIT, PATIENCE = 100, 3
"""Iterations in all, and iterations without a smaller gap, before the path is left."""


FAR = 30
"""Multiple of the goal above which the gap is not computed."""


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
        return float((self.P * self.Q).sum() + self.slack @ self.multipliers)


@dataclass(frozen=True, eq=False)
class Aim:
    """Where a Newton step should lead: G⁻¹(dP + V dQ V)G⁻ᵀ = matrix and s dλ + λ ds = rows."""

    matrix: Float
    rows: Float


class Newton(Protocol):
    """The factored Newton system of one norm at one iterate."""

    def step(self, aim: Aim) -> Iterate: ...


class Program(Protocol):
    """A norm's semidefinite form over a pool."""

    @property
    def pool(self) -> Pool: ...
    def weight(self, at: Iterate) -> Float: ...
    def newton(self, at: Iterate, scaling: Scaling) -> Newton: ...


def advance(program: Program, at: Iterate, gap: Callable[[Iterate], float], goal: float) -> Iterate:
    """Follow the central path until the gap is below the goal, or falls no more; return the best."""
    best, least, since = at, np.inf, 0
    for _ in range(LIMIT):
        try:
            at = _iterate(program, at)
            # Far from the goal the complementarity says enough, and costs nothing.
            reached = at.products / abs(float(at.multipliers @ program.pool.bound))
            reached = reached if reached > FAR * goal else gap(at)
        except np.linalg.LinAlgError:  # rounding has reached the boundary of the cone
            break
        since = since + 1 if reached >= least else 0
        if reached <= least:
            best, least = at, reached
        # An infeasible point has no gap yet: patience counts from the first finite one.
        if least <= goal or (since > PATIENCE and np.isfinite(least)):
            break
    return best


def mean_product(program: Program, at: Iterate) -> float:
    """The μ of the central path that the iterate is closest to."""
    return at.products / (len(at.P) + int((~program.pool.tied).sum()))


def _iterate(program: Program, at: Iterate) -> Iterate:
    """One predictor and the best of a few correctors, all with one factorisation."""
    scaling, unequal = Scaling.of(at.P, at.Q), ~program.pool.tied
    newton = program.newton(at, scaling)
    product = at.slack * at.multipliers
    step = newton.step(Aim(scaling.newton(0.0), -product))
    primal, dual, second = _reach(at, step, scaling, unequal)
    ahead = at.moved(step, min(primal, 1.0), min(dual, 1.0)).products / at.products
    target = min(max(ahead, 0.0), 1.0) ** 3 * mean_product(program, at)

    best, length = step, (0.0, 0.0)
    for _ in range(CORRECTORS):
        rows = np.where(unequal, target - product - step.slack * step.multipliers, 0.0)
        step = newton.step(Aim(scaling.newton(target, second), rows))
        primal, dual, second = _reach(at, step, scaling, unequal)
        if min(primal, 1.0) * min(dual, 1.0) < 1.01 * min(length[0], 1.0) * min(length[1], 1.0):
            break
        best, length = step, (primal, dual)
    keep = 0.9 + 0.09 * min(*length, 1.0)
    return at.moved(best, min(keep * length[0], 1.0), min(keep * length[1], 1.0))


def _reach(at: Iterate, step: Iterate, scaling: Scaling, unequal: Bool) -> tuple[float, float, Float]:
    """Largest primal and dual steps that stay in the cone, and the step's second-order term."""
    P, Q = scaling.scaled_P(step.P), scaling.scaled_Q(step.Q)
    primal = min(scaling.reach(P), _ratio(at.slack, step.slack, unequal))
    dual = min(scaling.reach(Q), _ratio(at.multipliers, step.multipliers, unequal))
    second = P @ Q
    return primal, dual, (second + second.T) / 2


def _ratio(value: Float, step: Float, unequal: Bool) -> float:
    """Largest α with value + α step ≥ 0 on the inequalities."""
    least = np.divide(step, value, out=np.zeros(len(value)), where=unequal).min()
    return float(np.inf if least >= 0 else -1 / least)


class Cholesky:
    """Factor of build() + diag(added), of which build gives the lower triangle.

    Dependent rows make the matrix singular: a ridge is raised until the factor exists, and the
    caller's iterative refinement undoes it. A matrix is built again rather than kept: it is large.
    """

    def __init__(self, build: Callable[[], Float], added: Float) -> None:
        ridge = 1e-14
        while ridge < 1e-4:
            # The transpose is in Fortran order, so that LAPACK works in place.
            matrix = build().T
            diagonal = np.diagonal(matrix) + added
            np.fill_diagonal(matrix, diagonal * (1 + ridge))
            self.factor, failed = dpotrf(matrix, lower=0, clean=0, overwrite_a=1)
            if not failed:
                return
            ridge *= 100
        raise np.linalg.LinAlgError("the Newton matrix is not positive definite")

    def solve(self, right: Float) -> Float:
        return np.asarray(dpotrs(self.factor, right, lower=0)[0])
