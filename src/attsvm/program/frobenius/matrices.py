"""Frobenius, one large matrix problem: several algorithms in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attsvm.numbers.threads import single_thread
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer, Found
from attsvm.program.frobenius import contradiction, interior_point as interior, pivoting, written_out
from attsvm.program.rows import Rows
from attsvm.program.span import Span

CROWDED = 10.0
"""Rows per unknown beyond which block pivoting needs more exchanges than a Newton matrix costs."""

NEWTON = 5000
"""Unknowns d·e up to which the Newton matrix of the interior point is formed (200 MB)."""

SMALL = 1 << 19
"""Entries of the rows up to which writing them out is cheaper than an interior point."""

ENOUGH = 1e-9
"""Relative gap below which no other algorithm is tried."""

Algorithm = Callable[[Rows], Found | None]


def solve(program: Constraints) -> Answer:
    """Cheap contradictions, then the algorithms in the order that suits the shape.

    Where none is exact, the same in the coordinates that the rows span, if those are fewer.
    """
    with single_thread():
        answer = _solve(program)
        if answer.gap <= ENOUGH:
            return answer
        span = Span.exactly(program)
        if span.shape == (program.d, program.e):
            return answer
        fewer = _solve(span.rows(program))
        return replace(fewer, W=span.expand(fewer.W))


def _solve(program: Constraints) -> Answer:
    rows = Rows.of(program)
    proof = contradiction.zero_row(program, rows)
    if proof is not None:
        return proof
    unit = float(rows.bound.max())
    found = solve_rows(replace(rows, bound=rows.bound / unit))
    return rows.answer(replace(found, W=found.W * unit), program)


def solve_rows(rows: Rows) -> Found:
    """The best that an algorithm finds on the rows; their largest bound is one."""
    found = contradiction.opposite_rows(rows)
    for algorithm in _algorithms(rows):
        if found is not None and found.gap <= ENOUGH:
            break
        other = algorithm(rows)
        if other is not None and (found is None or other.gap < found.gap):
            found = other
    # Where nothing converged: an answer that certifies nothing.
    return found or Found(np.zeros((rows.d, rows.e)), np.zeros(len(rows)))


def _algorithms(rows: Rows) -> list[Algorithm]:
    """What to try, fastest first."""
    unknowns = rows.d * rows.e
    entries = len(rows) * unknowns
    newton: list[Algorithm] = [interior.solve] if unknowns <= NEWTON else []
    exact: list[Algorithm] = [written_out.solve] if entries <= contradiction.DENSE else []
    if newton and len(rows) > CROWDED * unknowns:
        return [*newton, _pivot, *exact]
    return [_pivot, *exact] if entries <= SMALL else [_pivot, *newton, *exact]


def _pivot(rows: Rows) -> Found | None:
    return pivoting.solve(rows, pivoting.start(rows))
