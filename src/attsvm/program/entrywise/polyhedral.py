"""The programs of the l1 and l∞ norms: linear programs, by an interior point with a polyhedral ball."""

from __future__ import annotations

from attsvm.norms import Norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.entrywise import vertex
from attsvm.program.entrywise.working_set import on_working_set
from attsvm.program.threads import single_thread

PRECISE = 1e-10
"""Relative gap that needs no vertex."""


def solve(rows: Constraints, norm: Norm) -> Answer:
    """Smallest W in the l1 or l∞ norm that satisfies the rows.

        l1:  min Σ |W_ij|    s.t.  A W ≥ b        dual:  max b'λ,  |A'λ| ≤ 1 in every entry
        l∞:  min max |W_ij|  s.t.  A W ≥ b        dual:  max b'λ,  Σ |A'λ| ≤ 1

    W need not be unique: the interior point ends in the middle of the optimal face. Where it stops
    short of the last digits, the vertex beside it has them.
    """
    answer, reached = on_working_set(rows, norm, [(1.0, 0.0)])
    if not answer.separable or reached < PRECISE or vertex.gap(rows, norm, answer) < PRECISE:
        return answer
    with single_thread():
        return vertex.polish(rows, norm, answer)
