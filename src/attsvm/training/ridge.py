"""The ridge form: argmin L(W) + λ N(W)²/2 is the W_R whose multiplier is λ."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attsvm.training.radius import Answer
from attsvm.training.search import Found, Search, at, compared, where

ACCURACY = 1e-8
"""Accuracy of log λ at which the radius of a ridge is found, and of R where a branch ends in a jump."""
JUMP = 1e-6
"""An error of log λ that rounding of a stationary point cannot explain: the branch ends in a jump."""
TRIALS = 200


def follow_ridges(search: Search, ridges: NDArray[Any]) -> Iterator[Found]:
    """The best of all starts for every ridge, in decreasing order.

    Stationarity of L + λN²/2 is −∇L ∈ λ N ∂N: the W_R at which N*(∇L(W_R)) = λR. Every start finds its
    own root R; the best has the smallest L + λR²/2.
    """
    radius = np.minimum(1.0, search.largest) * np.ones(search.batch)
    for k, strength in enumerate([ridges[0], *ridges]):  # the first twice: the guide is known after one
        answer, radius = _at_ridge(search, strength, radius)
        fresh, other = answer, radius
        if k:
            fresh, other = _at_ridge(search.fresh(radius), strength, radius)
        better, agreed = compared(answer, fresh)
        answer, radius = where(better, (fresh, other), (answer, radius))
        best, radius[:, 0] = at((answer, radius), np.argmin(answer.rank, axis=1))
        if k:
            yield Found(best, radius[:, 0].copy(), agreed)
        if search.guide:
            radius[:, 1] = radius[:, -1]
        search = search.moved(answer, best)


def _at_ridge(search: Search, strength: float, radius: NDArray[Any]) -> tuple[Answer, NDArray[Any]]:
    """The radius of every start, by false position on log N*(∇L) − log R − log λ, which falls with R.

    The rank of the answer is that of L + λR²/2.
    """
    bracket = _Bracket(radius.shape)
    for _ in range(TRIALS):
        answer = search.solve(radius)
        value = answer.log_pull + np.log(search.scale) - np.log(radius) - np.log(strength)
        done = bracket.narrow(radius, value)
        if done.all():
            break
        search = search._replace(params=answer.params)
        radius = np.where(done, radius, np.minimum(bracket.middle(), search.largest))
    penalty = np.log(strength / 2) + 2 * np.log(radius)
    in_logs = search.scores is not None  # then the rank is log(L − L*), else L
    rank = np.logaddexp(answer.rank, penalty) if in_logs else answer.rank + np.exp(penalty)
    found = answer.stationary & (np.abs(value) <= JUMP)
    return answer._replace(stationary=found, rank=rank), radius


class _Bracket:
    """Radii below and above each root, with the function's values there (Illinois variant)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.low, self.high = np.zeros(shape), np.full(shape, np.inf)
        self.low_value, self.high_value = np.full(shape, np.inf), np.full(shape, -np.inf)
        self.side = np.zeros(shape)

    def narrow(self, radius: NDArray[Any], value: NDArray[Any]) -> NDArray[Any]:
        """Take in new values; True where the root is known."""
        short = value > 0
        # Two moves of one end in a row: halve the value of the other, or it would never move.
        self.high_value = np.where(short & (self.side > 0), self.high_value / 2, self.high_value)
        self.low_value = np.where(~short & (self.side < 0), self.low_value / 2, self.low_value)
        self.low, self.low_value = np.where(short, (radius, value), (self.low, self.low_value))
        self.high, self.high_value = np.where(short, (self.high, self.high_value), (radius, value))
        self.side = np.where(short, 1, -1)
        return (np.abs(value) <= ACCURACY) | (self.high - self.low <= ACCURACY * self.low)

    def middle(self) -> NDArray[Any]:
        """The next radius: twice or half the known one, then false position."""
        both = np.isfinite(self.low_value) & np.isfinite(self.high_value)
        rise, fall = np.where(both, self.low_value, 1), np.where(both, -self.high_value, 1)
        low, high = np.where(both, self.low, 0), np.where(both, self.high, 0)
        inner = (low * fall + high * rise) / (rise + fall)
        outer = np.where(np.isfinite(self.high), (self.low + self.high) / 2, 2 * self.low)
        return np.where(both, inner, outer)
