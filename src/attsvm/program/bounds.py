"""The two bounds that meet at the best norm, over some rows or all of them; their gap is the certificate's.

    Σ λ_j b_j / N*(Σ λ_j A_j)  ≤  min N(W)  ≤  N(W) / min_j ⟨A_j, W⟩ / b_j

Engines that know a bound need not pass over the rows again: they call `relative_gap`. Only the certificate
computes its gap by itself, because it counts rounding.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from attsvm.norms import Norm
from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import anywhere


class Bounded(Protocol):
    """`Rows`, or the whole program (`Constraints`) of one run."""

    @property
    def bound(self) -> Float: ...
    @property
    def tied(self) -> Bool: ...
    def margins(self, W: Float) -> Float: ...
    def combine(self, multipliers: Float) -> Float: ...


def lower(rows: Bounded, norm: Norm, multipliers: Float) -> float:
    """Σ λ_j b_j / N*(Σ λ_j A_j), for λ ≥ 0 but on ties; −∞ where the rows cancel."""
    steep = float(norm.dual.value(rows.combine(multipliers)))
    return float(np.vdot(multipliers, rows.bound)) / steep if steep > 0 else -np.inf


@anywhere
def relative_gap(lower: Any, least: Any, size: Any, missed: Any = 0.0) -> Any:
    """1 − lower / upper,  upper = size / least; or `missed` where that is larger. ∞ if it is NaN.

    lower: Σ λ_j b_j / N*(Σ λ_j A_j); least: the least margin per bound, where not positive the gap is 1;
    size: N(W); missed: by how much rows without a bound fail. Numbers, or arrays over runs.
    Only rounding lets the bounds cross, and that counts as much.
    """
    gap = np.abs(1.0 - lower * np.maximum(least, 0.0) / size)
    return np.fmin(np.maximum(gap, missed), np.inf)


def gap(rows: Bounded, norm: Norm, W: Float, multipliers: Float) -> float:
    """1 − lower / upper, or the violation of a row without a bound where that is larger; 1 where W fails."""
    return measured(rows, norm, W, multipliers)[0]


def measured(
    rows: Bounded, norm: Norm, W: Float, multipliers: Float, least: float = np.inf
) -> tuple[float, float, float]:
    """The gap, the least margin per bound, and the lower bound.

    least: the least margin per bound of other rows, which count too.
    """
    reached = lower(rows, norm, np.where(rows.tied, multipliers, np.maximum(multipliers, 0.0)))
    margins, size = rows.margins(W), float(norm.value(W))
    least = min(least_margin(rows, margins), least)
    if not (least > 0 and size > 0):
        return 1.0, least, reached
    unit = float(rows.bound.max(initial=0.0)) or 1.0
    return float(relative_gap(reached, least, size, missed(rows, margins) / (least * unit))), least, reached


def least_margin(rows: Bounded, margins: Float) -> float:
    """The least margin per bound, over rows that require one; ∞ where none does."""
    bounded = rows.bound > 0
    return float((margins[bounded] / rows.bound[bounded]).min(initial=np.inf))


def missed(rows: Bounded, margins: Float) -> float:
    """The largest violation of a row that is an equality, or requires the order alone."""
    free = rows.bound == 0
    wrong = np.where(rows.tied, np.abs(margins), -margins)
    return float(wrong.max(initial=0.0, where=free))
