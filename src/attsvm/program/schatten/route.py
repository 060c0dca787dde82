"""Programs of norms of the singular values: which engine solves them, on which rows."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import numpy as np

from attsvm.norms import Norm, nuclear, spectral
from attsvm.numbers import Bool, Float
from attsvm.numbers.threads import single_thread
from attsvm.program import bounds, working_set
from attsvm.program.answer import Answer
from attsvm.program.constraints import TINY, Constraints
from attsvm.program.interior_engine import first_rows, paces_of, resumable
from attsvm.program.rows import Span
from attsvm.program.schatten import compiled_path
from attsvm.program.schatten.curved import CurvedPoint
from attsvm.program.schatten.staged import SMALL_POOL, STAGES, StagedPath
from attsvm.program.working_set import least

NEAR = 1e-7
"""p − 1, or 1/p, below which the program is taken for the nuclear or the spectral one: its solution is at
most k^NEAR times as long as the best one, k = min(d, e), and Newton's method has no digits left there."""

SHARE = 0.9
"""Share of the Frobenius value in a first pool that spans less than the space."""

ATTEMPTS = (1.5, 4.0, 16.0)
"""Rows of the first pool in units of the Frobenius support; later attempts do not drop rows."""

CERTIFIABLE = 8e-9
"""Relative gap that a certificate accepts, its rounding included: a larger attempt would cost more than the
first, and improve no certificate."""

MANY_KEYS = 1 << 22
"""Numbers in the keys from which BLAS may use all cores."""


def solve_schatten(program: Constraints, norm: Norm, first: Callable[[], Answer]) -> Answer:
    """Start at the Frobenius solution; between 1 and ∞ the norm is smooth, at both ends semidefinite.

    Feasibility does not depend on the norm: without a Frobenius solution its proof is the answer.
    """
    with nullcontext() if program.keys.size > MANY_KEYS else single_thread():
        start = first()
        if not (start.separable and start.W.any()):
            return start
        if 1 + NEAR < norm.p < 1 / NEAR:
            engine = resumable(CurvedPoint, norm, paces_of(norm.p), start)
            return working_set.solve_on_pools(program, norm, engine, first_rows(program, start))
        if norm.p < 2:
            return solve_in_stages(program, nuclear, start)
        return solve_in_stages(program, spectral, start, Span.of(program))


def solve_in_stages(
    program: Constraints,
    norm: Norm,
    first: Answer,
    span: Span | None = None,
    engine: type[StagedPath] = StagedPath,
) -> Answer:
    """The central path, on all rows where the program is small, else on a pool that changes.

    first: the Frobenius answer. span: that of all rows, or None where each pool has its own.
    """
    size = _sizes(program)
    candidates = program.active & (size > TINY)
    size = np.where(candidates, size, 1.0)
    # In this unit of W no row of length one has a bound larger than one, whatever the data.
    unit = float((program.bound / size).max())
    program = program.with_required(program.required / unit)
    first, excess = _at_margin_one(program, first)
    best, rows = first, int(np.count_nonzero(candidates))
    compiled = compiled_path.fits(rows, min(program.d, rows), min(program.e, program.n), norm)
    for growth in ATTEMPTS:
        is_first, pool = growth == ATTEMPTS[0], candidates
        if not compiled:
            count = int(growth * max(SMALL_POOL / ATTEMPTS[0], first.carriers))
            hard = least(excess / size, candidates & ~program.tied, count)
            heavy = _heaviest(program.bound, first.multipliers) if is_first and span is None else hard
            pool = candidates & (program.tied | (heavy if np.count_nonzero(heavy) < program.d else hard))
        path = engine(norm, first, STAGES if is_first else (), span, program.library)
        answer = working_set.solve_on_pools(program, norm, path, pool)
        best = min(answer, best, key=lambda answer: answer.gap)
        if best.gap <= CERTIFIABLE or path.solved == rows:
            break
    return replace(best, W=best.W * unit)


def _heaviest(bound: Float, multipliers: Float) -> Bool:
    """The rows (n, T) with the largest multipliers of the Frobenius solution: SHARE of its value."""
    value = np.maximum(multipliers, 0.0) * bound
    falling = np.sort(value, axis=None)[::-1]
    count = int(np.searchsorted(np.cumsum(falling), SHARE * falling.sum()))
    return np.asarray(value >= falling[count])


def _at_margin_one(program: Constraints, answer: Answer) -> tuple[Answer, Float]:
    """The Frobenius solution with the required margins, and what they exceed them by (n, T).

    Where rounding leaves no margin its norm is one.
    """
    margins = program.margins(answer.W)
    least = bounds.least_margin(program, margins)
    size = least if least > 0 else float(np.linalg.norm(answer.W))
    return Answer(answer.W / size, answer.multipliers), margins / size - program.bound


def _sizes(program: Constraints) -> Float:
    """Norms |δ| |z| of the rows (n, T): zero for a token equal to the anchor, or a zero query."""
    out = np.empty(program.active.shape)
    for chunk, delta in program.chunks():
        out[chunk] = np.linalg.norm(delta, axis=-1)
    return out * np.linalg.norm(program.queries, axis=-1)[:, None]
