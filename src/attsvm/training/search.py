"""Many starts follow their branches over growing radii, others begin afresh; the best of them is the path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from attsvm.training.data import Data
from attsvm.training.descent import Descent, begin
from attsvm.training.heads import Head, Linear
from attsvm.training.radius import TOLERANCE, Answer, Cone, Problem, Region, best_head, best_weight
from attsvm.training.segments import Interrupted, Segments
from attsvm.training.weights import Params

STEPS, FEW_STEPS = 100_000, 5_000
"""Limits for a start, and for a fresh one, which goes on only if it is the best by then."""
ROUNDS = 100
"""Rounds of the joint problem: head, weight, head, …"""
RATIO = 4.0
"""Largest growth of the radius between two solves: more would lose the branch that is followed."""
CANDIDATES = 64
"""Random weights of which a fresh start is the best: half as many global minima are missed as with one."""
AGREEMENT = 1e-3
"""Two starts agree when their log(L − L*) differ by less: neighbouring minima differ by far more."""
LOSS_AGREEMENT = 1e-6
"""The same for heads whose best loss L* is not known, in units of the loss."""
SWITCH = 1e-3
"""Share of the agreement by which a fresh start must be better: rounding does not change the branch."""


class Search(NamedTuple):
    """A problem and its starts; head, scores and params carry (runs, starts) first, scale (runs, 1).

    scale: a radius in the units of `data` is scale · R; largest: where radii end. draw: new random params.
    guide: the last start is the guide. It sees the score 1 for the best tokens and 0 for the others:
    that problem has no other limit than the best tokens (the first paper's global theorem, equal
    scores), so it leads to the basin of the global minimum once the radius is large.
    """

    problem: Problem
    data: Data
    head: Head
    scores: Array | None
    params: Params
    cone: Cone | None  # with the norm itself as `inner`
    guide: bool
    scale: NDArray[Any]
    largest: NDArray[Any]
    draw: Callable[[], Params]
    watch: Segments

    def solve(self, radius: Any, head_radius: Any = 1.0, limit: int = STEPS, still: Any = False) -> Answer:
        """The point that every start reaches at its radius, a number or (runs, starts); still: who rests."""
        region, still = self._region(radius, head_radius), np.broadcast_to(still, self.batch)
        if self.problem.joint:
            return self._ranked(self._together(region, limit, still))
        return self._ranked(self._weight(region, self.head, self.params, limit, still))

    def fresh(self, radius: Any, head_radius: Any = 1.0) -> Search:
        """The same search from new starts, each the best of some random ones; the guide stays."""
        parts = (self.head, self.scores, self._region(radius, head_radius), begin(self.params))
        head, scores, region, state = jax.device_put(parts)
        chosen, least = self.params, np.full(self.batch, np.inf)
        stop: Any = 0  # no step: the loss of a candidate is all
        for _ in range(CANDIDATES):
            params = self.draw()
            there = best_weight(self.problem, self.data, head, scores, region, state._replace(x=params), stop)
            rank = self._ranks(there[1])
            chosen, least = where(rank < least, params, chosen), np.fmin(rank, least)
            self._took(0)
        return self._replace(params=chosen)

    def moved(self, answer: Answer, best: Answer) -> Search:
        """Ready for the next radius: the starts where they arrived.

        The first start continues the best one, so the path does not lose its branch; the second one
        leaves from the guide, the others keep to their own branches.
        """
        params, head = _put(answer.params, 0, best.params), _put(answer.head, 0, best.head)
        if self.guide:
            params = _put(params, 1, {name: x[:, -1] for name, x in params.items()})
        return self._replace(params=params, head=head)

    # ------------------------------------------------------------------ compiled calls

    @property
    def batch(self) -> tuple[int, ...]:
        return tuple(next(iter(self.params.values())).shape[:2])

    def _region(self, radius: Any, head_radius: Any) -> Region:
        one, cone = np.ones(self.batch), self.cone
        if cone is not None:
            cone = cone._replace(inner=cone.inner / radius)
        return Region(radius * self.scale * one, head_radius * one, cone)

    def _ranked(self, answer: Answer) -> Answer:
        # NumPy from here on: JAX would compile each of these small operations on its own.
        return jax.tree.map(np.asarray, answer)._replace(rank=self._ranks(answer))

    def _ranks(self, answer: Answer) -> Any:
        """Who is best: not a start that got lost, and not the guide."""
        rank = np.array(answer.rank)
        rank[np.isnan(rank)] = np.inf
        if self.guide:
            rank[:, -1] = np.inf
        return rank

    def _steps(
        self, go_on: Callable[[Descent, int], tuple[Descent, Any]], state: Descent, limit: int
    ) -> tuple[Any, Any]:
        """Call until every start is stationary, in segments; Ctrl-C ends it between two of them."""
        stop = 0
        while True:
            before, stop = stop, min(stop + self.watch.steps, limit)
            state, more = go_on(state, stop)
            self._took(int(np.asarray(state.taken).max()) - before)
            if stop == limit or np.asarray(state.stationary).all():
                return state, more

    def _took(self, steps: int) -> None:
        self.watch.took(steps)
        if self.watch.pressed:
            raise Interrupted(None)

    def _weight(self, region: Region, head: Head, params: Params, limit: int, still: Any) -> Answer:
        def go_on(state: Descent, stop: Any) -> tuple[Descent, Answer]:
            return best_weight(self.problem, self.data, head, self.scores, region, state, stop)

        return jax.tree.map(np.asarray, self._steps(go_on, begin(params, still), limit)[1])

    def _together(self, region: Region, limit: int, still: Any) -> Answer:
        """min L(v, W) over ‖v‖ ≤ r, N(W) ≤ R, block by block until the head stays where it is.

        The constraints do not couple the blocks, so a point that is best in each is stationary in both.
        In saturation the two gradients differ by e^(−R·margin): no joint step could see the smaller one.
        """
        radius = np.asarray(region.head_radius)[..., None]
        v, moving = jax.tree.leaves(self.head)[0] / radius, ~still
        answer = self._weight(region, self.head, self.params, limit, True)
        for _ in range(ROUNDS):
            params = answer.params

            def go_on(state: Descent, stop: Any, params: Params = params) -> tuple[Descent, None]:
                return best_head(self.problem, self.data, params, region, state, stop), None

            state, _ = self._steps(go_on, begin({"v": v}, ~moving), limit)
            new = np.asarray(state.x["v"])
            found = self._weight(region, Linear(new * radius), params, limit, ~moving)
            found = found._replace(stationary=found.stationary & np.asarray(state.stationary))
            answer = where(moving, found, answer)
            far, v = np.abs(new - v).max(-1) > 10 * TOLERANCE, np.where(moving[..., None], new, v)
            moving = moving & far
            if not moving.any():
                break
        return answer._replace(stationary=answer.stationary & ~moving)


class Found(NamedTuple):
    """The best start of every run (runs, …), its radius, and how many fresh starts found the same (runs,)."""

    answer: Answer
    radius: NDArray[Any]
    agreed: NDArray[np.intp]


def follow(search: Search, radii: NDArray[Any], head_radii: NDArray[Any] | None) -> Iterator[Found]:
    """The best of all starts at every radius: those that come from the radius before, and fresh ones."""
    for radius, head_radius, wanted in _ladder(radii, head_radii):
        answer = search.solve(radius, head_radius)
        agreed = np.zeros(len(search.scale), int)
        if wanted:
            answer, agreed = _refreshed(search, answer, radius, head_radius)
        best = at(answer, np.argmin(answer.rank, axis=1))
        search = search.moved(answer, best)
        if wanted:
            yield Found(best, np.full(len(agreed), radius), agreed)


def _refreshed(search: Search, answer: Answer, radius: float, head_radius: float) -> tuple[Answer, Any]:
    """The better of an answer and of fresh starts, start by start, and how many fresh ones found the best."""
    fresh = search.fresh(radius, head_radius).solve(radius, head_radius, FEW_STEPS)
    better, agreed = compared(answer, fresh)
    answer = where(better, fresh, answer)
    best = np.arange(search.batch[1]) == np.argmin(answer.rank, axis=1)[:, None]
    hurried = best & better & ~np.asarray(answer.stationary)
    if hurried.any():
        again = search._replace(params=answer.params, head=answer.head)
        answer = where(hurried, again.solve(radius, head_radius, still=~hurried), answer)
    return answer, agreed


def compared(followed: Answer, fresh: Answer) -> tuple[Any, NDArray[np.intp]]:
    """Which fresh starts are better (runs, starts), and how many of them agree with the best (runs,)."""
    tolerance = AGREEMENT if isinstance(fresh.head, Linear) else LOSS_AGREEMENT
    old, new = np.asarray(followed.rank), np.asarray(fresh.rank)
    loose = np.asarray(followed.stationary) & ~np.asarray(fresh.stationary)
    better = new < old - np.where(loose, tolerance, SWITCH * tolerance)
    least = np.where(better, new, old).min(1, keepdims=True)
    return better, ((new < np.inf) & (new <= least + tolerance)).sum(1)


def at(tree: Any, start: NDArray[np.intp]) -> Any:
    """One start of every run."""
    return jax.tree.map(lambda x: x[np.arange(len(start)), start], tree)


def where(mask: NDArray[np.bool_], new: Any, old: Any) -> Any:
    """Leaf by leaf, the new one where the mask (runs, starts) says so."""

    def chosen(x: NDArray[Any], y: NDArray[Any]) -> NDArray[Any]:
        return np.where(mask.reshape(mask.shape + (1,) * (np.ndim(x) - 2)), x, y)

    return jax.tree.map(chosen, new, old)


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
