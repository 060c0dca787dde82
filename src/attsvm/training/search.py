"""Many starts follow their branches over growing radii; the best of them is the path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from attsvm.training.attention import Data
from attsvm.training.heads import Head, Linear
from attsvm.training.radius import Answer, Cone, Problem, Region, smallest
from attsvm.training.weights import Params

RATIO = 4.0
"""Largest growth of the radius between two solves: more would lose the branch that is followed."""
AGREEMENT = 1e-3
"""Two starts agree when their log(L − L*) differ by less: neighbouring minima differ by far more."""
LOSS_AGREEMENT = 1e-6
"""The same for heads whose best loss L* is not known, in units of the loss."""


class Search(NamedTuple):
    """A problem and its starts; head, scores and params carry (runs, starts) first.

    guide: the last start is the guide. It sees the score 1 for the best tokens and 0 for the others:
    that problem has no other limit than the best tokens (the first paper's global theorem, equal
    scores), so it leads to the basin of the global minimum once the radius is large.
    """

    problem: Problem
    data: Data
    head: Head
    scores: Array | None
    params: Params
    cone: Cone | None
    guide: bool

    def solve(self, radius: Any, head_radius: Any = 1.0) -> Answer:
        """The point that every start reaches at its radius, a number or (runs, starts)."""
        batch = np.ones(next(iter(self.params.values())).shape[:2])
        region = Region(radius * batch, head_radius * batch, self.cone)
        answer = smallest(self.problem, self.data, self.head, self.scores, self.params, region)
        # NumPy from here on: JAX would compile each of these small operations on its own.
        answer = jax.tree.map(np.array, answer)
        if self.guide:
            answer.rank[:, -1] = np.inf
        return answer

    def moved(self, answer: Answer, best: Answer, growth: Any) -> Search:
        """Ready for the next radius, `growth` times as large: the starts where they arrived.

        The first start continues the best one, so the path does not lose its branch; the second one
        leaves from the guide, the others keep to their own branches.
        """
        params, head = _put(answer.params, 0, best.params), _put(answer.head, 0, best.head)
        if self.guide:
            params = _put(params, 1, {name: x[:, -1] for name, x in params.items()})
        return self._replace(params=scaled(params, growth), head=head)


class Found(NamedTuple):
    """The best start of every run (runs, …), its position and how many starts agreed with it (runs,)."""

    answer: Answer
    start: NDArray[np.intp]
    agreed: NDArray[np.intp]


def follow(search: Search, radii: NDArray[Any], head_radii: NDArray[Any] | None) -> list[Found]:
    """The best of all starts at every radius, warm-started from the radius before."""
    found = []
    rungs = list(_ladder(radii, head_radii))
    for (radius, head_radius, wanted), (following, *_) in zip(rungs, rungs[1:] + rungs[-1:], strict=True):
        answer = search.solve(radius, head_radius)
        best = pick(answer)
        search = search.moved(answer, best.answer, following / radius)
        found += [best] * wanted
    return found


def pick(answer: Answer) -> Found:
    """The best start of every run."""
    best = np.argmin(answer.rank, axis=1)
    one = jax.tree.map(lambda x: x[np.arange(len(best)), best], answer)
    tolerance = AGREEMENT if isinstance(answer.head, Linear) else LOSS_AGREEMENT
    return Found(one, best, (answer.rank <= one.rank[:, None] + tolerance).sum(1))


def scaled(params: Params, growth: Any) -> Params:
    """Parameters whose W is `growth` times as large, a number or (runs, starts)."""
    degree = len(params)
    factor = np.atleast_2d(growth) ** (1 / degree)
    return {name: x * factor.reshape(factor.shape + (1,) * (x.ndim - 2)) for name, x in params.items()}


# ---------------------------------------------------------------------- details


def _ladder(radii: NDArray[Any], head_radii: NDArray[Any] | None) -> Iterator[tuple[float, float, bool]]:
    """The radii and, between distant ones, rungs that are solved but not recorded."""
    heads = np.ones_like(radii) if head_radii is None else head_radii
    yield radii[0], heads[0], False  # solved twice: the guide is known from the second time on
    yield radii[0], heads[0], True
    for k in range(1, len(radii)):
        grow = max(radii[k] / radii[k - 1], heads[k] / heads[k - 1])
        rungs = max(int(np.ceil(np.log(grow) / np.log(RATIO))), 1)
        share = np.arange(1, rungs + 1) / rungs
        between = [a[k - 1] ** (1 - share) * a[k] ** share for a in (radii, heads)]
        for j in range(rungs):
            last = j == rungs - 1
            yield radii[k] if last else between[0][j], heads[k] if last else between[1][j], last


def _put(tree: Any, start: int, value: Any) -> Any:
    def placed(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        x = x.copy()
        x[:, start] = y
        return x

    return jax.tree.map(placed, tree, value)
