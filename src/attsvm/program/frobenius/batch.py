"""Many small matrix problems at once: a compiled loop over all runs, and their verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.program import bounds
from attsvm.program.answer import Answer
from attsvm.program.constraints import Constraints
from attsvm.program.frobenius.dense import solve_runs_written_out
from attsvm.program.frobenius.gram import Exchanged, Problems, memory, pivot

GAP = 1e-11
"""Relative gap up to which an answer of the Gram matrix is taken."""


def solve_runs_by_gram(program: Constraints) -> Answer:
    """Answers of all runs: block pivoting, checked; where that is not enough, the dual active set."""
    query, size, like = _queries(program)
    parts = (program.anchor, program.active, program.tied, program.required)
    problems = Problems(_read_only(program.keys), query, size, like, *map(_read_only, parts))
    runs = len(program.keys)
    W, measure = np.zeros((runs, program.d, program.e)), np.zeros((runs, 3))
    multipliers = np.zeros(program.active.shape)
    found = Exchanged(W, multipliers.reshape(runs, -1), measure)
    pivot(problems, found, memory(program.n * (program.T - 1), program.d))
    length = np.sqrt(np.einsum("rde,rde->r", W, W))
    final, separable, gap = _are_optimal(measure, length), np.ones(runs, bool), np.full(runs, GAP)
    W /= np.where(final, measure[:, 1], 1.0)[:, None, None]
    multipliers /= np.where(length > 0, length, 1.0)[:, None, None]
    left = np.flatnonzero(~final)
    if left.size:
        exact = solve_runs_written_out(program.subset(left))
        W[left], multipliers[left] = exact.W, exact.multipliers
        separable[left], gap[left] = exact.separable, exact.gap
    return Answer(W, multipliers, separable, gap)


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    """One type for compiled code, whether or not the caller may write to the array."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _queries(program: Constraints) -> tuple[Float, Float, Float]:
    """The queries at length one (r, n, e), their lengths (r, n), and their Gram matrices (r, n, n)."""
    size = np.sqrt(np.einsum("rne,rne->rn", program.queries, program.queries))
    unit = program.queries / np.where(size > 0, size, 1.0)[..., None]
    return unit, size, np.matmul(unit, unit.swapaxes(1, 2))


def _are_optimal(measure: Float, size: Float) -> Bool:
    """Whether the gap between b·λ/|W| and |W|/(least margin) is at most GAP.

    measure (r, 3): see `gram.Exchanged`; size (r,): |W|.
    """
    lower, least, short = measure.T
    with np.errstate(all="ignore"):  # no row asks for a margin: λ and W are zero
        closed = bounds.apart(lower / size, least, size) <= GAP
    return (closed | ((least == np.inf) & (lower == 0))) & (short <= GAP * size)
