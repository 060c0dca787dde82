"""Frobenius, one large matrix problem: several algorithms in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attsvm.numbers.threads import single_thread
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer, Found
from attsvm.program.frobenius import contradiction
from attsvm.program.rows import Rows, zero_row
from attsvm.program.span import Span
from attsvm.program.working_set import Algorithm

CLOSED = 1e-9
"""Relative gap below which no other algorithm is tried."""

Table = Callable[[Rows], list[Algorithm]]
"""What to try on some rows, fastest first."""


def solve_matrix(program: Constraints, algorithms: Table) -> Answer:
    """Cheap contradictions, then the algorithms in the order that suits the shape.

    Where none is exact, the same in the coordinates that the rows span, if those are fewer.
    """
    with single_thread():
        answer = _whole(program, algorithms)
        if answer.gap <= CLOSED:
            return answer
        span = Span.exactly(program)
        if span.shape == (program.d, program.e):
            return answer
        fewer = _whole(span.rows(program), algorithms)
        return replace(fewer, W=span.expand(fewer.W))


def _whole(program: Constraints, algorithms: Table) -> Answer:
    rows = Rows.of(program)
    proof = zero_row(program, rows)
    if proof is not None:
        return proof
    unit = float(rows.bound.max())
    found = best_of(algorithms, replace(rows, bound=rows.bound / unit))
    return rows.answer(replace(found, W=found.W * unit), program)


def best_of(algorithms: Table, rows: Rows) -> Found:
    """The best that an algorithm finds on the rows; their largest bound is one."""
    found = contradiction.opposite_rows(rows)
    for algorithm in algorithms(rows):
        if found is not None and found.gap <= CLOSED:
            break
        other = algorithm(rows)
        if other is not None and (found is None or other.gap < found.gap):
            found = other
    # Where nothing converged: an answer that certifies nothing.
    return found or Found(np.zeros((rows.d, rows.e)), np.zeros(len(rows)))
