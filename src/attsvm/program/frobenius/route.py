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


def solve(program: Constraints, norm: Norm = frobenius) -> Answer:
    """Smallest ‖W‖_F with ⟨A_j, W⟩ ≥ b_j (= 0 where tied), for one run.

    Vectors, and matrix problems that are large or stored elsewhere, go to the working set; small ones to
    loops on their Gram matrix; the others to block pivoting or, with many rows per unknown, to the
    interior point.
    """
    if program.e == 1 or (program.d == 1 and not program.stored):
        from attsvm.program.frobenius import vectors

        return vectors.solve(program)
    if program.stored or program.keys.size > KEPT:
        from attsvm.program.frobenius import resumed

        engine = resumed.Pivoted(program.active.shape, working_set.room(program, resumed.LARGEST))
        return working_set.solve(program, frobenius, engine, program.tied | working_set.first(program, PROBE))
    if batch.suits(program):
        return batch.solve(program.as_batch()).alone()
    from attsvm.program.frobenius import matrices

    return matrices.solve(program)


def solve_runs(program: Constraints) -> Answer:
    """The same for every run of `rows`: arrays with the runs axis first."""
    if min(program.d, program.e) == 1:
        from attsvm.program.frobenius import vectors

        return vectors.solve_runs(program)
    if batch.suits(program):
        return batch.solve(program)
    return stacked([solve(program.run(k)) for k in range(len(program.keys))])
