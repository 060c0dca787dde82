"""The verbs: max_margin, separate, label_svm, separable."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data.selection import as_selected, matching_runs
from attsvm.data.tokens import Tokens
from attsvm.norms import Norm, frobenius
from attsvm.norms.names import as_norm
from attsvm.numbers import Bool
from attsvm.program.answer import over_runs
from attsvm.program.certificate import TOLERANCE
from attsvm.program.constraints import Constraints, as_required, as_slack
from attsvm.program.solution import NotCertified, NotSeparable, Solution
from attsvm.program.solve import by_engines, solve


def max_margin(
    tokens: Tokens,
    selected: ArrayLike,
    norm: Norm | str = frobenius,
    *,
    required: ArrayLike = 1.0,
    slack: ArrayLike | None = None,
) -> Solution:
    """Smallest W that separates the selected tokens from the others.

        min N(W)  subject to  (x_s − x_t)ᵀ W z ≥ required,  s selected, t not

    Several selected tokens in a row are tied: (x_s − x_s')ᵀ W z = 0.

    tokens: keys (n, T, d), queries (n, e); selected: bool (n, T) or indices (n,).
    norm: `frobenius`, `nuclear`, `spectral`, `l1`, `linf`, any `Entrywise(p)` or `Schatten(p)`,
        one that has a route of its own, or its name: "nuclear", "lp:1.5".
    required: the margin, one number or one per example (n,). 0 asks only that no other token is above a
        selected one; asked of all examples, W = 0 does.
    slack: None, or the price C of falling short, one number or one per example (n,); ∞ is None:

        min ½‖W‖² + Σ_i C_i ξ_i  subject to  (x_s − x_t)ᵀ W z ≥ required − ξ_i,  ξ ≥ 0

    one hinge per example, Frobenius (l2) only, always with a solution; ties stay equalities.

    Raises NotSeparable, carrying multipliers that prove it. With a runs axis, on the tokens or on the
    selection alone, all problems are solved at once, and a run that cannot be separated is marked in
    `solution.separable` instead. A solution that no engine could prove optimal comes with the warning
    `NotCertified`.
    Reference: Tarzanagh et al. 2023, "Transformers as Support Vector Machines".
    """
    norm, tokens = as_norm(norm), matching_runs(tokens, selected)
    margins, price = as_required(tokens, required), as_slack(tokens, slack)
    program = Constraints.of(tokens, selected, margins, price)
    answer = solve(program, norm)
    if program.runs is None and not answer.separable:
        from attsvm.program.conflict import explain

        raise NotSeparable(partial(explain, program, norm, answer.multipliers))
    separable = np.asarray(answer.separable)
    W, multipliers, rounded = program.units.restored(answer.W, answer.multipliers, separable)
    solution = Solution(
        tokens,
        program.selected,
        norm,
        W,
        program.pack(multipliers),
        margins,
        separable,
        price,
    )
    solution.__dict__["constraints"] = program  # what its cached property would compute again
    doubtful = separable & ((np.asarray(answer.gap) > TOLERANCE) | rounded)
    if doubtful.any():
        certificate = solution.certificate
        uncertified = np.flatnonzero(doubtful & (certificate.worst > TOLERANCE))
        if len(uncertified):
            warnings.warn(NotCertified.of(solution, certificate, uncertified), stacklevel=2)
    return solution


def separate(
    rows: ArrayLike,
    norm: Norm | str = frobenius,
    *,
    required: ArrayLike = 1.0,
    slack: ArrayLike | None = None,
) -> Solution:
    """Smallest w with rows·w ≥ required: the program without tokens.

        min N(w)  subject to  a_jᵀ w ≥ b_j

    rows (m, d); required: one number or one per row (m,). The solution's W is (d, 1).
    The v-SVM of labelled features is `separate(labels[:, None] * features)`; with slack=C it is the
    linear SVM of LIBLINEAR (hinge loss, no intercept). NotSeparable speaks of row j as of example j, whose
    token 0 is the row and whose token 1 is zero.
    """
    array = np.asarray(rows, dtype=np.float64)
    if array.ndim != 2 or not array.size:
        raise ValueError(f"rows has shape {array.shape}. Pass one row per constraint: (m, d).")
    if not np.isfinite(array).all():
        raise ValueError(f"row {np.argwhere(~np.isfinite(array))[0, 0]} of rows has a NaN or infinite entry.")
    # Each row is the difference between a token and a second token at the origin.
    keys = np.stack([array, np.zeros_like(array)], axis=1)
    return max_margin(Tokens(keys), np.zeros(len(keys), int), norm, required=required, slack=slack)


def label_svm(tokens: Tokens, selected: ArrayLike, norm: Norm | str = frobenius) -> Solution:
    """The head that separates the labels of the selected tokens with the largest margin.

        v^mm = argmin N(v)  subject to  Y_i vᵀ x_{iα_i} ≥ 1

    selected: one token per example. The solution's W is v (c, 1).
    """
    selection = as_selected(tokens, selected)
    if tokens.runs is not None:
        raise ValueError(f"the tokens have {tokens.runs} runs. Pass those of one: tokens.run(0).")
    several = np.flatnonzero(selection.sum(-1) > 1)
    if several.size:
        raise ValueError(
            f"selected picks {int(selection[several[0]].sum())} tokens in example {several[0]}. "
            "Pass one token per example: the label of a mixture depends on its shares."
        )
    features = tokens.values[np.arange(tokens.n), selection.argmax(-1)]
    return separate(tokens.labels[:, None] * features, norm)


def label_support(head: Solution) -> Bool:
    """Examples whose label margin is tight, bool (n,): S in the joint theorems; the others relax."""
    return np.asarray(head.support.any(-1))


def separable(tokens: Tokens, selected: ArrayLike) -> bool | np.ndarray:
    """Whether some W puts the selected tokens above all others: one boolean, with runs (runs,)."""
    tokens = matching_runs(tokens, selected)
    program = Constraints.of(tokens, selected)
    if program.runs is None:
        return bool(solve(program, frobenius).separable)
    # To refine a weight would not change whether there is one.
    return np.asarray(over_runs(partial(by_engines, norm=frobenius), program, quick=True).separable)
