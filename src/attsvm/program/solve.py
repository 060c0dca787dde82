"""From a program to its answer: the engines of the norm, then extended precision where rounding leaves doubt.

Programs and answers are in the units of the scaled rows; `Units.restored` changes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Protocol

import numpy as np

from attsvm.norms import Entrywise, Norm, Schatten, capabilities_of, frobenius
from attsvm.norms.capabilities import changes_a_rule
from attsvm.numbers import Bool, Float
from attsvm.numbers.threads import single_thread
from attsvm.program import working_set
from attsvm.program.answer import Answer, in_batch, one_by_one, over_runs, with_runs_replaced, without_copies
from attsvm.program.certificate import EPSILON, TOLERANCE, certify_scaled
from attsvm.program.constraints import Constraints

ROUNDING = 5e-11
"""Relative effect of rounding that puts no answer in doubt."""

FINE_GAP, GAP_ENOUGH = 1e-10, 0.5 * TOLERANCE
"""Largest violation or gap that is not refined: Frobenius algorithms end exactly, the others near 1e-9."""

QUICK = 1_000_000
"""Operations of a step in extended precision that take milliseconds."""

PROVEN = 1e-11
"""|Σ λ_j A_j| per Σ λ_j |A_j| of a contradiction: a weight against it would be too long for float64."""

SOFT_ROWS = 256
"""Rows of a soft margin up to which loops on the Gram matrix are faster than steps in W."""

SOFT_GAP = 0.1 * TOLERANCE
"""Violation or gap of a soft margin above which the other engine is tried."""

WHOLE_KEYS = 1 << 18
"""Entries of the keys up to which the first pool of a soft margin has every row (2 MB)."""

PROBE, SHARE = 16, 1 / 16
"""The first pool of larger soft margins: rows per unknown, and the least share of the examples.
The support of a soft margin grows with n: a share of all examples falls short."""


def solve(program: Constraints, norm: Norm) -> Answer:
    """The best answer that float64 can hold, of every run; its gap is that of its certificate.

    Where rounding cannot have spoilt the answer, the gap is that of the engine, which is below the tolerance.
    """
    name, traits = str(norm), capabilities_of(norm)
    if min(program.d, program.e) == 1:
        norm = (traits.on_column if program.e == 1 else traits.on_row) or norm
    euclidean = capabilities_of(norm).euclidean
    if program.units.soft and not euclidean:
        raise ValueError(f"slack needs the Frobenius (l2) norm but norm is {name}. Pass norm=frobenius.")
    if program.units.soft:
        few = program.fits() and program.n * max(program.T - 1, 1) <= SOFT_ROWS
        return over_runs(_soft_runs if few else partial(one_by_one, _soft), program, quick=few)

    def hard(program: Constraints) -> Answer:
        answer = by_engines(program, norm)
        if not euclidean:
            from attsvm.program.polish import polished

            answer = polished(program, norm, answer)
        return refined(program, norm, _sized(program, norm, answer))

    if euclidean:  # small problems take microseconds together, and repeated examples cost little
        return over_runs(hard, program, quick=True)
    return over_runs(partial(one_by_one, partial(without_copies, hard)), program, quick=False)


def by_engines(program: Constraints, norm: Norm) -> Answer:
    """The answer of the norm's algorithms."""
    from attsvm.program.frobenius.route import solve_frobenius

    def run_by_route(run: Constraints) -> Answer:
        return route_of(norm)(run, norm, partial(solve_frobenius, run))

    # `refined` detects answers that over- or underflow has spoilt.
    with np.errstate(all="ignore"):
        if capabilities_of(norm).euclidean:
            return solve_frobenius(program)
        return one_by_one(run_by_route, program)


# ---------------------------------------------------------------------- the route table


class Route(Protocol):
    """The algorithms of a family of norms: they solve one run of a program to a relative gap near 1e-9.

    first: computes the Frobenius answer, where most begin. It also says whether the rows are separable.
    """

    def __call__(self, program: Constraints, norm: Norm, first: Callable[[], Answer]) -> Answer: ...


ROUTES: dict[type, str | Route] = {
    Entrywise: "attsvm.program.entrywise.interior_point:solve_entrywise",
    Schatten: "attsvm.program.schatten.route:solve_schatten",
}
"""One line per norm: its class, and its route or "module:function", which is imported at first use.

Euclidean norms need no line: `frobenius/route.py` solves them, many runs at once."""


def route_of(norm: Norm) -> Route:
    """The route of a norm's class, or of its base if the class changes no rule of the base."""
    classes = type(norm).__mro__[:1] if changes_a_rule(norm) else type(norm).__mro__
    route = next((ROUTES[kind] for kind in classes if kind in ROUTES), None)
    if route is None:
        raise ValueError(
            f"no program for the norm {norm}. Supported: Entrywise(p) and Schatten(p), "
            "1 ≤ p ≤ ∞. Other norms register a route: see docs/extending.md."
        )
    if isinstance(route, str):
        module, _, function = route.partition(":")
        route = getattr(import_module(module), function)
    return route


# ---------------------------------------------------------------------- hard margins, refined


def refined(program: Constraints, norm: Norm, answer: Answer) -> Answer:
    """The answer, or a better one from extended precision in runs where it is in doubt.

    All runs in doubt are measured together: one certificate each would cost more than their solution.
    """
    separable = np.asarray(answer.separable)
    proven = separable.all() or _proven(program, answer.multipliers)
    certain = np.where(separable, _certain(program, norm, answer), proven)
    if certain.all():
        return answer
    answer = _measured(program, norm, answer, separable & ~certain)
    certain |= separable & (np.asarray(answer.gap) <= _tolerated(program, norm))
    return with_runs_replaced(partial(_refined_run, norm=norm), program, answer, ~certain)


def _refined_run(program: Constraints, answer: Answer, norm: Norm) -> Answer:
    if not answer.separable:  # without a proof the multipliers are worthless
        answer = Answer(0 * answer.W, 0 * answer.multipliers)
    elif capabilities_of(norm).euclidean:
        from attsvm.program.polish import on_active_rows

        exact = on_active_rows(program, answer)
        answer = _better(program, norm, answer, exact)
        # Where the gap is small and only the bound on its rounding is not, more digits would change nothing.
        enough = GAP_ENOUGH if exact is not None and exact.gap <= FINE_GAP else _tolerated(program, norm)
        if answer.gap <= enough:
            return answer
    elif answer.gap < 1:
        return answer
    from attsvm.program.extended_precision.route import solve_in_extended_precision

    # In a norm that is not Euclidean this is some weight with the margins, where no engine has found one.
    return _better(program, norm, answer, solve_in_extended_precision(program, near=answer.W))


def _measured(program: Constraints, norm: Norm, answer: Answer, marked: Bool | None = None) -> Answer:
    """The answer with the worst of its certificate as its gap: of the marked runs (…,), or of all."""
    if program.runs is None:
        if marked is not None and not marked:
            return answer
        return replace(answer, gap=certify_scaled(program, norm, answer.W, answer.multipliers).worst)
    index, gap = np.arange(program.runs) if marked is None else np.flatnonzero(marked), np.array(answer.gap)
    if index.size:
        subset = program if index.size == program.runs else program.subset(index)
        gap[index] = certify_scaled(subset, norm, answer.W[index], answer.multipliers[index]).worst
    return replace(answer, gap=gap)


def _better(program: Constraints, norm: Norm, answer: Answer, candidate: Answer | None) -> Answer:
    """The answer, or the candidate if its certificate is better."""
    if candidate is None:
        return answer
    candidate = _measured(program, norm, _sized(program, norm, candidate))
    return candidate if candidate.gap < answer.gap else answer


def _sized(program: Constraints, norm: Norm, answer: Answer) -> Answer:
    """The answer with Σ λ_j b_j = N(W), which a common factor of the multipliers sets; a proof as it is.

    An engine that finds no margin in W leaves this factor open. Multipliers that miss the size by less than a
    certificate allows stay: another factor would round anew those that extended precision has rounded.
    """
    if program.units.soft or not np.any(answer.separable):
        return answer
    with np.errstate(all="ignore"):
        total = (np.maximum(answer.multipliers, 0.0) * program.bound).sum((-2, -1))
        factor = np.asarray(norm.value(answer.W)) / total
        wrong = answer.separable & (np.abs(factor - 1) > TOLERANCE) & (factor > 0) & (factor < np.inf)
    if not wrong.any():
        return answer
    return replace(answer, multipliers=answer.multipliers * np.where(wrong, factor, 1.0)[..., None, None])


def _tolerated(program: Constraints, norm: Norm) -> float:
    """The largest gap that is not refined: smaller where extended precision takes milliseconds."""
    unknowns = program.d * program.e
    count = min(program.n * program.T, 2 * unknowns + 50)
    quick = capabilities_of(norm).euclidean and count**2 * (count + unknowns) <= QUICK
    return FINE_GAP if quick else GAP_ENOUGH


def _certain(program: Constraints, norm: Norm, answer: Answer) -> Bool:
    """Where neither the gap nor rounding can keep an answer from its certificate.

    Rounding moves the margins of W by ε |A| |W| at most, relative to the bounds, and Σ λ_j A_j by as much, in
    the Frobenius norm; in another norm by the product of its stretch and its dual's times that.
    """
    shape, traits = (program.d, program.e), capabilities_of(norm)
    norms = (
        () if traits.euclidean else (traits, capabilities_of(norm.dual))
    )  # a Euclidean one stretches nothing
    if (norms and program.relaxed) or not all(np.isfinite(traits.rounding(*shape)) for traits in norms):
        return np.zeros(program.required.shape[:-1], bool)
    single, unknowns, W = program.runs is None, program.d * program.e, answer.W
    square = float(np.vdot(W, W)) if single else np.einsum("rde,rde->r", W, W)
    longest = (program.reach / np.where(program.required > 0, program.required, np.inf)).max(-1)
    missed: Any = 0.0
    if program.relaxed:  # rows without a bound count relative to the largest required margin
        longest = np.maximum(longest, program.units.in_logits(program.reach[..., None]).max((-2, -1)))
        missed = _missed(program, W)
    terms = np.count_nonzero(answer.multipliers) if single else program.active[0].size
    distortion = math.prod(traits.stretch(*shape) for traits in norms)
    spread = (unknowns + terms) * distortion * EPSILON * longest * square**0.5
    small = np.maximum(answer.gap, missed) <= _tolerated(program, norm) - ROUNDING
    return np.asarray(answer.separable & (spread <= ROUNDING) & small)


def _missed(program: Constraints, W: Float) -> Float:
    """The largest violation of a row that is an equality, or requires the order alone (…,)."""
    margins, free = program.margins(W), program.active & ~(program.bound > 0)
    wrong = program.units.in_logits(np.where(program.tied, np.abs(margins), -margins))
    return np.asarray(wrong.max((-2, -1), initial=0.0, where=free))


def _proven(program: Constraints, multipliers: Float) -> Bool:
    """Where the multipliers prove that no W has a length that float64 could hold."""
    at, count = np.nonzero(multipliers), program.runs or 1
    delta = program.keys[(*at[:-1], program.anchor[at[:-1]])] - program.keys[at]
    queries, separating, weight = program.queries[at[:-1]], program.bound[at] > 0, multipliers[at]
    size = np.abs(weight) * np.linalg.norm(delta, axis=1) * np.linalg.norm(queries, axis=1)
    zero = separating & ~(delta.any(1) & queries.any(1))
    run = at[0] if program.runs else np.zeros_like(at[0])
    # One run may be large: read only the rows with a multiplier.
    M = program.combine(multipliers) if program.runs else ((weight[:, None] * delta).T @ queries)[None]
    length, total = np.sqrt(np.einsum("rde,rde->r", M, M)), np.bincount(run, size * separating, count)
    proven = (np.bincount(run, zero, count) > 0) | (length <= PROVEN * total)
    return np.asarray(proven if program.runs else proven[0])


# ---------------------------------------------------------------------- soft margins


def _soft_runs(program: Constraints) -> Answer:
    """The answers of all runs by their Gram matrices; where a certificate stays open, one by one."""
    from attsvm.program.frobenius.soft_gram import solve_soft_by_gram

    with np.errstate(all="ignore"):
        answer = in_batch(solve_soft_by_gram, program)
        answer = _measured(program, frobenius, answer, ~(np.asarray(answer.gap) <= SOFT_GAP))

    def replaced(run: Constraints, answer: Answer) -> Answer:
        candidate = one_by_one(_soft, run)
        return candidate if candidate.gap < answer.gap else answer

    return with_runs_replaced(replaced, program, answer, np.asarray(answer.gap) > SOFT_GAP)


def _soft(program: Constraints) -> Answer:
    """The answer of the soft-margin program of one run."""
    from attsvm.program.frobenius.soft_margin import SoftMargin

    with single_thread(), np.errstate(all="ignore"):
        pool = program.active
        if program.keys.size > WHOLE_KEYS:
            pool = program.tied | working_set.some_examples(program, PROBE, SHARE)
        engine, most = SoftMargin(int(program.m)), program.n * program.T
        answer = working_set.solve_on_pools(program, frobenius, engine, pool, most=most, scaled=True).finite()
    answer = _measured(program, frobenius, answer)
    if answer.gap <= GAP_ENOUGH or program.units.raised > 0:  # extended precision adds nothing at a raised C
        return answer
    from attsvm.program.extended_precision.route import solve_in_extended_precision

    return _better(program, frobenius, answer, solve_in_extended_precision(program))
