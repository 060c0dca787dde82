"""Solutions up to rounding: a gap of 1e-10 leaves W of l3 or Schatten(3) an error of 1e-4.

On the active rows the program has equalities alone. Newton steps on their multipliers, or the linear system
of a vertex, give W and multipliers to rounding. The result is taken where its certificate is no worse.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attsvm.norms import capabilities_of
from attsvm.program.derivative.one_run import has_derivative
from attsvm.program.derivative.pull_back import Derivative, norm_on

if TYPE_CHECKING:
    from attsvm.program.solution import Solution

NO_WORSE = 1e-12
"""Violations and gap that are as good as none: where both are below, the polished solution is taken."""


def polished(solution: Solution) -> Solution:
    """The solution with W and multipliers up to rounding, in lp and Schatten(p) norms; others as they are.

    Frobenius solutions are exact already.
    """
    norm = norm_on(solution)
    if capabilities_of(norm).euclidean or not has_derivative(norm):
        return solution
    derivative = Derivative.of(solution)
    runs, (n, T) = solution.tokens.runs, solution.selected.shape[-2:]
    W, multipliers = np.array(derivative.optimum.W), np.array(solution.token_multipliers).reshape(-1, n, T)
    for run, near in enumerate(derivative.local):
        exact, active = near.exact(), derivative.rows.active[run]
        size = float(norm.value(exact.W))
        if size > 0 and np.isfinite(exact.W).all() and np.isfinite(exact.pull).all():
            W[run], multipliers[run] = exact.W, 0.0
            multipliers[run][active] = exact.pull / size
    if runs is None:
        W, multipliers = W[0], multipliers[0]
    better = replace(solution, W=W, multipliers=solution.constraints.pack(multipliers))
    before, after = (np.asarray(s.certificate.worst) for s in (solution, better))
    accepted = after <= np.maximum(before, NO_WORSE)
    if accepted.all():
        return better
    if runs is None:
        return solution
    return replace(
        solution,
        W=np.where(accepted[:, None, None], better.W, solution.W),
        multipliers=np.where(accepted[:, None], better.multipliers, solution.multipliers),
    )
