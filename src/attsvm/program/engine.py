"""The contract between the verbs and the algorithms: rows and a norm in, an Answer out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from attsvm.max_norm import MaxNorm
from attsvm.norms import Norm, Schatten, frobenius, linf
from attsvm.numbers import Bool, Float
from attsvm.program.constraints import Constraints


@dataclass(frozen=True)
class Answer:
    """What an algorithm found, in the units of the scaled rows.

    W (…, d, e): a weight that has the required margins, up to rounding.
    multipliers (…, n, T): ≥ 0 on inequalities, free on ties, zero where there is no row. With a W
        N*(Σ λ_j A_j) = 1, up to rounding, and Σ λ_j b_j is a lower bound; without they are a Farkas proof.
    separable: whether there is a W, one boolean per run.
    gap: the relative gap over all rows that the algorithm measured, one per run; ∞ if none, and then the pair
        may be anything.

    The verbs look again where gap or rounding leave doubt (`second_look`). A certificate never asks an
    algorithm for its opinion.
    """

    W: Float
    multipliers: Float
    separable: Bool | bool = True
    gap: Float | float = np.inf

    def finite(self) -> Answer:
        """This answer; where a number of it is not finite, W = 0, which certifies and proves nothing."""
        if np.isfinite(self.W).all() and np.isfinite(self.multipliers).all():
            return self
        return Answer(np.zeros_like(self.W), np.zeros_like(self.multipliers))

    @property
    def carriers(self) -> int:
        """Rows that suffice to carry W, at most: an interior point leaves small multipliers everywhere."""
        return min(int(np.count_nonzero(self.multipliers)), self.W.size)

    @property
    def parts(self) -> tuple[Any, ...]:
        """W, multipliers, separable and gap as arrays, of which every run has its own."""
        return self.W, self.multipliers, np.asarray(self.separable), np.asarray(self.gap)

    def alone(self) -> Answer:
        """The answer of the only run of a batch of one."""
        W, multipliers, can, gap = (part[0] for part in self.parts)
        return Answer(W, multipliers, bool(can), float(gap))

    def as_batch(self) -> Answer:
        """The answer of one run as that of a batch of one."""
        return Answer(*(part[None] for part in self.parts))


@dataclass(frozen=True, eq=False)
class Found:
    """What an engine found on some rows of length one, both up to positive factors.

    W (d, e), multipliers (k,); not separable: W and gap are zero, and the multipliers a contradiction.
    gap: the relative gap between their bounds over these rows.
    final: False while the engine has not ended: it looks forward to the rows that W violates.
    kept (k,): the rows that stay in the pool; None: all.
    scaled: both are those of the program already, and nobody rescales them: not by the rows' lengths either.
    allowed (n,): what examples may fall short, in the units of the program; None: nothing.
    """

    W: Float
    multipliers: Float
    gap: float = np.inf
    separable: bool = True
    final: bool = True
    kept: Bool | None = None
    scaled: bool = False
    allowed: Float | None = None


def on_vectors(program: Constraints, norm: Norm) -> Norm:
    """The norm that the rows see: of a vector all Schatten norms are l2, and the max-norm is l∞."""
    if min(program.d, program.e) > 1:
        return norm
    return frobenius if isinstance(norm, Schatten) else linf if isinstance(norm, MaxNorm) else norm


class Route(Protocol):
    """The way of a family of norms: solves one run of a program to a relative gap near 1e-9.

    first: asks for the Frobenius answer, from which most begin: it also knows whether the rows are separable.
    """

    def __call__(self, program: Constraints, norm: Norm, first: Callable[[], Answer]) -> Answer: ...
