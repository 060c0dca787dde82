"""Frobenius (and l2) margin: choose the algorithm by the shape of the problem.

Each is imported when it is first needed: what they import takes longer than a small problem.
"""

from __future__ import annotations

import numpy as np

from attsvm.norms import Norm, frobenius
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer, stacked
from attsvm.program.frobenius import batch


def solve(rows: Constraints, norm: Norm = frobenius) -> Answer:
    """Smallest ‖W‖_F with ⟨A_j, W⟩ ≥ b_j (= 0 where tied), for one run.

    Vectors go to the prompt's working set, small problems to loops on their Gram matrix, up to ten
    rows per unknown to block pivoting, more to the interior point. Each hands over to the next when
    it cannot reach the accuracy.
    """
    if min(rows.d, rows.e) == 1:
        from attsvm.program.frobenius import prompt

        return prompt.solve(rows)
    if batch.suits(rows):
        return _first(batch.solve(rows.as_batch()))
    from attsvm.program.frobenius import matrices

    return matrices.solve(rows)


def solve_runs(rows: Constraints) -> Answer:
    """The same for every run of `rows`: arrays with the runs axis first."""
    if min(rows.d, rows.e) == 1:
        from attsvm.program.frobenius import prompt

        return prompt.solve_runs(rows)
    if batch.suits(rows):
        return batch.solve(rows)
    return stacked([solve(rows.run(k)) for k in range(len(rows.keys))])


def _first(answers: Answer) -> Answer:
    can = bool(np.asarray(answers.separable)[0])
    return Answer(answers.W[0], answers.multipliers[0], can, answers.scaled, answers.gap)
