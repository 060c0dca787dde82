"""Some rows of a program in doubled numbers, each by its own power of two near length one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.doubled import Doubled
from attsvm.program.constraints import Constraints
from attsvm.program.rows import Rows

FAR = 10_000

ENTRIES = 1 << 24
"""Entries of the rows written out (512 MB in doubled numbers, with what is made of them)."""


class NoAnswer(ArithmeticError):
    """The careful way ends here: a program too large for it, or one that has no W."""


@dataclass(frozen=True)
class Pool:
    """k rows A (k, d·e), bounds (k,), ties (k,), their examples (k,), and their places among all rows (k,).

    measure (k,): the margin to which a shortfall is relative: the bound; where that is zero, the largest
        required margin, which may be many powers of two away in the units of the row.
    power (k,): a row here is 2^−power times that of the program; unit: a weight here is 2^−unit times.
    """

    A: Doubled
    bound: Float
    measure: Float
    tied: Bool
    example: NDArray[np.intp]
    place: NDArray[np.intp]
    power: NDArray[np.int_]
    unit: int

    @classmethod
    def of(cls, program: Constraints, rows: Rows) -> Pool:
        """The same rows from the keys, whose differences are exact; zero rows are left out.

        Raises NoAnswer where there are too many, none asks for a margin, or one that is zero does.
        """
        if len(rows) * program.d * program.e > ENTRIES:
            raise NoAnswer
        example, token = rows.example, rows.token
        delta = Doubled.difference(
            program.keys[example, program.anchor[example]], program.keys[example, token]
        )
        queries = program.queries[example]
        lifted, low = _lift(delta.hi), _lift(queries)
        delta = Doubled(np.ldexp(delta.hi, -lifted[:, None]), np.ldexp(delta.lo, -lifted[:, None]))
        A = (delta[:, :, None] * np.ldexp(queries, -low[:, None])[:, None, :]).reshape(
            len(example), program.d * program.e
        )
        live = A.hi.any(1)
        bound, tied = program.bound[example, token], program.tied[example, token]
        if (bound[~live] > 0).any() or not (bound > 0).any():
            raise NoAnswer
        power = lifted + low
        size = np.where(bound > 0, np.frexp(bound)[1] - power, -FAR)[live]
        unit = int(size.max(initial=-FAR))
        bound = np.ldexp(bound, np.clip(-power - unit, -2000, 2000))
        largest = program.units.largest_required(example, power + unit)
        measure = np.where(bound > 0, bound, np.maximum(largest, np.finfo(float).tiny))
        place = np.flatnonzero(live)
        return cls(A[live], bound[live], measure[live], tied[live], example[live], place, power[live], unit)

    def __len__(self) -> int:
        return len(self.bound)

    def weight(self, W: Float) -> Float:
        """The weight of the program from the weight here."""
        return np.ldexp(W, self.unit)

    def multipliers(self, multipliers: Float, rows: Rows) -> Float:
        """The multipliers of the rows in the program from those here (k,), zero for those left out."""
        out = np.zeros(len(rows))
        out[self.place] = np.ldexp(multipliers, -self.power)
        return out


def _lift(vectors: Float) -> NDArray[np.int_]:
    """Binary exponent of the largest entry of each vector."""
    return np.frexp(np.abs(vectors).max(-1))[1]
