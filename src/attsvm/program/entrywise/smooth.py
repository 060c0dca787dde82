"""The program of an entrywise lp norm, 1 < p < ∞: an interior point with a smooth ball."""

from __future__ import annotations

from attsvm.norms import Norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.entrywise.working_set import on_working_set

TRIES = ((0.65, 1e-3), (0.8, 1e-2), (0.9, 1e-4))
"""In turn: the factor by which p − 1, or 1/(p − 1), shrinks in a step, and the complementarity meanwhile."""

FAST, FROM = (0.5, 1e-3), 1.05
"""Tried before them for FROM < p < 2, where the way is short."""


def solve(rows: Constraints, norm: Norm) -> Answer:
    """Smallest W in the lp norm that satisfies the rows.

        min ‖W‖_p  s.t.  A W ≥ b        optimal:  A'λ = ∇ ‖W‖_p^p / p = sign(W) |W|^(p−1)

    If a fast pace of the exponent fails to converge, slower ones follow.
    """
    return on_working_set(rows, norm, (FAST, *TRIES) if FROM < norm.p < 2 else TRIES)[0]
