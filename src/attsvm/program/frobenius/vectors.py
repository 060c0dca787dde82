"""Vector problems (e = 1 or d = 1): which of their rows may matter.

min ‖p‖  subject to  z_i (x_a − x_t)ᵀ p ≥ required_i
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool
from attsvm.program.constraints import Constraints
from attsvm.program.frobenius.active_set import DEPENDENT
from attsvm.program.passes import TINY


def tightest(program: Constraints) -> Bool:
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
        delta, length = program.unit_differences(example[tried], token[tried])
        live = length * np.abs(program.queries[example[tried], 0]) > TINY
        tried, delta = tried[live], delta[live]
        if len(tried):
            R, pivot = qr(delta.T, mode="r", pivoting=True)
            kept = tried[pivot[: int((np.abs(np.diagonal(R)) > DEPENDENT).sum())]]
    out = np.zeros(program.tied.shape, bool)
    out[example[kept], token[kept]] = True
    return out
