"""The multipliers that one hinge per example allows, {λ ≥ 0, Σ_t λ_t ≤ C}: compiled projection."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import compiled, inner


class Hinges(NamedTuple):
    """What g examples ask and pay: required, price (g,): C; their rows (k,) lie between edges (g + 1,).

    tied (k,): rows that are equalities; reached (g,): examples whose C the last projection reached.
    """

    edges: NDArray[np.intp]
    required: Float
    price: Float
    tied: Bool
    reached: Bool


@compiled
def project(hinges: Hinges, centre: Float, sigma: float, margins: Float, out: Float) -> None:
    """λ = Π(λ' + σ (b − m)) for every example: centre λ' (k,), margins m (k,) → out (k,).

        λ_t = max(x_t − τ, 0),   x = λ' − σ (m − least m),   τ the least number with Σ_t λ_t ≤ C

    and τ ≥ −σ (b − least m), which is zero before the shift by the least margin. The shift keeps the
    digits of m where b is much larger. On ties λ = λ' − σ m.
    Reference: Michelot 1986, "A finite algorithm for finding the projection of a point".
    """
    for i in range(len(hinges.price)):
        start, stop, least = hinges.edges[i], hinges.edges[i + 1], np.inf
        for j in range(start, stop):
            out[j] = 0.0
            if hinges.tied[j]:
                out[j] = centre[j] - sigma * margins[j]
            else:
                least = min(least, margins[j])
        if least == np.inf:
            continue
        for j in range(start, stop):
            if not hinges.tied[j]:
                out[j] = centre[j] - sigma * (margins[j] - least)
        _lower(hinges, i, -sigma * (hinges.required[i] - least), out)


@inner
def _lower(hinges: Hinges, i: int, threshold: float, x: Float) -> None:
    """Subtract from the inequality entries of example i the least τ ≥ threshold that C allows."""
    start, stop, price = hinges.edges[i], hinges.edges[i + 1], hinges.price[i]
    hinges.reached[i], counted = False, stop - start + 1
    while True:  # the threshold only grows, so entries only leave: at most as many rounds as rows
        total, count = 0.0, 0
        for j in range(start, stop):
            if not hinges.tied[j] and x[j] > threshold:
                total += x[j] - threshold
                count += 1
        if count == counted or total <= price:
            break
        counted, hinges.reached[i] = count, True
        threshold += (total - price) / count
    scale = price / total if hinges.reached[i] and total > 0 else 1.0  # exactly C, whatever the rounding
    for j in range(start, stop):
        if not hinges.tied[j]:
            x[j] = max(x[j] - threshold, 0.0) * scale
