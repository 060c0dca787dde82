"""The max-norm and its dual: norms of W as a product of factors with short rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from attsvm.norms import Capabilities, Norm, l1, linf
from attsvm.norms.norms import NORMS, SAVED
from attsvm.program.solve import ROUTES
from attsvm_lab.programs import max_norm_values as values


@dataclass(frozen=True)
class MaxNorm:
    """The max-norm γ₂: how long the longest rows of two factors of W must be.

        γ₂(W) = min max_i |k_i| max_j |q_j|  over  K Qᵀ = W

    It changes under rotations and has no exponent: p is NaN. On a vector it is the largest entry. `value` is
    the upper end of `bracket`, which some factors attain. NumPy arrays only.
    Reference: Srebro and Shraibman 2005, "Rank, trace-norm and max-norm".
    """

    p = math.nan

    @property
    def capabilities(self) -> Capabilities:
        return _capabilities(linf, ("MaxNorm",))

    @property
    def dual(self) -> DualMaxNorm:
        return DualMaxNorm()

    def bracket(self, W: Any) -> tuple[float, float]:
        """Bounds on γ₂ of one matrix (d, e), 1e-11 of it apart. They hold in spite of rounding."""
        return values.factorised(values.finite_matrix(W))[:2]

    def value(self, W: Any) -> Any:
        return values.of_each(lambda M: values.factorised(M)[1], W)

    def steepest(self, G: Any) -> Any:
        return values.of_each(lambda M: values.correlated(M)[2], G, matrices=True)

    def __str__(self) -> str:
        return "max-norm"


@dataclass(frozen=True)
class DualMaxNorm:
    """The dual norm of the max-norm.

        γ₂*(G) = max ⟨G, K Qᵀ⟩,  all |k_i|, |q_j| ≤ 1   =   min ½ tr D,  D diagonal,  [[0, G], [Gᵀ, 0]] ⪯ D

    Reference: Linial and Shraibman 2009, "Lower bounds in communication complexity based on factorization".
    """

    p = math.nan

    @property
    def capabilities(self) -> Capabilities:
        return _capabilities(l1, ())

    @property
    def dual(self) -> MaxNorm:
        return MaxNorm()

    def bracket(self, G: Any) -> tuple[float, float]:
        """Bounds on γ₂* of one matrix (d, e). They hold in spite of rounding."""
        return values.correlated(values.finite_matrix(G))[:2]

    def value(self, G: Any) -> Any:
        return values.of_each(lambda M: values.correlated(M)[1], G)

    def steepest(self, W: Any) -> Any:
        return values.of_each(lambda M: values.factorised(M)[2], W, matrices=True)

    def __str__(self) -> str:
        return "dual max-norm"


@lru_cache(maxsize=2)
def _capabilities(vectors: Norm, saved: tuple[str, ...]) -> Capabilities:
    return Capabilities(
        on_column=vectors,
        on_row=vectors,
        rounding=lambda d, e: d * e + 8,
        stretch=lambda d, e: float((d * e) ** 0.5),
        saved=saved,
    )


NORMS["max-norm"] = MaxNorm()
SAVED["MaxNorm"] = MaxNorm
ROUTES[MaxNorm] = "attsvm_lab.programs.max_norm_program:solve_max_norm"
