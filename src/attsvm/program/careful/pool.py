"""Some rows of a program in doubled numbers, each by its own power of two near length one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.doubled import Doubled
from attsvm.program.constraints import Constraints

FAR = 10_000


@dataclass(frozen=True)
class Pool:
    """k rows A (k, d·e), bounds (k,), ties (k,), and their places in the program.

    power (k,): a row here is 2^−power times that of the program; unit: a weight here is 2^−unit times.
    """

    A: Doubled
    bound: Float
    tied: Bool
    example: NDArray[np.intp]
    token: NDArray[np.intp]
    power: NDArray[np.int_]
    unit: int

    @classmethod
    def of(cls, program: Constraints, chosen: Bool) -> Pool | None:
        """The chosen rows (n, T), zero rows left out; None where a zero row asks for a margin."""
        example, token = np.nonzero(chosen & program.active)
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
        if (bound[~live] > 0).any():
            return None
        power = lifted + low
        size = np.where(bound > 0, np.frexp(bound)[1] - power, -FAR)[live]
        unit = int(size.max(initial=-FAR))
        bound = np.ldexp(bound, np.clip(-power - unit, -2000, 2000))
        return cls(A[live], bound[live], tied[live], example[live], token[live], power[live], unit)

    def __len__(self) -> int:
        return len(self.bound)

    def weight(self, W: Float) -> Float:
        """The weight of the program from the weight here."""
        return np.ldexp(W, self.unit)

    def multipliers(self, multipliers: Float, shape: tuple[int, int]) -> Float:
        """The multipliers of the program (n, T) from those here (k,)."""
        out = np.zeros(shape)
        out[self.example, self.token] = np.ldexp(multipliers, -self.power)
        return out


def _lift(vectors: Float) -> NDArray[np.int_]:
    """Binary exponent of the largest entry of each vector."""
    return np.frexp(np.abs(vectors).max(-1))[1]
