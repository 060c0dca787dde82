"""A second look at answers that rounding may have spoilt; what float64 cannot finish goes the careful way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.norms import Norm
from attsvm.numbers import Bool, Float
from attsvm.program.certificate import EPSILON, TOLERANCE, certify, certify_soft
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer

SURE = 5e-11
"""Relative effect of rounding that needs no second look."""

FINE, ENOUGH = 1e-10, 0.5 * TOLERANCE
"""Largest violation or gap that is left as it is: Frobenius algorithms end exactly, the others near 1e-9."""

QUICK = 1_000_000
"""Operations of a careful step that take a moment only."""

PROVEN = 1e-11
"""|Σ λ_j A_j| per Σ λ_j |A_j| of a contradiction: a weight against it would be too long for float64."""


def second_look(rows: Constraints, norm: Norm, answer: Answer) -> Answer:
    """The answer, in the units of the tokens, or a better one; see `Answer`."""
    if rows.runs is None:
        return answer if answer.separable and _sure(rows, norm, answer) else _one(rows, norm, answer)
    doubtful = np.flatnonzero(np.asarray(answer.separable) & ~_sure(rows, norm, answer))
    for k in doubtful.tolist():
        alone = Answer(answer.W[k], answer.multipliers[k])
        better = _one(rows.run(k), norm, alone)
        answer.W[k], answer.multipliers[k] = better.W, better.multipliers
    return answer


def second_look_soft(rows: Constraints, slack: Float, scaled: Float, answer: Answer) -> Answer:
    """The same for a soft margin; slack (n,): C, scaled (n,): C in the units of the rows."""
    worst = certify_soft(rows, answer.W, answer.multipliers, slack).worst
    if worst <= ENOUGH:
        return answer
    from attsvm.program.careful.solve import solve_soft

    better = solve_soft(rows, scaled)
    if better is None:
        return answer
    better = Answer(rows.weight(better.W), np.ldexp(better.multipliers, (rows.unit - rows.exponent)[:, None]))
    return better if certify_soft(rows, better.W, better.multipliers, slack).worst < worst else answer


def _tolerated(rows: Constraints, norm: Norm) -> float:
    """Frobenius answers of small programs to more digits: there another look takes a moment."""
    unknowns = rows.d * rows.e
    count = min(rows.n * rows.T, 2 * unknowns + 50)
    return FINE if norm.p == 2 and count**2 * (count + unknowns) <= QUICK else ENOUGH


def _sure(rows: Constraints, norm: Norm, answer: Answer) -> Bool:
    """Where neither the gap nor rounding can keep an answer from its certificate.

    Rounding moves the margins of W by ε |A| |W| at most, relative to the bounds, and Σ λ_j A_j by as much, in
    the Frobenius norm; in another by up to (d e)^|1/p − 1/2| times that.
    """
    if rows.relaxed:
        return np.zeros(rows.unit.shape, bool)
    one, unknowns = rows.runs is None, rows.d * rows.e
    W = np.ldexp(answer.W, -rows.unit[..., None, None]) if rows.unit.any() else answer.W
    square = float(np.vdot(W, W)) if one else np.einsum("rde,rde->r", W, W)
    longest = (rows.reach / rows.required).max(-1)
    few = np.count_nonzero(answer.multipliers) if one else rows.active[0].size
    spread = (unknowns + few) * unknowns ** abs(1 / norm.p - 0.5) * EPSILON * longest * square**0.5
    return np.asarray(answer.separable & (spread <= SURE) & (answer.gap <= _tolerated(rows, norm) - SURE))


def _one(rows: Constraints, norm: Norm, answer: Answer) -> Answer:
    answer = answer.finite()
    if answer.separable:
        worst = certify(rows, norm, answer.W, answer.multipliers).worst
        if worst <= _tolerated(rows, norm):
            return answer
    elif _proven(rows, answer.multipliers):
        return answer
    else:
        worst = np.inf
    from attsvm.program.careful.solve import solve

    better = solve(rows, norm, near=np.ldexp(answer.W, -rows.unit))
    if better is None:
        return answer
    better = replace(better, W=rows.weight(better.W), multipliers=rows.multipliers(better.multipliers))
    return better if certify(rows, norm, better.W, better.multipliers).worst < worst else answer


def _proven(rows: Constraints, multipliers: Float) -> bool:
    """Whether the multipliers, in the units of the rows, leave no W of a length that float64 could hold."""
    example, token = np.nonzero(multipliers)
    delta, queries = rows.differences(example, token), rows.queries[example]
    weight, asks = multipliers[example, token], rows.bound[example, token] > 0
    zero = ~(delta.any(1) & queries.any(1))
    if (zero & asks).any():
        return True
    total = np.linalg.norm((weight[:, None] * delta).T @ queries)
    length = np.linalg.norm(delta, axis=1) * np.linalg.norm(queries, axis=1)
    return bool(total <= PROVEN * float(np.abs(weight[asks]) @ length[asks]))
