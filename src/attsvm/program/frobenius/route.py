"""Frobenius (and l2) margin: choose the algorithm by the shape of the problem.

Each is imported when it is first needed: what they import takes longer than a small problem.
"""

from __future__ import annotations

from attsvm.norms import Norm, frobenius
from attsvm.program import working_set
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer, stacked
from attsvm.program.frobenius import batch

PROBE = 2
"""Rows per unknown in the first pool."""

KEPT = 1 << 24
"""Entries of the keys up to which all differences of a matrix problem are kept at once (128 MB)."""


def solve(rows: Constraints, norm: Norm = frobenius) -> Answer:
    """Smallest ‖W‖_F with ⟨A_j, W⟩ ≥ b_j (= 0 where tied), for one run.

    Vectors, and matrix problems that are large or stored elsewhere, go to the working set; small ones to
    loops on their Gram matrix; the others to block pivoting or, with many rows per unknown, to the
    interior point.
    """
    if rows.e == 1 or (rows.d == 1 and not rows.stored):
        from attsvm.program.frobenius import vectors

        return vectors.solve(rows)
    if rows.stored or rows.keys.size > KEPT:
        from attsvm.program.frobenius import resumed

        engine = resumed.Pivoted(rows.active.shape, working_set.room(rows, resumed.LARGEST))
        return working_set.solve(rows, frobenius, engine, rows.tied | working_set.first(rows, PROBE))
    if batch.suits(rows):
        return batch.solve(rows.as_batch()).alone()
    from attsvm.program.frobenius import matrices

    return matrices.solve(rows)


def solve_runs(rows: Constraints) -> Answer:
    """The same for every run of `rows`: arrays with the runs axis first."""
    if min(rows.d, rows.e) == 1:
        from attsvm.program.frobenius import vectors

        return vectors.solve_runs(rows)
    if batch.suits(rows):
        return batch.solve(rows)
    return stacked([solve(rows.run(k)) for k in range(len(rows.keys))])
