"""The tolerances of derivatives."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tolerances:
    """All are relative.

    strict: share or slack above which a row is clearly active or not. Engines leave 1e-10 of either.
    independent: pivot above which rows are clearly independent. At it a row is 1e-4 from the span of others,
        which costs the derivative eight of sixteen digits.
    dependent: pivot below which a row is left out. Rounding leaves 1e-15 where a row is a copy.
    zero: singular values next to the largest that are rounding.
    equal: difference of two singular values below which their quotient is a slope: it would cost nine digits.
    flat: entries or singular values of W next to the largest below which the slope for p > 2, or the missing
        curvature for p < 2, is beyond what differences of solutions show.
    no_worse: violations and gap that are as good as none. Where both are below, a vertex is taken.
    """

    strict: float = 1e-7
    independent: float = 1e-8
    dependent: float = 1e-12
    zero: float = 1e-12
    equal: float = 1e-9
    flat: float = 1e-7
    no_worse: float = 1e-12


TOLERANCES = Tolerances()
