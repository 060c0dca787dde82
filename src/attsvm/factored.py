"""The norm of a product of matrices that a norm of its factors implies: the law of halves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.max_norm import MaxNorm
from attsvm.norms import Entrywise, LongestRow, Norm, RowWise, Schatten, as_norm, is_frobenius, l1, linf


@dataclass(frozen=True)
class Factored:
    """The norm of W that a norm N of its factors implies.

        F(W) = min N(W_1) ⋯ N(W_L)  over  W_1 ⋯ W_L = W;     two factors: K Qᵀ = W

    By Hölder's inequality F of Schatten(p) is Schatten(p/L) if no factor is narrower than the rank of W, and
    F of lp on diagonals k ⊙ q is l(p/L): where p < L a quasi-norm, which is not convex and has no program.
    F of the longest row is the max-norm γ₂, by definition, for two factors no narrower than d + e. Of other
    norms of matrices no closed form is known; `words` says what is.
    diagonal: the factors are vectors, of which every Schatten norm is the length, p = 2.
    Reference: docs/law_of_halves.md.
    """

    norm: Norm
    factors: int = 2
    diagonal: bool = False

    def __post_init__(self) -> None:
        as_norm(self.norm)
        if type(self.factors) is not int or self.factors < 2:
            raise ValueError(f"factors is {self.factors!r}. Pass how many, an integer from 2 on.")

    @property
    def exponent(self) -> float | None:
        """p/L of the closed form; None where none is known."""
        if isinstance(self.norm, Schatten) or is_frobenius(self.norm):
            return (2.0 if self.diagonal else self.norm.p) / self.factors
        known = isinstance(self.norm, (Entrywise, RowWise)) and self.diagonal
        return self.norm.p / self.factors if known else None

    @property
    def closed(self) -> Norm | None:
        """F as a norm; None where it is not convex or not known."""
        if self.norm == LongestRow() and self.factors == 2 and not self.diagonal:
            return MaxNorm()
        p = self.exponent
        if p is None or p < 1:
            return None
        return Entrywise(p) if self.diagonal else Schatten(p)

    @property
    def words(self) -> str:
        """What is known of F, in a sentence."""
        of = f"min {' '.join(f'N(W_{k})' for k in range(1, self.factors + 1))}"
        if isinstance(self.closed, MaxNorm):
            return f"{of} is γ₂(W), the max-norm"
        if self.closed is not None:
            return f"{of} is the {self.closed} norm"
        if self.exponent is not None:
            family = "l" if self.diagonal else "Schatten "
            return f"{of} is {family}{self.exponent:g}, a quasi-norm: not convex, so no program is solved"
        if self.factors == 2 and self.norm == linf:
            return (
                "max|K| max|Q| has no closed form: times the width m it is at least γ₂(W), the max-norm, "
                "and for m → ∞ at most 1.7823 γ₂(W) (Grothendieck)"
            )
        if self.factors == 2 and self.norm == l1:
            return "F(W) = (min Σ_j ‖k_j q_jᵀ‖₁^½)² over sums of rank-one pieces: not convex, no closed form"
        return f"{of} has no closed form that we know for N = {self.norm}"

    def value(self, W: Any) -> Any:
        """F(W) = N(Σ^(1/L))^L of matrices (…, d, e) or diagonals (…, d), where there is a closed form."""
        p = self.exponent
        if isinstance(self.closed, MaxNorm):
            return self.closed.value(W)
        if p is None:
            raise ValueError(f"{self.words}. Pass a Schatten norm, or an entrywise one with diagonal=True.")
        sizes = np.abs(W) if self.diagonal else np.linalg.svd(W, compute_uv=False)
        # A norm of the roots: its exponent p is at least one even where p/L is not.
        return Entrywise(p * self.factors).value_along(sizes ** (1 / self.factors), -1) ** self.factors

    def __str__(self) -> str:
        return f"{self.norm} of {self.factors} {'diagonal ' if self.diagonal else ''}factors"
