"""Frobenius, one problem with too many rows for loops on its Gram matrix: several algorithms in turn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.frobenius import contradiction, pivoting
from attsvm.program.frobenius import interior_point as interior
from attsvm.program.frobenius.active_set import solve_rows
from attsvm.program.frobenius.unit_rows import Found, UnitRows
from attsvm.program.threads import single_thread

CROWDED = 10.0
"""Rows per unknown beyond which block pivoting needs more exchanges than a Newton matrix costs."""

NEWTON = 5000
"""Unknowns d·e up to which the Newton matrix of the interior point is formed (200 MB)."""

SMALL = 1 << 19
"""Entries of the rows up to which writing them out is cheaper than an interior point."""

ENOUGH = 1e-9
"""Relative gap below which no other algorithm is tried."""

Algorithm = Callable[[UnitRows], Found | None]


def solve(rows: Constraints) -> Answer:
    """Cheap contradictions, then the algorithms in the order that suits the shape."""
    with single_thread():
        return _solve(rows)


def written_out(rows: Constraints) -> Answer:
    """The dual active set on all rows: for rows so dependent that their Gram matrix has too few digits."""
    unit = UnitRows(rows)
    return _answer(unit, _written_out(unit))


def _solve(rows: Constraints) -> Answer:
    if not (rows.bound > 0).any():
        return Answer(np.zeros((rows.d, rows.e)), np.zeros(rows.active.shape))
    unit = UnitRows(rows)
    best = contradiction.at_once(unit)
    for algorithm in _algorithms(unit):
        if best is not None and best.gap <= ENOUGH:
            break
        found = algorithm(unit)
        if found is not None and (best is None or found.gap < best.gap):
            best = found
    return _answer(unit, best)


def _algorithms(unit: UnitRows) -> list[Algorithm]:
    """What to try, fastest first."""
    unknowns = unit.rows.d * unit.rows.e
    entries = unit.count * unknowns
    newton: list[Algorithm] = [interior.solve] if unknowns <= NEWTON else []
    exact: list[Algorithm] = [_written_out] if entries <= contradiction.DENSE else []
    if newton and unit.count > CROWDED * unknowns:
        return [*newton, _pivot, *exact]
    return [_pivot, *exact] if entries <= SMALL else [_pivot, *newton, *exact]


def _pivot(unit: UnitRows) -> Found | None:
    return pivoting.solve(unit, pivoting.start(unit))


def _written_out(unit: UnitRows) -> Found:
    features = unit.features(*np.nonzero(unit.live))
    point = solve_rows(features, unit.bound[unit.live], unit.free[unit.live])
    W, lam = point.w.reshape(unit.rows.d, unit.rows.e), np.zeros(unit.live.shape)
    lam[unit.live] = point.multipliers
    return Found(lam, W, unit.gap(lam, W) if point.separable else 0.0, not point.separable)


def _answer(unit: UnitRows, found: Found | None) -> Answer:
    if found is None:  # nothing converged: an answer that certifies nothing
        return Answer(np.zeros((unit.rows.d, unit.rows.e)), np.zeros(unit.live.shape))
    return Answer(found.W, found.lam / unit.length, not found.proof, gap=found.gap)
