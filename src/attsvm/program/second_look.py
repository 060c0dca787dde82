"""A second look at answers that rounding may have spoilt; what float64 cannot finish goes the careful way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.norms import Norm
from attsvm.numbers import Bool, Float
from attsvm.program.certificate import EPSILON, TOLERANCE, certify, certify_soft
from attsvm.program.constraints import Constraints
from attsvm.program.engine import Answer
from attsvm.program.runs import each_run

SURE = 5e-11
"""Relative effect of rounding that needs no second look."""

FINE_GAP, GAP_ENOUGH = 1e-10, 0.5 * TOLERANCE
"""Largest violation or gap that is left as it is: Frobenius algorithms end exactly, the others near 1e-9."""

QUICK = 1_000_000
"""Operations of a careful step that take a moment only."""

PROVEN = 1e-11
"""|Σ λ_j A_j| per Σ λ_j |A_j| of a contradiction: a weight against it would be too long for float64."""


def second_look(program: Constraints, norm: Norm, answer: Answer) -> Answer:
    """The answer, in the units of the tokens, or a better one; see `Answer`."""
    if program.runs is None:
        return answer if answer.separable and _sure(program, norm, answer) else _one(program, norm, answer)
    can = np.array(answer.separable)
    good = np.where(can, _sure(program, norm, answer), can.all() or _proven(program, answer.multipliers))
    doubtful = np.flatnonzero(~good).tolist()
    runs = each_run(program, answer.W, answer.multipliers, can[:, None], which=doubtful)
    for one, W, multipliers, separable in runs:
        better = _one(one, norm, Answer(W, multipliers, bool(separable)))
        W[...], multipliers[...], separable[...] = better.W, better.multipliers, better.separable
    return replace(answer, separable=can)


def second_look_soft(program: Constraints, slack: Float, answer: Answer) -> Answer:
    """The same for a soft margin; slack (n,): C in the units of the tokens."""
    worst = certify_soft(program, answer.W, answer.multipliers, slack).worst
    if worst <= GAP_ENOUGH:
        return answer
    from attsvm.program.careful.route import solve_soft_carefully

    better = solve_soft_carefully(program)
    if better is None:
        return answer
    better = Answer(
        program.weight(better.W), np.ldexp(better.multipliers, (program.unit - program.exponent)[:, None])
    )
    return better if certify_soft(program, better.W, better.multipliers, slack).worst < worst else answer


def _tolerated(program: Constraints, norm: Norm) -> float:
    """Frobenius answers of small programs to more digits: there another look takes a moment."""
    unknowns = program.d * program.e
    count = min(program.n * program.T, 2 * unknowns + 50)
    return FINE_GAP if norm.p == 2 and count**2 * (count + unknowns) <= QUICK else GAP_ENOUGH


def _sure(program: Constraints, norm: Norm, answer: Answer) -> Bool:
    """Where neither the gap nor rounding can keep an answer from its certificate.

    Rounding moves the margins of W by ε |A| |W| at most, relative to the bounds, and Σ λ_j A_j by as much, in
    the Frobenius norm; in another by up to (d e)^|1/p − 1/2| times that.
    """
    if program.relaxed:
        return np.zeros(program.unit.shape, bool)
    one, unknowns = program.runs is None, program.d * program.e
    W = np.ldexp(answer.W, -program.unit[..., None, None]) if program.unit.any() else answer.W
    square = float(np.vdot(W, W)) if one else np.einsum("rde,rde->r", W, W)
    longest = (program.reach / program.required).max(-1)
    few = np.count_nonzero(answer.multipliers) if one else program.active[0].size
    spread = (unknowns + few) * unknowns ** abs(1 / norm.p - 0.5) * EPSILON * longest * square**0.5
    return np.asarray(answer.separable & (spread <= SURE) & (answer.gap <= _tolerated(program, norm) - SURE))


def _one(program: Constraints, norm: Norm, answer: Answer) -> Answer:
    answer = answer.finite()
    if answer.separable:
        worst = certify(program, norm, answer.W, answer.multipliers).worst
        if worst <= _tolerated(program, norm):
            return answer
    elif _proven(program, answer.multipliers):
        return answer
    else:
        worst = np.inf
    from attsvm.program.careful.route import solve_carefully

    better = solve_carefully(program, norm, near=np.ldexp(answer.W, -program.unit))
    if better is None:
        return answer
    better = replace(better, W=program.weight(better.W), multipliers=program.multipliers(better.multipliers))
    return better if certify(program, norm, better.W, better.multipliers).worst < worst else answer


def _proven(program: Constraints, multipliers: Float) -> Bool:
    """Where the multipliers, in the units of the rows, leave no W of a length that float64 could hold."""
    at, count = np.nonzero(multipliers), program.runs or 1
    delta = program.keys[(*at[:-1], program.anchor[at[:-1]])] - program.keys[at]
    queries, asks, weight = program.queries[at[:-1]], program.bound[at] > 0, multipliers[at]
    share = np.abs(weight) * np.linalg.norm(delta, axis=1) * np.linalg.norm(queries, axis=1)
    zero, run = asks & ~(delta.any(1) & queries.any(1)), at[0] if program.runs else np.zeros_like(at[0])
    # Of one run, which may be large, only the rows that are named are read.
    M = program.combine(multipliers) if program.runs else ((weight[:, None] * delta).T @ queries)[None]
    total, counted = np.sqrt(np.einsum("rde,rde->r", M, M)), np.bincount(run, share * asks, count)
    good = (np.bincount(run, zero, count) > 0) | (total <= PROVEN * counted)
    return np.asarray(good if program.runs else good[0])
