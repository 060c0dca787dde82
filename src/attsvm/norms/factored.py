"""The norm of a product of matrices that a norm of its factors implies: the law of halves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.norms.capabilities import Norm, capabilities_of
from attsvm.norms.names import as_norm
from attsvm.norms.norms import Entrywise, Schatten, l1, linf, singular_values

DIGITS = 12
"""Decimals to which r is rounded: without rounding errors, 1/1.5 + 1/3 gives r = 1."""


@dataclass(frozen=True)
class Factored:
    """The norm of W that a norm N of its factors implies.

        F(W) = min N(W_1) ⋯ N(W_L)  over  W_1 ⋯ W_L = W;     two factors: K Qᵀ = W

    By Hölder's inequality F of Schatten(p) is Schatten(p/L) if no factor is narrower than the rank of W, and
    F of lp on diagonals k ⊙ q is l(p/L): where p < L a quasi-norm, which is not convex and has no program.
    A tuple is one norm for each factor: Schatten(p_1) … Schatten(p_L) have F = Schatten(r), 1/r = Σ 1/p_i.
    F of the longest row is the max-norm γ₂, by definition, for two factors no narrower than d + e: it has its
    name here, and its program in attsvm_lab.programs. A norm may state its F of two factors
    (`Capabilities.product`). Of other norms of matrices no closed form is
    known; `words` says what is.
    diagonal: the factors are vectors, of which every Schatten norm is the length, p = 2.
    Reference: docs/law_of_halves.md.
    """

    norm: Norm | tuple[Norm, ...]
    factors: int = 2
    diagonal: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.norm, tuple):
            norms = tuple(as_norm(norm) for norm in self.norm)
            object.__setattr__(self, "factors", len(norms))
            object.__setattr__(self, "norm", norms[0] if len(set(norms)) == 1 else norms)
        else:
            object.__setattr__(self, "norm", as_norm(self.norm))
        if type(self.factors) is not int or self.factors < 2:
            raise ValueError(f"factors is {self.factors!r}. Pass how many, an integer from 2 on.")

    @property
    def exponent(self) -> float | None:
        """r of the closed form, 1/r = Σ 1/p_i; None where no closed form is known."""
        inverses = [1 / p for p in map(self._own_exponent, self._each) if p is not None]
        if len(inverses) < self.factors:
            return None
        total = sum(inverses)
        r = 1 / total if total else np.inf
        short = round(r, DIGITS)
        return short if abs(r - short) <= 4 * np.finfo(float).eps * r else r

    @property
    def _each(self) -> tuple[Norm, ...]:
        """The norm of every factor."""
        return self.norm if isinstance(self.norm, tuple) else (self.norm,) * self.factors

    def _own_exponent(self, norm: Norm) -> float | None:
        """p of the lp norm of singular values, or of entries of a diagonal, in which a factor is measured."""
        traits = capabilities_of(norm)
        if self.diagonal:
            norm = traits.on_column or norm
            is_known = capabilities_of(norm).acts_on == "entries"
        else:
            is_known = traits.acts_on == "singular values" or traits.euclidean
        return norm.p if is_known else None

    @property
    def _product(self) -> Norm | str | None:
        """F as the norm states it, for two factors that are matrices."""
        if isinstance(self.norm, tuple) or self.factors != 2 or self.diagonal:
            return None
        return capabilities_of(self.norm).product

    @property
    def named(self) -> str:
        """The name of F where its norm and program are in another package, else nothing."""
        return self._product if isinstance(self._product, str) else ""

    @property
    def closed(self) -> Norm | None:
        """F as a norm; None where it is not convex, not known, or in another package."""
        if self._product is not None:
            return None if isinstance(self._product, str) else self._product
        p = self.exponent
        if p is None or p < 1:
            return None
        return Entrywise(p) if self.diagonal else Schatten(p)

    @property
    def words(self) -> str:
        """What is known of F, in a sentence."""
        name = "N_{0}(W_{0})" if isinstance(self.norm, tuple) else "N(W_{0})"
        F = f"min {' '.join(name.format(k) for k in range(1, self.factors + 1))}"
        if self.named:
            return f"{F} is the {self.named}, whose program is in attsvm_lab.programs"
        if self.closed is not None:
            return f"{F} is the {self.closed} norm"
        if self.exponent is not None:
            family = "l" if self.diagonal else "Schatten "
            return f"{F} is {family}{self.exponent:g}, a quasi-norm: not convex, so no program is solved"
        if self.factors == 2 and self.norm == linf:
            return (
                "max|K| max|Q| has no closed form: times the width m it is at least γ₂(W), the max-norm, "
                "and for m → ∞ at most 1.7823 γ₂(W) (Grothendieck)"
            )
        if self.factors == 2 and self.norm == l1:
            return "F(W) = (min Σ_j ‖k_j q_jᵀ‖₁^½)² over sums of rank-one pieces: not convex, no closed form"
        return f"{F} has no closed form that we know for N = {self._norms_named()}"

    def _norms_named(self) -> str:
        return ", ".join(map(str, self._each)) if isinstance(self.norm, tuple) else str(self.norm)

    def value(self, W: Any) -> Any:
        """F(W) = (Σ σ_i^r)^(1/r) of matrices (…, d, e) or diagonals (…, d), where there is a closed form."""
        if self._product is not None and not isinstance(self._product, str):
            return self._product.value(W)
        p = self.exponent
        if p is None:
            raise ValueError(f"{self.words}. Pass a Schatten norm, or an entrywise one with diagonal=True.")
        axes, expected = (1, "(…, d)") if self.diagonal else (2, "(…, d, e)")
        try:
            W = np.asarray(W)
            if np.iscomplexobj(W):  # NumPy would drop the imaginary parts
                raise TypeError
            W = W.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"W is not an array of real numbers {expected}.") from None
        if W.ndim < axes:
            raise ValueError(f"W has shape {W.shape}. Pass {expected}.")
        if not W.size:
            return np.zeros(W.shape[:-axes])
        sizes = np.abs(W) if self.diagonal else singular_values(np, W)
        # Take a norm of the roots: its exponent p is at least one, while p/L may be below.
        return (
            Entrywise(max(1.0, p * self.factors)).value_along(sizes ** (1 / self.factors), -1) ** self.factors
        )

    def __str__(self) -> str:
        return f"{self._norms_named()} of {self.factors} {'diagonal ' if self.diagonal else ''}factors"
