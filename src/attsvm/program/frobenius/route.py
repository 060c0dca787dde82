"""Frobenius (and l2) margin: choose the algorithm by the shape of the problem.

Each is imported when it is first needed: what they import takes longer than a small problem.
"""

from __future__ import annotations

import numpy as np

from attsvm.norms import Norm, frobenius
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
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
        answers, final = batch.solve(rows.as_batch())
        if final[0]:
            return _first(answers)
    from attsvm.program.frobenius import large

    if batch.suits(rows):
        return large.written_out(rows)
    answer = large.solve(rows)
    return answer if answer.gap <= large.ENOUGH else _in_span(rows) or answer


def _in_span(rows: Constraints) -> Answer | None:
    """The answer in the coordinates that the rows span, if those are fewer."""
    from attsvm.program.frobenius import span

    fewer = span.reduce(rows)
    if fewer is None:
        return None
    answer = solve(fewer.rows)
    return Answer(fewer.lift(answer.W), answer.multipliers, answer.separable)


def solve_runs(rows: Constraints) -> Answer:
    """The same for every run of `rows`: arrays with the runs axis first."""
    if min(rows.d, rows.e) == 1:
        from attsvm.program.frobenius import prompt

        return prompt.solve_runs(rows)
    runs = len(rows.keys)
    if batch.suits(rows):
        answer, final = batch.solve(rows)
        if final.all():
            return answer
    else:
        W = np.zeros((runs, rows.d, rows.e))
        answer, final = Answer(W, np.zeros(rows.active.shape), np.ones(runs, bool)), np.zeros(runs, bool)
    for k in np.flatnonzero(~final).tolist():
        one = solve(rows.run(k))
        answer.W[k], answer.multipliers[k] = one.W, one.multipliers
        np.asarray(answer.separable)[k] = one.separable
    return answer


def _first(answers: Answer) -> Answer:
    can = bool(np.asarray(answers.separable)[0])
    return Answer(answers.W[0], answers.multipliers[0], can, answers.scaled, answers.gap)
