"""The verbs: max_margin, separate, separable, finite_part."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from attsvm.max_norm import MaxNorm
from attsvm.norms import Entrywise, Norm, Schatten, as_norm, frobenius, is_frobenius
from attsvm.program.asked import as_slack
from attsvm.program.constraints import Constraints
from attsvm.program.copies import without_copies
from attsvm.program.engine import Answer, Route, on_vectors
from attsvm.program.runs import one_by_one, over_runs
from attsvm.program.second_look import second_look
from attsvm.program.soft import solve_soft
from attsvm.program.solution import NotSeparable, Solution, pack
from attsvm.selection import matching_runs
from attsvm.tokens import Tokens


def max_margin(
    tokens: Tokens,
    selected: ArrayLike,
    norm: Norm = frobenius,
    *,
    required: ArrayLike = 1.0,
    slack: ArrayLike | None = None,
) -> Solution:
    """Smallest W that separates the selected tokens from the others.

        min N(W)  subject to  (x_s − x_t)ᵀ W z ≥ required,  s selected, t not

    Several selected tokens in a row are tied: (x_s − x_s')ᵀ W z = 0.

    tokens: keys (n, T, d), queries (n, e); selected: bool (n, T) or indices (n,).
    norm: `frobenius`, `nuclear`, `spectral`, `l1`, `linf`, any `Entrywise(p)` or `Schatten(p)`, `MaxNorm()`.
    required: the margin, one number or one per example (n,). 0 asks only that no other token is above a
        selected one; asked of all examples, W = 0 does.
    slack: None, or the price C of falling short, one number or one per example (n,); ∞ is None:

        min ½‖W‖² + Σ_i C_i ξ_i  subject to  (x_s − x_t)ᵀ W z ≥ required − ξ_i,  ξ ≥ 0

    one hinge per example, Frobenius (l2) only, always with a solution; ties stay equalities.

    Raises NotSeparable, carrying multipliers that prove it. With a runs axis, on the tokens or on the
    selection alone, all problems are solved at once, and a run that cannot be separated is marked in
    `solution.separable` instead.
    Reference: Tarzanagh et al. 2023, "Transformers as Support Vector Machines".
    """
    norm, tokens = as_norm(norm), matching_runs(tokens, selected)
    program = Constraints.of(tokens, selected, required)
    price = as_slack(tokens, slack)
    answer = _answer(program, norm) if price is None else solve_soft(program, norm, price)
    if program.runs is None and not answer.separable:
        from attsvm.program.conflict import explain

        raise NotSeparable(partial(explain, program, norm, answer.multipliers))
    return Solution(
        tokens,
        program.selected,
        norm,
        answer.W,
        pack(program, answer.multipliers),
        program.asked,
        np.asarray(answer.separable),
        price,
    )


def separate(
    rows: ArrayLike,
    norm: Norm = frobenius,
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


def separable(tokens: Tokens, selected: ArrayLike) -> bool | np.ndarray:
    """Whether some W puts the selected tokens above all others: one boolean, with runs (runs,)."""
    tokens = matching_runs(tokens, selected)
    program = Constraints.of(tokens, selected)
    if program.runs is None:
        return bool(_answer(program, frobenius).separable)
    # A second look would improve a weight, of which only the existence is asked.
    return np.asarray(over_runs(lambda part: solved(part, frobenius), program, quick=True).separable)


# ---------------------------------------------------------------------- from rows to an answer


def _answer(program: Constraints, norm: Norm) -> Answer:
    """The answer in the units of the tokens, at margin one, as exact as float64 can hold it."""
    norm = on_vectors(program, norm)

    def work(program: Constraints) -> Answer:
        return second_look(program, norm, in_tokens(program, solved(program, norm)))

    if is_frobenius(norm):  # a small problem takes microseconds, among many, and copies cost little
        return over_runs(work, program, quick=True)
    return over_runs(partial(one_by_one, partial(without_copies, work)), program, quick=False)


def solved(program: Constraints, norm: Norm) -> Answer:
    """By the algorithms of the norm, in the units of the rows."""
    from attsvm.program.frobenius.route import solve_frobenius

    def alone(run: Constraints) -> Answer:
        return route_of(norm)(run, norm, partial(solve_frobenius, run))

    # What over- or underflows on the way is no answer, and the second look sees that.
    with np.errstate(all="ignore"):
        return solve_frobenius(program) if is_frobenius(norm) else one_by_one(alone, program)


def route_of(norm: Norm) -> Route:
    """The algorithms of a norm that is not the Frobenius norm, imported when they are first needed."""
    match norm:
        case Entrywise():
            from attsvm.program.entrywise.route import solve_entrywise

            return solve_entrywise
        case Schatten() | MaxNorm():
            from attsvm.program.schatten.route import solve_schatten

            return solve_schatten
        case _:
            raise ValueError(
                f"no program for the norm {norm}. Supported: Entrywise(p) and Schatten(p), "
                "1 ≤ p ≤ ∞, and MaxNorm()."
            )


def in_tokens(program: Constraints, answer: Answer) -> Answer:
    """The answer in the units of the tokens; a proof that there is none stays in those of the rows."""
    can = np.asarray(answer.separable)
    if not can.any():
        return answer
    W, multipliers = program.weight(answer.W), program.multipliers(answer.multipliers)
    if not can.all():
        multipliers = np.where(can[..., None, None], multipliers, answer.multipliers)
    return replace(answer, W=W, multipliers=multipliers)
