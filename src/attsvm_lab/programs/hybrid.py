"""The norm of parts that an optimizer treats differently: Muon on a matrix, signs on the rest."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.norms.capabilities import Capabilities, capabilities_of
from attsvm.norms.names import as_norm, from_saved, saved_words
from attsvm.norms.norms import SAVED, Entrywise, _matrix, frobenius, spectral
from attsvm.program.solve import ROUTES


@dataclass(frozen=True)
class HybridNorm:
    """The largest norm of the parts of W, each in the unit of its own learning rate.

        N(W) = max_k N_k(W_k) / rate_k,     steepest(G) = [rate_k · steepest_k(G_k)]

    Its steps are those of an optimizer for each part, such as Muon for a matrix and signs, which are Adam
    without its memory, for a bias beside it: W = [W_z b] with queries [z; 1].

    norms: one for each part, or its name. sizes: how many columns of W each part has, in their order.
    axis: 1 for parts that are columns of W, 0 for rows.
    rates: the learning rate of each part relative to the optimizer's, by default 1.
    p: how the parts count together, (Σ (N_k/rate_k)^p)^(1/p). The dual norm has the other exponent.
    Reference: arXiv 2602.16340 (hybrid norms of an optimizer for matrices with another for the rest).
    """

    norms: tuple[Any, ...]
    sizes: tuple[int, ...]
    rates: tuple[float, ...] = ()
    axis: int = 1
    p: float = math.inf

    def __post_init__(self) -> None:
        norms = tuple(as_norm(norm) for norm in self.norms)
        rates = tuple(float(rate) for rate in self.rates) or (1.0,) * len(norms)
        sizes = tuple(int(size) for size in self.sizes)
        if not norms or not len(norms) == len(sizes) == len(rates):
            raise ValueError(
                f"{len(norms)} norms, {len(sizes)} sizes and {len(rates)} rates. Pass one of each for a part."
            )
        if min(sizes) < 1 or sizes != tuple(self.sizes):
            raise ValueError(f"sizes are {self.sizes}. Pass positive integers, the columns of each part.")
        if not all(0 < rate < math.inf for rate in rates):
            raise ValueError(f"rates are {self.rates}. Pass positive numbers.")
        if self.axis not in (0, 1):
            raise ValueError(f"axis is {self.axis!r}. Pass 1 for parts of columns, 0 for parts of rows.")
        object.__setattr__(self, "norms", norms)
        object.__setattr__(self, "sizes", sizes)
        object.__setattr__(self, "rates", rates)
        object.__setattr__(self, "p", Entrywise(self.p).p)

    @property
    def dual(self) -> HybridNorm:
        norms = tuple(norm.dual for norm in self.norms)
        rates = tuple(1 / rate for rate in self.rates)
        return HybridNorm(norms, self.sizes, rates, self.axis, Entrywise(self.p).dual.p)

    def value(self, W: Any) -> Any:
        xp, M, _ = _matrix(W)
        sizes = [
            norm.value(part) / rate
            for norm, rate, part in zip(self.norms, self.rates, self.parts(M), strict=True)
        ]
        return Entrywise(self.p).value_along(xp.stack(sizes))

    def steepest(self, G: Any) -> Any:
        xp, M, shape = _matrix(G)
        parts = self.parts(M)
        steepness = [
            norm.dual.value(part) * rate
            for norm, rate, part in zip(self.norms, self.rates, parts, strict=True)
        ]
        shares = Entrywise(self.p).steepest_along(xp.stack(steepness))
        steps = [
            norm.steepest(part) * (rate * share)[..., None, None]
            for norm, rate, share, part in zip(self.norms, self.rates, shares, parts, strict=True)
        ]
        return xp.reshape(xp.concatenate(steps, axis=self.axis - 2), shape)

    def parts(self, W: Any) -> list[Any]:
        """The parts of matrices (…, d, e)."""
        if W.shape[self.axis - 2] != sum(self.sizes):
            name = ("rows", "columns")[self.axis]
            raise ValueError(
                f"the parts have {sum(self.sizes)} {name} but the matrix has {W.shape[self.axis - 2]}. "
                "Pass sizes that add up to them."
            )
        ends = np.cumsum(self.sizes)
        places = [slice(int(end - size), int(end)) for end, size in zip(ends, self.sizes, strict=True)]
        return [W[..., place] if self.axis else W[..., place, :] for place in places]

    def shapes(self, d: int, e: int) -> list[tuple[int, int]]:
        """The shape of every part of a matrix (d, e)."""
        return [(d, size) if self.axis else (size, e) for size in self.sizes]

    @property
    def capabilities(self) -> Capabilities:
        each = [capabilities_of(norm) for norm in self.norms]

        def rounding(d: int, e: int) -> float:
            shapes = self.shapes(d, e)
            return sum(one.rounding(*shape) for one, shape in zip(each, shapes, strict=True)) + 8

        def stretch(d: int, e: int) -> float:
            longest = [
                one.stretch(*shape) / rate
                for one, shape, rate in zip(each, self.shapes(d, e), self.rates, strict=True)
            ]
            return max(longest) * len(each) ** max(1 / self.p - 0.5, 0.0)

        words: tuple[str, ...] = ()
        if all(one.saved for one in each):
            parts = [saved_words(norm) for norm in self.norms]
            words = ("HybridNorm", json.dumps([parts, self.sizes, self.rates, self.axis, repr(self.p)]))
        curved = 1 < self.p < math.inf and all(one.strictly_convex for one in each)
        return Capabilities(strictly_convex=curved, rounding=rounding, stretch=stretch, saved=words)

    def __str__(self) -> str:
        parts = [
            f"{norm} of {size}" + (f" at rate {rate:g}" if rate != 1 else "")
            for norm, size, rate in zip(self.norms, self.sizes, self.rates, strict=True)
        ]
        together = {math.inf: "largest of", 1: "sum of"}.get(self.p, f"l{self.p:g} of")
        return f"{together} {' | '.join(parts)}"


def norm_with_bias(of_Q: HybridNorm, rank: int) -> HybridNorm:
    """The norm of W = K [Q_z; b]ᵀ that spectral steps of K, with steps of Q = [Q_z; b] in `of_Q`, imply.

    K bᵀ is short in every lp norm of b at once: K turns b into the longest vector of the norm's ball. So b
    counts by its length, in units of rate · rank^(½ − 1/p).

    of_Q: spectral of the rows of Q_z, and an lp norm of the one row b, p ≥ 2. rank: the width of K and Q, at
    least that of the keys. Reference: docs/lab/mixtures.md.
    """
    bias = of_Q.norms[-1]
    one_row = of_Q.axis == 0 and of_Q.p == math.inf and of_Q.sizes[1:] == (1,)
    if not one_row or of_Q.norms[0] != spectral or capabilities_of(bias).acts_on != "entries" or bias.p < 2:
        raise ValueError(
            f"of_Q is {of_Q}. Pass HybridNorm((spectral, norm), (e, 1), rates, axis=0), its norm an "
            "lp with p from 2 on."
        )
    longest = rank ** (0.5 - 1 / bias.p)
    return HybridNorm((spectral, frobenius), of_Q.sizes, (of_Q.rates[0], of_Q.rates[1] * longest))


def _from_words(words: str) -> HybridNorm:
    parts, sizes, rates, axis, p = json.loads(words)
    return HybridNorm(tuple(map(from_saved, parts)), tuple(sizes), tuple(rates), axis, float(p))


SAVED["HybridNorm"] = _from_words
ROUTES[HybridNorm] = "attsvm_lab.programs.hybrid_program:solve_hybrid"
