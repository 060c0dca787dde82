"""The papers' hypotheses about a solution, as tests: support, label margins, cones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import minimize
from scipy.special import softmax

from attsvm.data.selection import as_selected
from attsvm.data.tokens import Tokens
from attsvm.norms import Norm, frobenius
from attsvm.numbers import Float
from attsvm.program.certificate import TOLERANCE
from attsvm.program.max_margin import label_svm, max_margin, separable, separate
from attsvm.program.solution import NotSeparable, Solution

LEAST_LEAK = 1e-6
"""Attention that a weight must leave to other tokens for its cost to count."""


def all_tokens_support(solution: Solution) -> Any:
    """Assumption B.1: every token that is not selected has an active constraint."""
    active = (solution.support | ~solution.constraints.separating).all((-2, -1))
    return bool(active) if active.ndim == 0 else active


def leakage_cost(
    tokens: Tokens, selected: ArrayLike, *, starts: int = 100, seed: int = 0, norm: Norm | str = frobenius
) -> float:
    """An upper bound on ν of the label-margin assumption, the share of the label margin that a leak costs.

        ν = inf over W of (Γ − Γ(W)) / max_i (1 − s_{iα_i}),   s_i = softmax(X_i W z_i)

    Γ(W) is the label margin of the features X_iᵀ s_i, Γ that of the selected tokens. Weights are drawn at
    many lengths, alone and beside the max-margin direction, and a search goes on from the best. The bound is
    the cost of a weight, so a value ≤ 0 refutes the assumption; a positive one does not confirm it.
    """
    selection = as_selected(tokens, selected)
    best = label_svm(tokens, selected, norm).margin
    size = 1 / max(float(np.max(tokens.key_size) * np.max(tokens.query_size)), np.finfo(float).tiny)

    def cost(weight: Float) -> float:
        with np.errstate(over="ignore"):
            logits = np.matmul(
                tokens.keys, (tokens.queries @ weight.reshape(tokens.d, tokens.e).T)[..., None]
            )
        attention = softmax(np.where(tokens.mask, logits[..., 0], -np.inf), axis=-1)
        leak = (1 - attention[selection]).max()
        # A smaller leak costs no more than rounding of the margins.
        return (best - _label_margin(tokens, attention, norm)) / leak if leak > LEAST_LEAK else np.inf

    rng = np.random.default_rng(seed)
    weights = (
        rng.standard_normal((starts, tokens.d * tokens.e)) * size * 10 ** rng.uniform(-2, 2, (starts, 1))
    )
    if separable(tokens, selected):
        direction = max_margin(tokens, selected).W.ravel()
        weights[::2] += direction * 10 ** rng.uniform(-1, 1.2, (len(weights[::2]), 1))
    costs = [cost(weight) for weight in weights]
    refined = minimize(cost, weights[np.argmin(costs)], method="Nelder-Mead", options={"maxfev": 2 * starts})
    return float(min(*costs, refined.fun))


def in_cone(W: Float, solution: Solution, width: float, radius: float = 0.0) -> Any:
    """Whether W is in the cone around the solution: cosine ≥ 1 − width and ‖W‖_F ≥ radius."""
    cosine = (_unit(W) * _unit(solution.W)).sum((-2, -1))
    return (cosine >= 1 - width) & (frobenius.value(W) >= radius)


def in_margin_cone(W: Float, solution: Solution, fraction: float) -> Any:
    """Whether every margin of W/‖W‖_F is at least that fraction of the solution's: the global cone S̄_μ.

    The solution's margins are its required ones over ‖W‖_F, one by default.
    """
    rows = solution.constraints
    margins = rows.token_margins(_unit(W))
    rounding = TOLERANCE * rows.units.required.max(-1, keepdims=True)  # a margin of zero may come out below
    bound = (fraction * solution.required - rounding) / frobenius.value(solution.W)[..., None]
    return ((margins >= bound[..., None]) | ~rows.separating).all((-2, -1))


def _unit(W: Float) -> Float:
    """W/‖W‖_F, zero where W is: products of such weights do not overflow."""
    size = np.asarray(frobenius.value(W))[..., None, None]
    return np.asarray(W / np.where(size > 0, size, 1.0))


def _label_margin(tokens: Tokens, attention: Float, norm: Norm | str) -> float:
    pooled = np.matmul(attention[:, None, :], tokens.values)[:, 0]
    try:
        return float(separate(tokens.labels[:, None] * pooled, norm).margin)
    except NotSeparable:
        return 0.0
