"""Vector problems (e = 1 or d = 1) in the l2 norm: small ones whole, large ones by the working set.

min ‖p‖  subject to  z_i (x_a − x_t)ᵀ p ≥ required_i
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm.norms import frobenius
from attsvm.numbers import Bool
from attsvm.program import working_set
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer, stacked
from attsvm.program.frobenius import active_set, contradiction, written_out
from attsvm.program.frobenius.active_set import DEPENDENT
from attsvm.program.frobenius.resumed import LARGEST, ActiveSet, Pivoted
from attsvm.program.passes import TINY
from attsvm.program.rows import Rows

SMALL = 50_000
"""Numbers in the largest dense matrix of rows."""

FEW = 1000
"""Dimensions up to which exchanging one row at a time is faster than many."""

PROBE = 16
"""Rows per dimension in the first pool."""

STRIDES = (16, 4)
"""The first rounds read every 16th and every 4th example."""


def solve(program: Constraints) -> Answer:
    """The shortest vector W that satisfies the rows; d or e is 1, no runs axis."""
    if program.e > 1:
        return _whole(program, _tightest(program))
    if _small(program):
        return written_out.solve_runs(program.as_batch()).alone()
    if program.n * program.T < program.d:
        return _whole(program, program.active)
    most = working_set.room(program, LARGEST)
    engine = ActiveSet(program.d, most) if program.d <= FEW else Pivoted(program.active.shape, most)
    chosen = working_set.first(program, PROBE)
    if program.tied.any():
        chosen |= independent_ties(program)
    return working_set.solve(program, frobenius, engine, chosen, STRIDES)


def solve_runs(program: Constraints) -> Answer:
    """`solve` for every run of a batch: arrays with the runs axis first."""
    if _small(program):
        return written_out.solve_runs(program)
    return stacked([solve(program.run(run)) for run in range(len(program.keys))])


def _small(program: Constraints) -> bool:
    few = max(program.n * program.T, program.d) * program.d <= SMALL
    return program.e == 1 and few and not program.stored


def _whole(program: Constraints, chosen: Bool) -> Answer:
    """The program of the chosen rows, written out."""
    rows = Rows.of(program, chosen)
    proof = contradiction.zero_row(program, rows, chosen)
    return proof or rows.at_margin_one(written_out.shortest(rows), program, frobenius)


def _tightest(program: Constraints) -> Bool:
    """d = 1: the row is a number δ times the query, so few rows of an example matter.

    For inequalities these are the smallest δ > 0, the δ < 0 nearest to zero, and a zero; of the ties
    one that is not zero.
    """
    delta = np.take_along_axis(program.keys[..., 0], program.anchor[:, None], 1) - program.keys[..., 0]
    size = np.where(delta == 0, np.inf, np.abs(delta))
    free, out = program.separating, np.zeros(delta.shape, bool)
    kinds = [(free & (delta > 0), size), (free & (delta < 0), size), (free & (delta == 0), -size)]
    for kind, order in [*kinds, (program.tied & (delta != 0), -size)]:
        have = np.flatnonzero(kind.any(1))
        out[have, np.argmin(np.where(kind, order, np.inf), 1)[have]] = True
    return out


def independent_ties(program: Constraints) -> Bool:
    """Tied rows (n, T) that span all tied rows, at most d, by pivoted QR in bounded memory."""
    from scipy.linalg import qr

    example, token = np.nonzero(program.tied)
    kept: NDArray[np.intp] = np.zeros(0, np.intp)
    chunk = 4 * program.d
    for start in range(0, len(example), chunk):
        tried = np.append(kept, np.arange(start, min(start + chunk, len(example))))
        delta = program.differences(example[tried], token[tried]) * program.queries[example[tried]]
        length = active_set.lengths(delta)
        tried, delta = tried[length > TINY], delta[length > TINY] / length[length > TINY, None]
        if len(tried):
            R, pivot = qr(delta.T, mode="r", pivoting=True)
            kept = tried[pivot[: int((np.abs(np.diagonal(R)) > DEPENDENT).sum())]]
    out = np.zeros(program.tied.shape, bool)
    out[example[kept], token[kept]] = True
    return out
