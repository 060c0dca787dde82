"""How far a solution can be from optimal, recomputed from rows, weight and multipliers alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.norms import Norm
from attsvm.program.constraints import Constraints
from attsvm.tokens import Float

TOLERANCE = 1e-8
"""Largest violation and gap of a certified solution."""


@dataclass(frozen=True)
class Certificate:
    """How far a solution is from optimal at most, recomputed from the data.

    primal: largest shortfall of a margin, relative to the required one (where none is required, and
        for the inequality of tied tokens, to the largest required).
    dual: largest negative multiplier, relative, and excess of N*(Σ λ_j A_j) over 1.
    gap: 1 − lower/upper, where Σ λ_j b_j / N*(Σ λ_j A_j) ≤ best norm ≤ N(W) / least margin.

    One number each; with runs, arrays (runs,).
    """

    primal: Any
    dual: Any
    gap: Any

    @property
    def worst(self) -> Any:
        """The largest of the three."""
        return np.maximum(np.maximum(self.primal, self.dual), self.gap)

    def __str__(self) -> str:
        primal, dual, gap = (float(np.max(x)) for x in (self.primal, self.dual, self.gap))
        return f"primal violation {primal:.1e}, dual violation {dual:.1e}, relative gap {gap:.1e}"


def certify(rows: Constraints, norm: Norm, W: Float, multipliers: Float) -> Certificate:
    """Recompute violations and gap of (W, λ): W in the units of the original tokens, λ (…, n, T)."""
    W = rows.scale(W)
    margins = rows.margins(W)
    largest = _over(rows.bound)[..., None, None]
    unit = np.where(rows.bound > 0, rows.bound, np.where(largest > 0, largest, 1.0))
    short = np.where(rows.separating, rows.bound - margins, 0.0)
    unequal = np.where(rows.tied, np.abs(margins), 0.0)
    primal = np.maximum(_over(np.maximum(short, unequal) / unit), 0.0)

    size = _over(np.abs(multipliers))
    negative = _over(np.where(rows.separating, -multipliers, 0.0))
    clipped = np.where(rows.separating, np.maximum(multipliers, 0.0), multipliers)
    steepness = np.asarray(norm.dual.value(rows.combine(np.where(rows.active, clipped, 0.0))))
    steepness = np.ldexp(steepness, rows.exponent)
    excess = np.where(size > 0, steepness - 1.0, 0.0)
    dual = np.maximum(np.maximum(negative / np.where(size > 0, size, 1.0), excess), 0.0)

    lower = (clipped * rows.bound).sum((-2, -1)) / np.where(steepness > 0, steepness, 1.0)
    counted = rows.bound > 0
    ratio = np.where(counted, margins / np.where(counted, rows.bound, 1.0), np.inf)
    least = ratio.min((-2, -1), initial=np.inf)
    value = np.ldexp(np.asarray(norm.value(W)), -rows.exponent)
    trivial = ~counted.any((-2, -1))
    with np.errstate(divide="ignore", invalid="ignore"):
        upper = np.where(least > 0, value / np.minimum(least, 1.0), np.inf)
        gap = np.where(np.isfinite(upper), 1.0 - lower / upper, 1.0)
    gap = np.where(trivial, np.where(value > 0, 1.0, 0.0), gap)
    return Certificate(plain(primal), plain(dual), plain(np.maximum(gap, 0.0)))


def certify_soft(rows: Constraints, W: Float, multipliers: Float, slack: Float) -> Certificate:
    """The same for  min ½‖W‖² + Σ_i C_i ξ_i,  with ξ the least that the margins of W allow.

    primal: largest error of a tie, relative to the largest required margin.
    dual: largest negative multiplier, and excess of Σ_t λ_it over C_i, both relative.
    gap: 1 − (Σ λ_j b_j − ½‖Σ λ_j A_j‖²) / (½‖W‖² + Σ_i C_i ξ_i).
    """
    W = rows.scale(W)
    margins = rows.margins(W)
    largest = _over(rows.bound)
    primal = _over(np.where(rows.tied, np.abs(margins), 0.0)) / np.where(largest > 0, largest, 1.0)

    size = _over(np.abs(multipliers))
    unit = np.where(size > 0, size, 1.0)
    negative = _over(np.where(rows.separating, -multipliers, 0.0)) / unit
    clipped = np.where(rows.separating, np.maximum(multipliers, 0.0), multipliers) * rows.active
    excess = np.where(rows.separating, clipped, 0.0).sum(-1) - slack
    excess = excess / np.where(slack > 0, slack, unit[..., None])
    dual = np.maximum(np.maximum(negative, excess.max(-1)), 0.0)

    # The four terms may be far out of the range of squares: mantissas and exponents apart.
    exponent = np.frexp(size)[1]
    image = rows.combine(np.ldexp(clipped, -exponent[..., None, None]))
    paid = (slack * shortfall(rows, margins)).sum(-1)
    gained = (clipped * rows.bound).sum((-2, -1))
    terms = [(0.5 * _square(W), -2 * rows.exponent), (paid, 0), (gained, 0)]
    terms.append((0.5 * _square(image), 2 * (rows.exponent + exponent)))
    weight, paid, gained, lost = _on_one_scale(terms)
    upper = weight + paid
    gap = np.where(upper > 0, 1.0 - (gained - lost) / np.where(upper > 0, upper, 1.0), 0.0)
    return Certificate(plain(primal), plain(dual), plain(np.maximum(gap, 0.0)))


def shortfall(rows: Constraints, margins: Float) -> Float:
    """ξ_i = max(0, required_i − least margin of example i): (…, n, T) → (…, n)."""
    short = np.where(rows.separating, rows.bound - margins, 0.0)
    return np.asarray(np.maximum(short.max(-1), 0.0))


def _on_one_scale(terms: list[tuple[Any, Any]]) -> list[Float]:
    """Numbers x · 2^k, all divided by the same power of two, which brings the first two near one."""
    parts = [(np.frexp(x)[0], np.where(x > 0, np.frexp(x)[1] + k, -(10**6))) for x, k in terms]
    largest = np.maximum(parts[0][1], parts[1][1])
    return [np.ldexp(x, np.clip(k - largest, -1100, 1000)) for x, k in parts]


def _square(x: Float) -> Float:
    return np.asarray((x * x).sum((-2, -1)))


def _over(rows: Float) -> Float:
    return np.asarray(rows.max((-2, -1), initial=0.0))


def plain(x: Any) -> Any:
    """A number rather than an array without axes."""
    return x.item() if np.ndim(x) == 0 else np.asarray(x)
