"""Vertices up to rounding: a gap of 1e-10 leaves W of l1 and l∞ an error of 1e-8.

Other norms need none: their engines end at the exact solution of the active rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from attsvm.program.derivative.one_run import Vertex, has_vertices
from attsvm.program.derivative.optimum import times_power
from attsvm.program.derivative.pull_back import Derivative, norm_on
from attsvm.program.derivative.tolerances import TOLERANCES

if TYPE_CHECKING:
    from attsvm.program.solution import Solution


def at_vertices(solution: Solution) -> Solution:
    """The solution at the vertex of its active rows, in l1 and l∞; others as they are."""
    norm = norm_on(solution)
    if not has_vertices(norm):
        return solution
    derivative = Derivative.of(solution)
    optimum, units = derivative.optimum, derivative.optimum.units
    W, multipliers = np.zeros(optimum.W.shape), np.zeros(optimum.pull.shape)
    for run, active in enumerate(derivative.rows.active):
        W[run], multipliers[run][active] = Vertex(derivative.active(run), norm).exact()
    exact, pulls = times_power(W, units.weight), times_power(multipliers, -units.rows)
    packed = solution.constraints.pack(pulls.reshape(solution.token_multipliers.shape))
    better = replace(solution, W=exact.reshape(solution.W.shape), multipliers=packed)
    before, after = (np.asarray(s.certificate.worst) for s in (solution, better))
    accepted = (after <= np.maximum(before, TOLERANCES.no_worse))[..., None]
    return replace(
        solution,
        W=np.where(accepted[..., None], better.W, solution.W),
        multipliers=np.where(accepted, better.multipliers, solution.multipliers),
    )
