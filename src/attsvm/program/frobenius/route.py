"""Frobenius (and l2) margin: which engine suits which shape. It is chosen here and nowhere else.

    vectors, d or e = 1   small                          dense rows, all runs at once
    matrices              few rows                       loops on the Gram matrix, all runs at once
    d·e ≤ ONE_BY_ONE      more rows than unknowns        working set, dual active set
                          (of matrices CROWDED times)
    else, vectors         fewer rows than dimensions     every row, block pivoting, dense
                          more                           working set, block pivoting, dense
    else, matrices        keys in memory, not too many   every row, what suits them
                          stored elsewhere, many keys    working set, what suits a pool
    rows of matrices      crowded, few unknowns          interior point, block pivoting, dense
                          small                          block pivoting, dense
                          else                           block pivoting, interior point, dense

An engine whose gap stays open is followed by the other one: active set and block pivoting.
Engines are imported when they are first needed: what they import takes longer than a small problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from attsvm.norms import frobenius
from attsvm.program import bounds, working_set
from attsvm.program.answer import Answer, in_batch, one_by_one
from attsvm.program.constraints import Constraints
from attsvm.program.rows import Rows
from attsvm.program.working_set import Algorithm

NUMBERS_OF_VECTORS = 50_000
"""Numbers in the rows of a vector problem, or in a factor of them, up to which rows are dense vectors."""

GRAM_ROWS = 400
"""Rows of a matrix problem up to which loops on the Gram matrix beat calls to LAPACK."""

ONE_BY_ONE, ONE_BY_ONE_OF_MATRICES = 700, 200
"""Unknowns, of vectors and of matrices, up to which exchanging one row at a time is faster than many: at 700
and at 200 both take the same time, and at 576 of matrices many take a quarter of it."""

SLOWLY = 2000
"""Unknowns up to which exchanging one row at a time is the way out where exchanging many has failed."""

KEPT_KEYS = 1 << 24
"""Entries of the keys up to which all differences of a matrix problem are kept at once (128 MB)."""

CROWDED = 10.0
"""Rows per unknown beyond which block pivoting needs more exchanges than a Newton matrix costs."""

NEWTON = 5000
"""Unknowns d·e up to which the Newton matrix of the interior point is formed (200 MB)."""

NUMBERS_OF_MATRICES = 1 << 19
"""Numbers in the rows up to which writing them out is cheaper than an interior point."""

PROBE = 16
"""Rows per unknown in the first pool: with 4 or 8 the first pools miss too much."""

STRIDES = (16, 4)
"""The first rounds read every 16th and every 4th example."""


def solve_frobenius(program: Constraints) -> Answer:
    """Smallest ‖W‖_F with ⟨A_j, W⟩ ≥ b_j (= 0 where tied), for one run or for all of a batch."""
    engine = _batch_engine(program)
    return one_by_one(_one_run, program) if engine is None else in_batch(engine, program)


def _batch_engine(program: Constraints) -> Callable[[Constraints], Answer] | None:
    """The engine that takes all runs of a batch at once, if they are small."""
    in_memory, n, T, d, e = program.fits(), program.n, program.T, program.d, program.e
    if in_memory and min(d, e) == 1 and max(n * T, d * e) * d * e <= NUMBERS_OF_VECTORS:
        from attsvm.program.frobenius.dense import solve_runs_dense as engine
    elif in_memory and min(d, e) > 1 and n * max(T - 1, 1) <= GRAM_ROWS:
        from attsvm.program.frobenius.gram import solve_runs_by_gram as engine
    else:
        return None
    return engine


def _one_run(program: Constraints) -> Answer:
    """By the engine that suits the shape; where its gap stays open, by the other one, too."""
    from attsvm.program.frobenius.active_set import ActiveSet
    from attsvm.program.frobenius.pivoting import CLOSED, Pivoted

    unknowns, rows = program.d * program.e, program.n * program.T
    crowded = rows >= (1.0 if program.e == 1 else CROWDED) * unknowns

    def by_active_set() -> Answer:
        engine, pool = ActiveSet(unknowns), working_set.some_examples(program, PROBE)
        return working_set.solve_on_pools(program, frobenius, engine, pool, STRIDES)

    def by_pivoting() -> Answer:
        engine = Pivoted(algorithms)
        if rows < unknowns or (program.e > 1 and program.fits(KEPT_KEYS)):
            return working_set.solve_on_pools(program, frobenius, engine, program.active)
        pool = working_set.some_examples(program, PROBE)
        return working_set.solve_on_pools(program, frobenius, engine, pool, STRIDES)

    solvers = [by_pivoting, by_active_set][: 1 + (unknowns <= SLOWLY)]
    if crowded and unknowns <= (ONE_BY_ONE if program.e == 1 else ONE_BY_ONE_OF_MATRICES):
        solvers.reverse()
    best = solvers[0]()
    for solver in solvers[1:]:
        if best.separable and not best.gap <= CLOSED:
            candidate = solver()
            best = candidate if candidate.gap < best.gap or not candidate.separable else best
    return _at_required_margins(program, best) if program.fits(KEPT_KEYS) else best


def _at_required_margins(program: Constraints, answer: Answer) -> Answer:
    """W with its least margin at the required one: a growing pool leaves 1e-11 between them."""
    from attsvm.program.frobenius.pivoting import CLOSED

    if not answer.separable:
        return answer
    least = bounds.least_margin(program, program.margins(answer.W))
    return replace(answer, W=answer.W / least) if abs(least - 1) < CLOSED else answer


def algorithms(rows: Rows) -> list[Algorithm]:
    """What to try on the rows, fastest first."""
    from attsvm.program.frobenius.contradiction import DENSE
    from attsvm.program.frobenius.dense import solve_dense
    from attsvm.program.frobenius.interior_point import solve_by_interior_point
    from attsvm.program.frobenius.pivoting import solve_by_pivoting

    if rows.e == 1:
        return [solve_by_pivoting, solve_dense]
    unknowns = rows.d * rows.e
    entries = len(rows) * unknowns
    newton: list[Algorithm] = [solve_by_interior_point] if unknowns <= NEWTON else []
    exact: list[Algorithm] = [solve_dense] if entries <= DENSE else []
    if newton and len(rows) > CROWDED * unknowns:
        return [*newton, solve_by_pivoting, *exact]
    return [solve_by_pivoting, *(newton if entries > NUMBERS_OF_MATRICES else []), *exact]
