"""The papers' hypotheses about a solution, as tests: support, label margins, cones."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data.selection import as_selected
from attsvm.data.tokens import Tokens
from attsvm.norms import Norm, frobenius
from attsvm.numbers import Float
from attsvm.program.certificate import TOLERANCE
from attsvm.program.max_margin import label_svm, separate
from attsvm.program.solution import NotSeparable, Solution


def all_tokens_support(solution: Solution) -> Any:
    """Assumption B.1: every token that is not selected has an active constraint."""
    active = (solution.support | ~solution.constraints.separating).all((-2, -1))
    return bool(active) if active.ndim == 0 else active


def leakage_cost(
    tokens: Tokens, selected: ArrayLike, *, samples: int = 200, seed: int = 0, norm: Norm | str = frobenius
) -> float:
    """Estimate of ν in the label-margin assumption: what leaking attention costs at least.

        ν = min over p of (Γ − Γ(p)) / max_i (1 − s_{iα_i})

    Γ(p) is the label margin of the pooled features X_iᵀ s_i. Random attention vectors around the
    selection are tried, so the result is an upper bound of ν; a value ≤ 0 refutes the assumption.
    """
    selection = as_selected(tokens, selected)
    best = label_svm(tokens, selected, norm).margin
    rng = np.random.default_rng(seed)
    costs = []
    for _ in range(samples):
        leak = rng.dirichlet(np.ones(tokens.T), size=tokens.n) * tokens.mask
        leak /= leak.sum(-1, keepdims=True)
        amount = rng.random((tokens.n, 1)) ** 3 * (rng.random((tokens.n, 1)) < 0.7)
        attention = (1 - amount) * selection + amount * leak
        lost = (1 - attention[selection]).max()
        if lost > 1e-6:
            costs.append((best - _label_margin(tokens, attention, norm)) / lost)
    return float(min(costs))


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
