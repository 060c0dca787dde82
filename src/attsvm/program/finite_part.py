"""The finite component of Gen-SVM: how a weight divides attention among the tokens it selects."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator, lsmr

from attsvm.program.constraints import Constraints
from attsvm.tokens import Float, Tokens, as_attention

CONSISTENT = 1e-8
"""Largest error of a logit difference, relative to the largest one, that counts as solved."""


def finite_part(tokens: Tokens, attention: ArrayLike, selected: ArrayLike) -> Float:
    """Smallest W that divides attention among the selected tokens as given.

        min ‖W‖_F  subject to  (x_s − x_t)ᵀ W z = log(s_s / s_t),  s, t selected

    Training with a head that selects several tokens is predicted to end near C·W^mm + W^fin, with W^mm
    the solution of `max_margin` for the same selection; the two are orthogonal.

    tokens: keys (n, T, d), queries (n, e); attention (n, T); selected: bool (n, T).
    Returns W (d, e), with runs (runs, d, e). Raises ValueError when no W gives these ratios.
    Reference: Tarzanagh et al. 2023, "Transformers as Support Vector Machines", generalised SVM.
    """
    rows = Constraints.of(tokens, selected)
    s = np.broadcast_to(as_attention(attention), rows.active.shape)
    if (s[rows.tied] <= 0).any():
        raise ValueError("a selected token has attention 0. Select only tokens with positive attention.")
    if rows.runs is not None:
        return np.stack([_solve(rows.run(k), s[k]) for k in range(rows.runs)])
    return _solve(rows, s)


def _solve(rows: Constraints, attention: Float) -> Float:
    at_anchor = np.take_along_axis(attention, rows.anchor[:, None], axis=-1)
    ratio = np.where(rows.tied, at_anchor / np.where(rows.tied, attention, 1.0), 1.0)
    # In the units of the rows, where a difference of example i is 2^−exponent times as large.
    target = np.ldexp(np.log(ratio), -rows.exponent[:, None])[rows.tied]
    shape = (rows.d, rows.e)
    if not target.any():
        return np.zeros(shape)

    def forward(W: Float) -> Float:
        return rows.margins(W.reshape(shape))[rows.tied]

    def adjoint(multipliers: Float) -> Float:
        spread = np.zeros(rows.active.shape)
        spread[rows.tied] = multipliers
        return rows.combine(spread).ravel()

    system = LinearOperator((target.size, rows.d * rows.e), matvec=forward, rmatvec=adjoint, dtype=float)
    W = lsmr(system, target, atol=1e-15, btol=1e-15, maxiter=20 * target.size + 100)[0]
    error = np.abs(forward(W) - target).max()
    if error > CONSISTENT * np.abs(target).max():
        raise ValueError(
            f"no W divides attention like this: the ratios of {target.size} pairs contradict each other "
            f"(best fit misses a logit difference by {error:.2g}). Select fewer tokens."
        )
    return W.reshape(shape)
