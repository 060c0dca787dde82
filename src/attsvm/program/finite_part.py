"""The finite component of Gen-SVM: how a weight divides attention among the tokens it selects."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse.linalg import LinearOperator, lsmr

from attsvm.data.selection import as_attention
from attsvm.data.tokens import Tokens
from attsvm.numbers import Float
from attsvm.program.constraints import Constraints
from attsvm.program.units import in_range

CONSISTENT = 1e-8
"""Largest error of a logit difference, relative to the largest one, that counts as solved."""

WRITTEN = 1 << 18
"""Most numbers in rows that are written out."""


Smallest = Callable[[Float, Float, Float, Float], Float]
"""(δ (k, d), z (k, e), margins (k,), W (d, e)) ↦ a smaller weight with the same margins in another norm."""


def finite_part(tokens: Tokens, attention: ArrayLike, selected: ArrayLike) -> Float:
    """Smallest W that divides attention among the selected tokens as given.

        min ‖W‖_F  subject to  (x_s − x_t)ᵀ W z = log(s_s / s_t),  s, t selected

    Training with a head that selects several tokens is predicted to end near C·W^mm + W^fin, with W^mm
    the solution of `max_margin` for the same selection; the two are orthogonal. In other norms see
    `finite_part_in` of attsvm_lab.programs.

    tokens: keys (n, T, d), queries (n, e); attention (n, T); selected: bool (n, T).
    Returns W (d, e), with runs (runs, d, e). Raises ValueError when no W gives these ratios.
    Reference: Tarzanagh et al. 2023, "Transformers as Support Vector Machines", generalised SVM.
    """
    return divided(tokens, attention, selected, lambda delta, queries, margins, W: W)


def divided(tokens: Tokens, attention: ArrayLike, selected: ArrayLike, smallest: Smallest) -> Float:
    """The smallest W that divides attention as given, by what makes the one of the Frobenius norm smaller."""
    program = Constraints.of(tokens, selected)
    s = np.broadcast_to(as_attention(attention), program.active.shape)
    if (s[program.tied] <= 0).any():
        raise ValueError("a selected token has attention 0. Select only tokens with positive attention.")
    if program.runs is not None:
        return np.stack([_divided(run, shares, smallest) for run, shares in program.each_run(s)])
    return _divided(program, s, smallest)


def _divided(program: Constraints, attention: Float, smallest: Smallest) -> Float:
    """Rows of length one, so that tokens near each other count as much as others."""
    example, token = np.nonzero(program.tied)
    target = np.log(attention[example, program.anchor[example]]) - np.log(attention[example, token])
    shape = (program.d, program.e)
    if not target.any():
        return np.zeros(shape)
    delta, queries = _unit(program.differences(example, token)), _unit(program.queries[example])
    length = delta.length * queries.length
    if (zero := (length == 0) & (target != 0)).any():
        raise _contradiction(program, example[zero][0], token[zero][0])
    right, power = np.frexp(target / np.where(length > 0, length, 1.0))
    power = power - program.units.exponent[example]
    top = int(power[right != 0].max())
    right = np.ldexp(right, np.clip(power - top, -2000, 0))
    for solve in (_by_products, _by_singular_values):
        W = solve(delta.unit, queries.unit, right)
        with np.errstate(over="ignore", invalid="ignore"):  # in logits a short row counts as others do
            logit = np.ldexp(length, program.units.exponent[example] + top)
            error = logit * np.abs(_margins(delta.unit, queries.unit, W) - right)
        if error.max() <= CONSISTENT * np.abs(target).max():
            W = smallest(delta.unit, queries.unit, right, W)
            return in_range("W", W, np.asarray(top))
        if delta.unit.size * program.e > WRITTEN:
            break
    raise _contradiction(program, example[error.argmax()], token[error.argmax()])


def _margins(delta: Float, queries: Float, W: Float) -> Float:
    """δ_jᵀ W z_j (k,)."""
    return np.asarray(np.einsum("jd,de,je->j", delta, W, queries, optimize=True))


def _by_products(delta: Float, queries: Float, right: Float) -> Float:
    """The least W (d, e) with δ_jᵀ W z_j = right_j."""
    shape = delta.shape[1], queries.shape[1]

    def adjoint(multipliers: Float) -> Float:
        return ((multipliers[:, None] * delta).T @ queries).ravel()

    system = LinearOperator(
        (len(delta), math.prod(shape)),
        matvec=lambda W: _margins(delta, queries, W.reshape(shape)),
        rmatvec=adjoint,
        dtype=float,
    )
    W = lsmr(system, right, atol=1e-15, btol=1e-15, maxiter=20 * len(delta) + 100)[0]
    return np.asarray(W.reshape(shape))


def _by_singular_values(delta: Float, queries: Float, right: Float) -> Float:
    """The same of few rows that are nearly parallel; what rounding leaves is solved for again."""
    rows = (delta[:, :, None] * queries[:, None]).reshape(len(delta), -1)
    W = np.linalg.lstsq(rows, right, rcond=None)[0]
    W = W + np.linalg.lstsq(rows, right - rows @ W, rcond=None)[0]
    return np.asarray(W.reshape(delta.shape[1], queries.shape[1]))


def _contradiction(program: Constraints, example: np.intp, token: np.intp) -> ValueError:
    return ValueError(
        f"no W divides attention like this: the ratios of {int(program.tied.sum())} pairs contradict each "
        f"other, or nearly, first of all that of token {token} in example {example}. Select fewer tokens."
    )


class _Unit(NamedTuple):
    unit: Float
    length: Float


def _unit(vectors: Float) -> _Unit:
    """Vectors (k, ·) at length one and their lengths; a zero vector stays, with length 0."""
    size = np.abs(vectors).max(-1, keepdims=True)
    scaled = vectors / np.where(size > 0, size, 1.0)
    length = np.sqrt((scaled * scaled).sum(-1, keepdims=True))
    return _Unit(scaled / np.where(length > 0, length, 1.0), (size * length)[:, 0])
