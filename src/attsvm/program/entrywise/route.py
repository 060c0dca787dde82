"""The programs of the entrywise norms: on all rows at first where they are few, else on a pool that grows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.norms import Norm
from attsvm.numbers.threads import single_thread
from attsvm.program import interior_engine, working_set
from attsvm.program.answer import Answer
from attsvm.program.constraints import Constraints
from attsvm.program.entrywise.interior_point import EntrywisePoint


def solve_entrywise(program: Constraints, norm: Norm, first: Callable[[], Answer]) -> Answer:
    """Smallest W in an entrywise norm that satisfies the rows.

        min ‖W‖_p  s.t.  A W ≥ b        dual:  max b'λ,  ‖A'λ‖_q ≤ 1,  1/p + 1/q = 1

    For p = 1 and p = ∞, W need not be unique: the interior point ends in the middle of the optimal face.
    It starts from the Frobenius solution, which also knows whether the rows are separable; small problems
    first try without.
    """
    paces = interior_engine.paces_of(norm.p)
    if np.count_nonzero(program.active) <= interior_engine.FEW_ROWS:
        engine = interior_engine.resumable(EntrywisePoint, norm, paces[:1])
        answer = working_set.solve_on_pools(program, norm, engine, program.active)
        if answer.gap < interior_engine.GAP_ENOUGH:
            return answer
    start = first()
    if not (start.separable and start.W.any()):
        return start
    with single_thread():
        engine = interior_engine.resumable(EntrywisePoint, norm, paces, start)
        return working_set.solve_on_pools(program, norm, engine, interior_engine.first_rows(program, start))
