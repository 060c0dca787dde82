"""How far a solution can be from optimal, recomputed from rows, weight and multipliers alone.

What is certified is true in exact arithmetic: every sum comes with a bound on its rounding, which counts
against the solution. Where float64 leaves too much doubt the sums are taken again in twice the precision.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.norms import Norm, Schatten
from attsvm.numbers import Float, doubled
from attsvm.numbers.doubled import Doubled
from attsvm.program.constraints import FEW_KEYS, Constraints
from attsvm.program.runs import each_run

TOLERANCE = 1e-8
"""Largest violation and gap of a certified solution."""

DOUBT = 0.1 * TOLERANCE
"""Violation or gap above which sums in float64 do not decide."""

EPSILON = 2.0**-53

CHUNK, LARGEST_SUM = 1 << 17, 1 << 26
"""Numbers that are summed in twice the precision: at once, and in all (half a minute)."""


@dataclass(frozen=True)
class Certificate:
    """How far a solution is from optimal at most, recomputed from the data; rounding is counted against it.

    primal: largest shortfall of a margin, relative to the required one (where none is required, and
        for the inequality of tied tokens, to the largest required).
    dual: largest negative multiplier, relative, and excess of N*(Σ λ_j A_j) over 1.
    gap: 1 − lower/upper, where Σ λ_j b_j / N*(Σ λ_j A_j) ≤ best norm ≤ N(W) / least margin.
    rows: number of constraints over which it was taken: all there are, ties too.

    One number each; with runs, arrays (runs,).
    """

    primal: Any
    dual: Any
    gap: Any
    rows: Any

    @property
    def worst(self) -> Any:
        """The largest of violations and gap."""
        return np.maximum(np.maximum(self.primal, self.dual), self.gap)

    def __str__(self) -> str:
        primal, dual, gap = (float(np.max(x)) for x in (self.primal, self.dual, self.gap))
        over = f"over {int(np.sum(self.rows)):,} constraints"
        return f"{over}: primal violation {primal:.1e}, dual violation {dual:.1e}, relative gap {gap:.1e}"


def certify(program: Constraints, norm: Norm, W: Float, multipliers: Float) -> Certificate:
    """Violations and gap of (W, λ) at most: W and λ (…, n, T) in the units of the tokens."""
    return _at_most(partial(_hard, norm), program, W, multipliers)


def certify_soft(program: Constraints, W: Float, multipliers: Float, slack: Float) -> Certificate:
    """The same for  min ½‖W‖² + Σ_i C_i ξ_i,  with ξ the least that the margins of W allow; slack (…, n): C.

    primal: largest error of a tie, relative to the largest required margin.
    dual: largest negative multiplier, and excess of Σ_t λ_it over C_i, both relative.
    gap: 1 − (Σ λ_j b_j − ½‖Σ λ_j A_j‖²) / (½‖W‖² + Σ_i C_i ξ_i).

    A small C is looked at where it is larger (`proportional`): at its own, any short W would do.
    """
    power = np.maximum.reduce(
        [np.frexp(np.abs(x).max((-2, -1)))[1] for x in (W, multipliers, slack[..., None])]
    )
    up = np.minimum(proportional(program, slack), 1000 - power)[..., None]
    raised = (np.ldexp(W, up[..., None]), np.ldexp(multipliers, up[..., None]), np.ldexp(slack, up))
    return _at_most(_soft, program, *raised)


def proportional(program: Constraints, slack: Float) -> NDArray[np.int_]:
    """By how many binary exponents C may be larger while W and λ are proportional to it (…,).

    ‖W‖ ≤ Σ_i C_i |A_i| for rows no longer than |A_i|: as long as no margin reaches half of what is asked,
    every example that asks for one falls short. With a small C nothing is seen of ‖W‖² next to Σ C_i b_i.
    """
    longest = program.reach
    if program.fits(FEW_KEYS):
        longest = np.linalg.norm(program.all_differences, axis=-1).max(-1)
        longest = longest * np.linalg.norm(program.queries, axis=-1)
    up = program.exponent - program.unit[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        length = (np.log2(slack) + up + np.log2(longest)).max(-1) + np.log2(program.n)
        asked = np.log2(program.required).min(-1, initial=np.inf, where=program.required > 0)
        room = asked - 1 - np.log2(longest.max(-1)) - length
    return np.where(np.isfinite(room), np.maximum(room, 0), 0).astype(int)


def plain(x: Any) -> Any:
    """A number rather than an array without axes."""
    return x.item() if np.ndim(x) == 0 else np.asarray(x)


# ---------------------------------------------------------------------- sums and their rounding


@dataclass(frozen=True)
class Sums:
    """What the rows say about a pair, in their units, and by how much rounding may have changed it.

    W (…, d, e), λ (…, n, T): the pair; λ and M are 2^−size times what they are, and negative multipliers
        of inequalities are left out: negative (…,), the largest of them relative to all.
    short (…, n, T): b_j − ⟨A_j, W⟩, its error at most `doubt` (…, n, T) or (…, n, 1).
    M (…, d, e): Σ λ_j A_j, its error at most `blur` (…,) in the Frobenius norm.
    """

    program: Constraints
    W: Float
    multipliers: Float
    size: Any
    negative: Any
    short: Float
    doubt: Float
    M: Float
    blur: Any


def _in_float64(program: Constraints, W: Float, multipliers: Float, size: Any) -> Sums:
    """One pass each for margins and M; bounds on rounding from the sizes of the rows.

    multipliers (…, n, T): those below zero become zero.
    """
    largest = _most(np.abs(multipliers))
    negative = _most(np.where(program.separating, -multipliers, 0.0)) / np.where(largest > 0, largest, 1.0)
    np.maximum(multipliers, 0.0, out=multipliers, where=program.separating)
    length = np.sqrt((W * W).sum((-2, -1)))[..., None]
    doubt = (program.d + program.e + 4) * EPSILON * (program.reach * length + program.required)
    weight = (np.abs(multipliers).sum(-1) * program.reach).sum(-1)
    blur = (np.count_nonzero(multipliers, axis=(-2, -1)) + 8) * EPSILON * weight
    short = np.where(program.active, program.bound - program.margins(W), -np.inf)
    M = program.combine(multipliers)
    return Sums(program, W, multipliers, size, negative, short, doubt[..., None], M, blur)


def _doubtful(sums: Sums) -> NDArray[np.intp]:
    """The examples with a multiplier, or with a row that may fall short: the others decide nothing."""
    short = (sums.short + sums.doubt > 0) | sums.program.tied
    return np.flatnonzero((short | (sums.multipliers != 0)).any(-1))


def _in_doubled(sums: Sums) -> Sums:
    """The same in twice the precision, for the doubtful examples of one run."""
    program, lam, smaller = sums.program, sums.multipliers, doubled.ROUNDING / EPSILON
    short, doubt = sums.short.copy(), np.broadcast_to(sums.doubt, sums.short.shape).copy()
    M, W, examples = Doubled(np.zeros(sums.W.shape)), Doubled(sums.W), _doubtful(sums)
    size = max(1, CHUNK // (program.d * max(program.T, program.e)))
    for start in range(0, len(examples), size):
        part = examples[start : start + size]
        keys, queries = program.keys[part], program.queries[part]
        anchors = np.take_along_axis(keys, program.anchor[part, None, None], axis=1)
        delta = Doubled.difference(anchors, keys)
        direction = (W * queries[:, None, :]).sum()
        exact = program.bound[part] - (delta * direction[:, None]).sum()
        short[part] = np.where(program.active[part], exact.hi + exact.lo, -np.inf)
        M = M + ((delta * lam[part, :, None]).sum(1)[:, :, None] * queries[:, None, :]).sum(0)
    size_of = np.where(program.active, np.abs(short), 0.0)[examples]
    doubt[examples] = doubt[examples] * smaller + EPSILON * size_of
    blur = sums.blur * smaller + np.sqrt((M.lo * M.lo).sum())
    return replace(sums, short=short, doubt=doubt, M=M.hi, blur=blur)


def _at_most(
    judge: Callable[..., Certificate], program: Constraints, W: Float, multipliers: Float, *more: Float
) -> Certificate:
    """The certificate from sums in float64; where they leave doubt, from sums in twice the precision."""
    finite = np.asarray(np.isfinite(W).all((-2, -1)) & np.isfinite(multipliers).all((-2, -1)))
    W = np.ldexp(np.where(finite[..., None, None], W, 0.0), -program.unit[..., None, None])
    lam = np.where(program.active & finite[..., None, None], multipliers, 0.0)
    size = np.where(lam != 0, np.frexp(lam)[1] + program.exponent[..., None], -10_000).max((-2, -1))
    size = np.where(size > -10_000, size, 0)
    np.ldexp(lam, (program.exponent - size[..., None])[..., None], out=lam)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        sums = _in_float64(program, W, lam, size)
        most, least = judge(sums, *more, 1.0), judge(sums, *more, -1.0)
        doubtful = finite & (most.worst > DOUBT) & ~(least.worst > TOLERANCE)
        if program.runs is None:
            if doubtful and len(_doubtful(sums)) * program.d * max(program.T, program.e) <= LARGEST_SUM:
                most = judge(_in_doubled(sums), *more, 1.0)
        else:
            which = np.flatnonzero(doubtful).tolist()
            parts = [getattr(sums, field.name) for field in fields(Sums)[1:]]
            for k, (one, *own) in zip(which, each_run(program, *parts, *more, which=which), strict=True):
                alone = Sums(one, *own[: len(parts)])
                again = judge(_in_doubled(alone), *own[len(parts) :], 1.0)
                for name in ("primal", "dual", "gap"):
                    getattr(most, name)[k] = getattr(again, name)
    # What is not finite certifies nothing.
    primal, dual, gap = (
        plain(np.where(finite & ~np.isnan(x), np.maximum(x, 0.0), np.inf))
        for x in (most.primal, most.dual, most.gap)
    )
    return Certificate(primal, dual, gap, plain(program.m))


# ---------------------------------------------------------------------- what follows from them


def _hard(norm: Norm, sums: Sums, sign: float) -> Certificate:
    """Violations and gap at most (sign 1), or at least (sign −1)."""
    program, dual = sums.program, norm.dual
    asks, largest = program.bound > 0, _most(program.bound)[..., None, None]
    primal = _shortfall(sums, sign)
    steepness = np.asarray(dual.value(sums.M)) * (1 + sign * _rounding(dual, sums.M))
    steepness = np.maximum(steepness + sign * _stretch(dual, sums.M) * sums.blur, 0.0)
    steepness = np.where(sums.multipliers.any((-2, -1)), steepness, 0.0)
    excess = np.where(steepness > 0, np.ldexp(steepness, sums.size) - 1.0, 0.0)

    gained = (sums.multipliers * program.bound).sum((-2, -1)) * (1 - sign * _terms(sums) * EPSILON)
    unit = np.where(asks, program.bound, np.where(largest > 0, largest, 1.0))
    least = 1 - ((sums.short + sign * sums.doubt) / unit).max((-2, -1), initial=-np.inf, where=asks)
    value = np.asarray(norm.value(sums.W)) * (1 + sign * _rounding(norm, sums.W))
    trivial = ~asks.any((-2, -1))
    upper = np.where(least > 0, value / np.minimum(least, 1.0), np.inf)
    # Where rounding hides M altogether, the lower bound may be anything.
    unknown = (steepness == 0) & (sums.blur > 0) & (sign < 0)
    gap = np.where(np.isfinite(upper) & (steepness > 0), 1.0 - gained / steepness / upper, 1.0)
    gap = np.where(unknown, 0.0, gap)
    gap = np.where(trivial, np.where(value > 0, 1.0, 0.0), gap)
    return Certificate(primal, np.maximum(sums.negative, excess), gap, program.m)


def _soft(sums: Sums, slack: Float, sign: float) -> Certificate:
    program = sums.program
    primal = _shortfall(sums, sign, ties_only=True)
    # In the units of the program C is 2^(exponent − unit) times, λ is 2^(size − unit) times as large.
    mantissa, raised = np.frexp(slack)
    raised = raised + program.exponent - program.unit[..., None]
    total = np.where(program.separating, sums.multipliers, 0.0).sum(-1) * (1 + sign * 8 * EPSILON)
    held = np.ldexp(mantissa, np.clip(raised - (sums.size - program.unit)[..., None], -2000, 2000))
    excess = np.divide(
        total - held, np.where(held > 0, held, 1.0), where=total > held, out=np.zeros(held.shape)
    )

    short = np.where(program.separating, sums.short + sign * sums.doubt, -np.inf).max(-1, initial=0.0)
    up = sums.size - program.unit
    terms = [(0.5 * (sums.W * sums.W).sum((-2, -1)), np.zeros_like(up))]
    terms.append(_total(mantissa * short, raised))
    terms.append(((sums.multipliers * program.bound).sum((-2, -1)), up))
    length = np.sqrt((sums.M * sums.M).sum((-2, -1))) + sign * sums.blur
    terms.append((0.5 * np.maximum(length, 0.0) ** 2, 2 * up))
    weight, paid, gained, lost = _on_one_scale(terms)
    upper = (weight + paid) * (1 + sign * 4 * (program.n + _terms(sums)) * EPSILON)
    gap = np.where(upper > 0, 1.0 - (gained - lost) / np.where(upper > 0, upper, 1.0), 0.0)
    return Certificate(primal, np.maximum(sums.negative, excess.max(-1)), gap, program.m)


def _shortfall(sums: Sums, sign: float, ties_only: bool = False) -> Any:
    """Largest relative violation of a row, or of a tie."""
    program = sums.program
    largest = _most(program.bound)[..., None, None]
    unit = np.where(program.bound > 0, program.bound, np.where(largest > 0, largest, 1.0))
    off = np.abs(sums.short, where=program.tied, out=sums.short.copy())
    off += sign * sums.doubt
    off /= unit
    counted = program.tied if ties_only else program.active
    return off.max((-2, -1), initial=0.0, where=counted)


def _terms(sums: Sums) -> Any:
    """Number of terms in a sum over the multipliers, and a few operations."""
    return np.count_nonzero(sums.multipliers, axis=(-2, -1)) + 8


def _rounding(norm: Norm, W: Float) -> float:
    """Relative rounding of `norm.value`."""
    d, e = W.shape[-2:]
    return EPSILON * (8 * (d + e) * min(d, e) ** 0.5 if isinstance(norm, Schatten) else d * e + 8)


def _stretch(norm: Norm, W: Float) -> float:
    """The largest norm of a matrix of Frobenius norm one; for the max-norm and its dual √(d e) suffices."""
    sizes = min(W.shape[-2:]) if isinstance(norm, Schatten) else W.shape[-2] * W.shape[-1]
    return float(sizes ** (0.5 if math.isnan(norm.p) else max(1 / norm.p - 0.5, 0.0)))


def _total(numbers: Float, exponent: Any) -> tuple[Float, Any]:
    """Σ x_i 2^k_i over the last axis as a number and an exponent."""
    power = np.where(numbers > 0, np.frexp(numbers)[1] + exponent, -10_000)
    largest = power.max(-1)
    return np.ldexp(numbers, np.clip(exponent - largest[..., None], -2000, 2000)).sum(-1), largest


def _on_one_scale(terms: list[tuple[Any, Any]]) -> list[Float]:
    """Numbers x · 2^k, all divided by the same power of two, which brings the first two near one."""
    parts = [(np.frexp(x)[0], np.where(x > 0, np.frexp(x)[1] + k, -(10**6))) for x, k in terms]
    largest = np.maximum(parts[0][1], parts[1][1])
    return [np.ldexp(x, np.clip(k - largest, -1100, 1000)) for x, k in parts]


def _most(rows: Float) -> Float:
    return np.asarray(rows.max((-2, -1), initial=0.0))
