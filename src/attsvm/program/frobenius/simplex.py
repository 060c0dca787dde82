"""The multipliers that one hinge per example allows, {λ ≥ 0, Σ_t λ_t ≤ C}: compiled projection."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.numbers import Bool, Float
from attsvm.numbers.compiled import compiled


class Hinges(NamedTuple):
    """What each example asks and pays: required (n,), slack (n,): C; active and tied rows (n, T).

    reached (n,): examples whose C the last projection reached.
    """

    required: Float
    slack: Float
    active: Bool
    tied: Bool
    reached: Bool


@compiled
def project(hinges: Hinges, centre: Float, sigma: float, margins: Float, out: Float) -> None:
    """λ = Π(λ' + σ (b − m)) for every example: centre λ' (n, T), margins m (n, T) → out (n, T).

        λ_t = max(x_t − τ, 0),   x = λ' − σ (m − least m),   τ the least number with Σ_t λ_t ≤ C

    and τ ≥ −σ (b − least m), which is zero before the shift by the least margin. The shift keeps the
    digits of m where b is much larger. On ties λ = λ' − σ m.
    Reference: Michelot 1986, "A finite algorithm for finding the projection of a point".
    """
    n, T = margins.shape
    for i in range(n):
        least = np.inf
        for t in range(T):
            out[i, t] = 0.0
            if hinges.tied[i, t]:
                out[i, t] = centre[i, t] - sigma * margins[i, t]
            elif hinges.active[i, t]:
                least = min(least, margins[i, t])
        if least == np.inf:
            continue
        for t in range(T):
            if hinges.active[i, t] and not hinges.tied[i, t]:
                out[i, t] = centre[i, t] - sigma * (margins[i, t] - least)
        _lower(hinges, i, -sigma * (hinges.required[i] - least), out)


@compiled
def _lower(hinges: Hinges, i: int, threshold: float, x: Float) -> None:
    """Subtract from the inequality entries of example i the least τ ≥ threshold that C allows."""
    T, slack, counted = x.shape[1], hinges.slack[i], x.shape[1] + 1
    hinges.reached[i] = False
    while True:  # the threshold only grows, so entries only leave: at most T rounds
        total, count = 0.0, 0
        for t in range(T):
            if hinges.active[i, t] and not hinges.tied[i, t] and x[i, t] > threshold:
                total += x[i, t] - threshold
                count += 1
        if count == counted or total <= slack:
            break
        counted, hinges.reached[i] = count, True
        threshold += (total - slack) / count
    scale = slack / total if hinges.reached[i] and total > 0 else 1.0  # exactly C, whatever the rounding
    for t in range(T):
        if hinges.active[i, t] and not hinges.tied[i, t]:
            x[i, t] = max(x[i, t] - threshold, 0.0) * scale
