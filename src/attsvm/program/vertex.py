"""From a nearly optimal pair of the l1 or l∞ program to the vertex beside it.

An interior point sees which rows and which entries of W end at their bounds long before its linear
systems become too ill-conditioned for the last digits. Given those, the vertex is a linear system.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm.norms import Norm
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.working_rows import WorkingRows
from attsvm.tokens import Float

SLIP = 1e-10
"""Violation of a row without a bound, relative to the others' margin, that still counts as none."""


def polish(rows: Constraints, norm: Norm, answer: Answer) -> Answer:
    """The vertex next to a pair (W, λ), or the pair itself if it is the better one.

        l1:  A_SB w = b_S,  A_SBᵀ λ = sign(w)          S: active rows,  B: entries of W that are not zero
        l∞:  A_SF w + (A_SC σ) τ = b_S,  A_SFᵀ λ = 0   F: entries inside ±τ,  C: entries at σ τ

    Both systems are solved for corrections of least length, so that a degenerate vertex moves little.
    """
    chosen = answer.multipliers != 0
    work = WorkingRows.of(rows, chosen)
    size = float(norm.value(answer.W))
    multipliers = answer.multipliers[chosen] * work.length
    multipliers = multipliers / float(norm.dual.value(work.combine(multipliers)))
    W, bound, M = answer.W / size, work.bound / size, work.combine(multipliers).ravel()
    active = work.tied | (work.margins(W) - bound < multipliers)
    ball = _cross_polytope if norm.p == 1 else _cube
    matrix, w, goal, weight = ball(work.dense()[active], W.ravel(), M)
    w = w + _least(matrix, bound[active] - matrix @ w)
    exact = np.zeros(work.k)
    exact[active] = multipliers[active] + _least(matrix.T, goal - matrix.T @ multipliers[active])
    full = np.zeros(chosen.shape)
    full[chosen] = np.where(work.tied, exact, np.maximum(exact, 0.0)) / work.length
    W = size * weight(w).reshape(W.shape)
    # W and λ are judged apart: each vertex counts even if the other fails.
    return Answer(
        min(answer.W, W, key=lambda W: upper(rows, norm, W)),
        max(answer.multipliers, full, key=lambda multipliers: lower(rows, norm, multipliers)),
    )


def gap(rows: Constraints, norm: Norm, answer: Answer) -> float:
    """1 − lower/upper bound on the best norm."""
    return 1.0 - lower(rows, norm, answer.multipliers) / upper(rows, norm, answer.W)


def upper(rows: Constraints, norm: Norm, W: Float) -> float:
    """N(W) / least margin, an upper bound on the best norm; ∞ if W fails a row."""
    margins, counted = rows.margins(W), rows.bound > 0
    least = float((margins[counted] / rows.bound[counted]).min())
    off = np.where(rows.tied, np.abs(margins), np.where(rows.separating & ~counted, -margins, 0.0))
    if not least > 0 or float(off.max()) > SLIP * least * float(rows.bound.max()):
        return np.inf
    return float(norm.value(W)) / least


def lower(rows: Constraints, norm: Norm, multipliers: Float) -> float:
    """Σ λ_j b_j / N*(Σ λ_j A_j), a lower bound on the best norm."""
    steep = float(norm.dual.value(rows.combine(multipliers)))
    return float((multipliers * rows.bound).sum()) / steep if steep > 0 else -np.inf


Weight = Callable[[Float], Float]


def _cross_polytope(features: Float, W: Float, M: Float) -> tuple[Float, Float, Float, Weight]:
    """Unknowns: the entries of W away from zero, where |M| is closer to 1 than W to 0."""
    basic = np.abs(W) > 1.0 - np.abs(M)

    def weight(w: Float) -> Float:
        out = np.zeros_like(W)
        out[basic] = w
        return out

    return features[:, basic], W[basic], np.sign(W[basic]), weight


def _cube(features: Float, W: Float, M: Float) -> tuple[Float, Float, Float, Weight]:
    """Unknowns: the entries of W inside the cube, and its size τ."""
    free, sign = np.abs(M) < 1.0 - np.abs(W), np.sign(W)
    matrix = np.column_stack([features[:, free], features[:, ~free] @ sign[~free]])

    def weight(w: Float) -> Float:
        out = sign * w[-1]
        out[free] = w[:-1]
        return out

    ones = np.zeros(matrix.shape[1])
    ones[-1] = 1.0
    return matrix, np.append(W[free], 1.0), ones, weight


def _least(matrix: Float, right: Float) -> Float:
    """The shortest solution of a linear system, by least squares if there is none."""
    return np.linalg.lstsq(matrix, right, rcond=1e-12)[0]
