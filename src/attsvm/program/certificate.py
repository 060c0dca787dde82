"""How far a solution can be from optimal, recomputed from rows, weight and multipliers alone.

A certificate holds in exact arithmetic: every sum has a bound on its rounding, which counts against the
solution. Where float64 leaves too much doubt the sums are computed again in twice the precision.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.norms import Norm, capabilities_of
from attsvm.numbers import Float, doubled
from attsvm.numbers.doubled import Doubled
from attsvm.program.constraints import Constraints
from attsvm.program.units import normalised

TOLERANCE = 1e-8
"""Largest violation and gap of a certified solution."""

DOUBT = 0.1 * TOLERANCE
"""Violation or gap above which sums in float64 do not decide."""

EPSILON = 2.0**-53

CHUNK, LARGEST_SUM = 1 << 17, 1 << 26
"""Numbers that are summed in twice the precision: at once, and in total (half a minute)."""


@dataclass(frozen=True)
class Certificate:
    """How far a solution is from optimal at most, recomputed from the data; rounding is counted against it.

    primal: largest shortfall of a margin, relative to the required one (where none is required, and
        for tied tokens, to the largest margin that any row requires).
    dual: largest negative multiplier, relative, and what N*(Σ λ_j A_j) and Σ λ_j b_j / N(W) differ from 1.
    gap: 1 − lower/upper, where Σ λ_j b_j / N*(Σ λ_j A_j) ≤ best norm ≤ N(W) / least margin.
    rows: number of constraints, ties included.
    least_norm: Σ λ_j b_j / N*(Σ λ_j A_j), less rounding: no weight with the required margins has a smaller
        norm. 0 for soft margins.

    One number each; with runs, arrays (runs,).
    """

    primal: Any
    dual: Any
    gap: Any
    rows: Any
    least_norm: Any = 0.0

    @property
    def worst(self) -> Any:
        """The largest of violations and gap."""
        return np.maximum(np.maximum(self.primal, self.dual), self.gap)

    def __str__(self) -> str:
        primal, dual, gap = (float(np.max(x)) for x in (self.primal, self.dual, self.gap))
        over = f"over {int(np.sum(self.rows)):,} constraints"
        return f"{over}: primal violation {primal:.1e}, dual violation {dual:.1e}, relative gap {gap:.1e}"


def certify(program: Constraints, norm: Norm, W: Float, multipliers: Float) -> Certificate:
    """Violations and gap of (W, λ) at most: W and λ (…, n, T) in the units of the tokens.

    Of a soft margin,  min ½‖W‖² + Σ_i C_i ξ_i  with ξ the least that the margins of W allow:
    primal: largest error of a tie, relative to the largest required margin.
    dual: largest negative multiplier, and excess of Σ_t λ_it over C_i, both relative.
    gap: 1 − (Σ λ_j b_j − ½‖Σ λ_j A_j‖²) / (½‖W‖² + Σ_i C_i ξ_i),  at the price of `Units.price`: at a
        smaller one, any short W would do.
    """
    certificate = _at_most(program, norm, *program.units.scaled(W, multipliers))
    return replace(certificate, least_norm=plain(program.units.restored_norm(certificate.least_norm)))


def certify_scaled(program: Constraints, norm: Norm, W: Float, multipliers: Float) -> Certificate:
    """The same of (W, λ) in the units of the program."""
    return _at_most(program, norm, W, *normalised(multipliers))


def plain(x: Any) -> Any:
    """A number rather than an array without axes."""
    return x.item() if np.ndim(x) == 0 else np.asarray(x)


# ---------------------------------------------------------------------- sums and their rounding


@dataclass(frozen=True)
class BoundedSums:
    """Margins and Σ λ_j A_j of a pair, in the units of the rows, with bounds on their rounding.

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


def _in_float64(program: Constraints, W: Float, multipliers: Float, size: Any) -> BoundedSums:
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
    return BoundedSums(program, W, multipliers, size, negative, short, doubt[..., None], M, blur)


def _doubtful(sums: BoundedSums) -> NDArray[np.intp]:
    """The examples with a multiplier, or with a row that may fall short."""
    short = (sums.short + sums.doubt > 0) | sums.program.tied
    return np.flatnonzero((short | (sums.multipliers != 0)).any(-1))


def _in_doubled(sums: BoundedSums) -> BoundedSums:
    """The same in twice the precision, for the doubtful examples of one run."""
    program, lam, smaller = sums.program, sums.multipliers, doubled.ROUNDING / EPSILON
    examples, short = _doubtful(sums), sums.short.copy()
    doubt = np.broadcast_to(sums.doubt, short.shape).copy()
    M, W = Doubled(np.zeros(sums.W.shape)), Doubled(sums.W)
    size = max(1, CHUNK // (program.d * max(program.T, program.e)))
    for start in range(0, len(examples), size):
        chunk = examples[start : start + size]
        keys, queries = program.keys[chunk], program.queries[chunk]
        anchors = np.take_along_axis(keys, program.anchor[chunk, None, None], axis=1)
        delta = Doubled.difference(anchors, keys)
        direction = (W * queries[:, None, :]).sum()
        exact = program.bound[chunk] - (delta * direction[:, None]).sum()
        short[chunk] = np.where(program.active[chunk], exact.hi + exact.lo, -np.inf)
        M = M + ((delta * lam[chunk, :, None]).sum(1)[:, :, None] * queries[:, None, :]).sum(0)
    size_of = np.where(program.active, np.abs(short), 0.0)[examples]
    doubt[examples] = doubt[examples] * smaller + EPSILON * size_of
    blur = sums.blur * smaller + np.sqrt((M.lo * M.lo).sum())
    return replace(sums, short=short, doubt=doubt, M=M.hi, blur=blur)


def _at_most(program: Constraints, norm: Norm, W: Float, multipliers: Float, size: Any) -> Certificate:
    """The certificate from sums in float64; where they leave doubt, from sums in twice the precision.

    W and λ = multipliers · 2^size in the units of the program.
    """
    judge = _soft if program.units.soft else partial(_hard, norm)
    finite = np.asarray(np.isfinite(W).all((-2, -1)) & np.isfinite(multipliers).all((-2, -1)))
    W = np.where(finite[..., None, None], W, 0.0)
    multipliers = np.where(program.active & finite[..., None, None], multipliers, 0.0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        sums = _in_float64(program, W, multipliers, size)
        most, least = judge(sums, 1.0), judge(sums, -1.0)
        doubtful = finite & (most.worst > DOUBT) & ~(least.worst > TOLERANCE)
        if program.runs is None:
            if doubtful and len(_doubtful(sums)) * program.d * max(program.T, program.e) <= LARGEST_SUM:
                most = judge(_in_doubled(sums), 1.0)
        else:
            indices = np.flatnonzero(doubtful).tolist()
            arrays = [getattr(sums, field.name) for field in fields(BoundedSums)[1:]]
            for k, run in zip(indices, program.each_run(*arrays, indices=indices), strict=True):
                refined = judge(_in_doubled(BoundedSums(*run)), 1.0)
                for name in ("primal", "dual", "gap", "least_norm"):
                    getattr(most, name)[k] = getattr(refined, name)
    # A pair with a number that is not finite certifies nothing.
    primal, dual, gap = (
        plain(np.where(finite & ~np.isnan(x), np.maximum(x, 0.0), np.inf))
        for x in (most.primal, most.dual, most.gap)
    )
    least_norm = np.where(finite & (most.least_norm > 0), most.least_norm, 0.0)  # not where it is no number
    return Certificate(primal, dual, gap, plain(program.m), plain(least_norm))


# ---------------------------------------------------------------------- violations and gaps


def _hard(norm: Norm, sums: BoundedSums, sign: float) -> Certificate:
    """Violations and gap at most (sign 1), or at least (sign −1)."""
    program, dual = sums.program, norm.dual
    bounded = program.bound > 0
    primal = _shortfall(sums, sign)
    exact = np.asarray(dual.value(sums.M))
    blur = _rounding(dual, sums.M) * exact + _stretch(dual, sums.M) * sums.blur
    blur = np.where(sums.multipliers.any((-2, -1)), blur, 0.0)
    steepness = np.maximum(exact + sign * blur, 0.0)

    total = (sums.multipliers * program.bound).sum((-2, -1))
    gained = total * (1 - sign * _terms(sums) * EPSILON)
    unit = np.where(bounded, program.bound, 1.0)
    least = 1 - ((sums.short + sign * sums.doubt) / unit).max((-2, -1), initial=-np.inf, where=bounded)
    size = np.asarray(norm.value(sums.W))
    value = size * (1 + sign * _rounding(norm, sums.W))
    trivial = ~bounded.any((-2, -1))
    # Both bounds stay as they are when all multipliers have one factor too many, but gradients do not.
    share = np.divide(total, size, where=size > 0, out=np.zeros_like(total))
    blurred = share * (_terms(sums) * EPSILON + 2 * _rounding(norm, sums.W))
    off = np.maximum(_off_one(exact, blur, sums.size, sign), _off_one(share, blurred, sums.size, sign))
    off = np.where(trivial, 0.0, off)
    upper = np.where(least > 0, value / np.minimum(least, 1.0), np.inf)
    # Where rounding hides M altogether, the lower bound may be anything.
    unknown = (steepness == 0) & (sums.blur > 0) & (sign < 0)
    gap = np.where(np.isfinite(upper) & (steepness > 0), 1.0 - gained / steepness / upper, 1.0)
    gap = np.where(unknown, 0.0, gap)
    gap = np.where(trivial, np.where(value > 0, 1.0, 0.0), gap)
    lower = np.where(steepness > 0, gained / np.where(steepness > 0, steepness, 1.0), 0.0)
    return Certificate(primal, np.maximum(sums.negative, off), gap, program.m, lower)


def _off_one(x: Any, error: Any, power: Any, sign: float) -> Any:
    """|x · 2^power − 1|, with an error of x, at most (sign 1), or at least (sign −1)."""
    return np.abs(np.ldexp(x, power) - 1.0) + sign * np.ldexp(error, power)


def _soft(sums: BoundedSums, sign: float) -> Certificate:
    program = sums.program
    primal = _shortfall(sums, sign, ties_only=True)
    mantissa, power = program.units.price_parts
    total = np.where(program.separating, sums.multipliers, 0.0).sum(-1) * (1 + sign * 8 * EPSILON)
    limit = np.ldexp(mantissa, np.clip(power - sums.size[..., None], -2000, 2000))
    excess = np.divide(
        total - limit, np.where(limit > 0, limit, 1.0), where=total > limit, out=np.zeros(limit.shape)
    )

    short = np.where(program.separating, sums.short + sign * sums.doubt, -np.inf).max(-1, initial=0.0)
    size = sums.size
    terms = [(0.5 * (sums.W * sums.W).sum((-2, -1)), np.zeros_like(size))]
    terms.append(_total(mantissa * short, power))
    terms.append(((sums.multipliers * program.bound).sum((-2, -1)), size))
    length = np.sqrt((sums.M * sums.M).sum((-2, -1))) + sign * sums.blur
    terms.append((0.5 * np.maximum(length, 0.0) ** 2, 2 * size))
    weight, paid, gained, lost = _on_one_scale(terms)
    upper = (weight + paid) * (1 + sign * 4 * (program.n + _terms(sums)) * EPSILON)
    gap = np.where(upper > 0, 1.0 - (gained - lost) / np.where(upper > 0, upper, 1.0), 0.0)
    return Certificate(primal, np.maximum(sums.negative, excess.max(-1)), gap, program.m, np.zeros(gap.shape))


def _shortfall(sums: BoundedSums, sign: float, ties_only: bool = False) -> Any:
    """Largest relative violation of a row, or of a tie.

    A row that requires no margin is measured against the largest required margin, both as logits.
    """
    program = sums.program
    off = np.abs(sums.short, where=program.tied, out=sums.short.copy())
    off += sign * sums.doubt
    off /= np.where(program.bound > 0, program.bound, 1.0)
    if program.relaxed:
        off = np.where(program.bound > 0, off, program.units.in_logits(off))
    counted = program.tied if ties_only else program.active
    return off.max((-2, -1), initial=0.0, where=counted)


def _terms(sums: BoundedSums) -> Any:
    """Number of terms in a sum over the multipliers, and a few operations."""
    return np.count_nonzero(sums.multipliers, axis=(-2, -1)) + 8


def _rounding(norm: Norm, W: Float) -> float:
    """Relative rounding of `norm.value`."""
    d, e = W.shape[-2:]
    return EPSILON * capabilities_of(norm).rounding(d, e)


def _stretch(norm: Norm, W: Float) -> float:
    """The largest norm of a matrix of Frobenius norm one."""
    d, e = W.shape[-2:]
    return capabilities_of(norm).stretch(d, e)


def _total(numbers: Float, exponent: Any) -> tuple[Float, Any]:
    """Σ x_i 2^k_i over the last axis as a number and an exponent."""
    power = np.where(numbers > 0, np.frexp(numbers)[1] + exponent, -10_000)
    largest = power.max(-1)
    return np.ldexp(numbers, np.clip(exponent - largest[..., None], -2000, 2000)).sum(-1), largest


def _on_one_scale(terms: list[tuple[Any, Any]]) -> list[Float]:
    """Numbers x · 2^k, all divided by the same power of two, which brings the first two near one."""
    scaled = [(np.frexp(x)[0], np.where(x > 0, np.frexp(x)[1] + k, -(10**6))) for x, k in terms]
    largest = np.maximum(scaled[0][1], scaled[1][1])
    return [np.ldexp(x, np.clip(k - largest, -1100, 1000)) for x, k in scaled]


def _most(rows: Float) -> Float:
    return np.asarray(rows.max((-2, -1), initial=0.0))
