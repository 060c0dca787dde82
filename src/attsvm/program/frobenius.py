"""Frobenius (and l2) margin: choose the algorithm by the shape of the problem."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields

import numpy as np

from attsvm.norms import Norm, frobenius
from attsvm.program import batch, contradiction, interior, pivoting
from attsvm.program.active_set import solve_rows
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.threads import single_thread
from attsvm.program.unit_rows import Found, UnitRows

CROWDED = 10.0
"""Rows per unknown beyond which block pivoting needs more exchanges than a Newton matrix costs."""

NEWTON = 5000
"""Unknowns d·e up to which the Newton matrix of the interior point is formed (200 MB)."""

ENOUGH = 1e-9
"""Relative gap below which no other algorithm is tried."""


def solve(rows: Constraints, norm: Norm = frobenius) -> Answer:
    """Smallest ‖W‖_F with ⟨A_j, W⟩ ≥ b_j (= 0 where tied), for one run.

    Vectors go to the prompt's working set, small problems to loops on their Gram matrix, few rows
    per unknown to block pivoting, many rows to the interior point. Each hands over to the next
    when it cannot reach the accuracy.
    """
    if min(rows.d, rows.e) == 1:
        from attsvm.program import prompt

        return prompt.solve(rows)
    if batch.suits(rows):
        answers, final = batch.solve(_with_runs(rows))
        return _first(answers) if final[0] else _written_out(rows)
    # Multipliers that diverge may overflow; what is not finite is never taken for an answer.
    with single_thread(), np.errstate(over="ignore", invalid="ignore"):
        return _solve_large(rows)


def solve_runs(rows: Constraints) -> Answer:
    """The same for every run of `rows`: arrays with the runs axis first."""
    if min(rows.d, rows.e) == 1:
        from attsvm.program import prompt

        return prompt.solve_runs(rows)
    runs = rows.keys.shape[0]
    shape = (runs, rows.n, rows.T)
    answer = Answer(np.zeros((runs, rows.d, rows.e)), np.zeros(shape), np.ones(runs, bool))
    final = np.zeros(runs, bool)
    if batch.suits(rows):
        answer, final = batch.solve(rows)
    with single_thread(), ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = {k: pool.submit(solve, rows.run(k)) for k in np.flatnonzero(~final).tolist()}
        for k, job in jobs.items():
            one = job.result()
            answer.W[k], answer.multipliers[k] = one.W, one.multipliers
            np.asarray(answer.separable)[k] = one.separable
    return answer


# ---------------------------------------------------------------------- one problem


def _solve_large(rows: Constraints) -> Answer:
    """Cheap contradictions, then the algorithms in the order that suits the shape."""
    unit = UnitRows(rows)
    best = contradiction.at_once(unit)
    for algorithm in _algorithms(unit):
        if best is not None and best.gap <= ENOUGH:
            break
        found = algorithm(unit)
        if found is not None and (best is None or found.gap < best.gap):
            best = found
    if (best is None or best.gap > ENOUGH) and unit.count * rows.d * rows.e <= contradiction.DENSE:
        return _written_out(rows)
    if best is None:
        return Answer(np.zeros((rows.d, rows.e)), np.zeros(rows.active.shape))
    return Answer(best.W, best.lam / unit.length, not best.proof)


def _algorithms(unit: UnitRows) -> list[Callable[[UnitRows], Found | None]]:
    def pivot(unit: UnitRows) -> Found | None:
        return pivoting.solve(unit, pivoting.start(unit))

    unknowns = unit.rows.d * unit.rows.e
    newton = [interior.solve] if unknowns <= NEWTON else []
    return [*newton, pivot] if newton and unit.count > CROWDED * unknowns else [pivot, *newton]


def _written_out(rows: Constraints) -> Answer:
    """A small problem whose Gram matrix has too few digits: its rows written out, by QR factors."""
    example, token = np.nonzero(rows.active)
    features = rows.differences(example, token)[:, :, None] * rows.queries[example][:, None, :]
    point = solve_rows(features.reshape(len(example), -1), rows.bound[rows.active], rows.tied[rows.active])
    multipliers = np.zeros(rows.active.shape)
    multipliers[rows.active] = point.multipliers
    return Answer(point.w.reshape(rows.d, rows.e), multipliers, point.separable)


def _with_runs(rows: Constraints) -> Constraints:
    """One problem as a batch of one."""
    return Constraints(*(np.asarray(getattr(rows, f.name))[None] for f in fields(rows)))


def _first(answers: Answer) -> Answer:
    return Answer(answers.W[0], answers.multipliers[0], bool(np.asarray(answers.separable)[0]))
