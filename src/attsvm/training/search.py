"""Many starts follow their branches over growing radii, others begin afresh; the best of them is the path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jax import Array
from numpy.typing import NDArray

from attsvm.training.data import Data
from attsvm.training.prediction_heads import Head, Linear
from attsvm.training.radius import (
    DESCENT,
    BallProblem,
    Cone,
    Descent,
    Endpoint,
    Region,
    begin,
    best_head,
    best_weight,
)
from attsvm.training.segments import Interrupted, Segments
from attsvm.training.types import AnyArray, Flags, Floats, Index, Scalar, Tree
from attsvm.training.weights import Params


@dataclass(frozen=True)
class SearchLimits:
    """How long searches go on, and when two of them found the same minimum."""

    steps: int = 100_000  # of a start
    fresh_steps: int = 5_000  # of a fresh one, which continues beyond only if it is the best by then
    rounds: int = 100  # of the joint problem: head, weight, head, …
    growth: float = 4.0  # of the radius between two solves: more would lose the branch that is followed
    candidates: int = 64  # of which a fresh start is the best: half as many minima are missed as with one
    agreement: float = 1e-3  # of log(L − L*): neighbouring minima differ by far more
    loss_agreement: float = 1e-6  # the same of L, for heads whose best loss L* is not known
    switch: float = 1e-3  # share of the agreement by which a fresh start must be better: rounding is less


@dataclass(frozen=True)
class RidgeLimits:
    """How exactly the radius of a ridge is found."""

    accuracy: float = 1e-8  # of log λ, and of R where a branch ends in a jump
    jump: float = 1e-6  # an error of log λ that rounding cannot explain: the branch ends in a jump
    trials: int = 200


LIMITS, RIDGE = SearchLimits(), RidgeLimits()


class Search(NamedTuple):
    """A problem and its starts; head, scores and params carry (runs, starts) first, scale (runs, 1).

    scale: a radius in the units of `data` is scale · R; largest: where radii end.
    draws: makes the generator of random params, whose first ones are those of `initial`: fresh starts are the
        same at every radius and do not depend on other radii. origin: the head as it was passed.
    guide: the last start is the guide. It sees the score 1 for the best tokens and 0 for the others:
    that problem has no other limit than the best tokens (the first paper's global theorem, equal
    scores), so it leads to the basin of the global minimum once the radius is large.
    """

    problem: BallProblem
    data: Data
    head: Head
    scores: Array | None
    params: Params
    cone: Cone | None  # with the norm itself as `inner`
    guide: bool
    scale: Floats
    largest: Floats
    draws: Callable[[], Iterator[Params]]
    origin: Head
    watch: Segments

    def solve(
        self, radius: Scalar, head_radius: Scalar = 1.0, limit: int = LIMITS.steps, still: Scalar = False
    ) -> Endpoint:
        """The point that every start reaches at its radius, (runs, starts) or one; still: which rest."""
        region, still = self._region(radius, head_radius), np.broadcast_to(still, self.batch)
        if self.problem.joint:
            return self._ranked(self._head_and_weight(region, limit, still))
        return self._ranked(self._weight(region, self.head, self.params, limit, still))

    def initial(self) -> Search:
        """The search before its first step, with random params."""
        return self._replace(params=next(self.draws()), head=self.origin)

    @property
    def starts(self) -> int:
        """The number of random starts: all but the guide."""
        return self.batch[1] - self.guide

    def restarted(self, radius: Scalar, head_radius: Scalar, endpoint: Endpoint) -> Search:
        """The search from other starts: each the best of some random ones, the second one from the guide.

        endpoint: of the search before its first step, which holds the guide.
        """
        arrays = (self.head, self.scores, self._region(radius, head_radius), begin(self.params))
        head, scores, region, state = jax.device_put(arrays)
        best, least = endpoint.params, np.full(self.batch, np.inf)
        stop: Index = 0  # no step: only the losses of candidates are needed
        for _, params in zip(range(LIMITS.candidates + 1), self.draws(), strict=False):
            candidate = best_weight(
                self.problem, self.data, head, scores, region, state._replace(x=params), stop
            )
            rank = self._ranks(candidate[1])
            best, least = where(rank < least, params, best), np.fmin(rank, least)
            self._took(0)
        return self._replace(params=self._from_guide(best))

    def moved(self, endpoint: Endpoint, best: Endpoint) -> Search:
        """The search for the next radius: each start where it arrived.

        The first start continues the best one, so the path does not lose its branch; the second one
        leaves from the guide, the others keep to their own branches.
        """
        params, head = _put(endpoint.params, 0, best.params), _put(endpoint.head, 0, best.head)
        return self._replace(params=self._from_guide(params), head=head)

    def _from_guide(self, params: Params) -> Params:
        """Move the second start to the guide."""
        return _put(params, 1, {name: x[:, -1] for name, x in params.items()}) if self.guide else params

    # ------------------------------------------------------------------ compiled calls

    @property
    def batch(self) -> tuple[int, ...]:
        return tuple(next(iter(self.params.values())).shape[:2])

    def _region(self, radius: Scalar, head_radius: Scalar) -> Region:
        ones, cone = np.ones(self.batch), self.cone
        if cone is not None:
            cone = cone._replace(inner=cone.inner / radius)
        return Region(radius * self.scale * ones, head_radius * ones, cone)

    def _ranked(self, endpoint: Endpoint) -> Endpoint:
        # NumPy from here on: JAX would compile each of these small operations on its own.
        return jax.tree.map(np.asarray, endpoint)._replace(rank=self._ranks(endpoint))

    def _ranks(self, endpoint: Endpoint) -> AnyArray:
        """The ranks, ∞ for a start that diverged and for the guide."""
        rank = np.array(endpoint.rank)
        rank[np.isnan(rank)] = np.inf
        if self.guide:
            rank[:, -1] = np.inf
        return rank

    def _steps(
        self, go_on: Callable[[Descent, int], tuple[Descent, Tree]], state: Descent, limit: int
    ) -> tuple[Descent, Tree]:
        """Call until every start is stationary, in segments; Ctrl-C ends it between two of them."""
        stop = 0
        while True:
            last_stop, stop = stop, min(stop + self.watch.steps, limit)
            state, result = go_on(state, stop)
            self._took(int(np.asarray(state.taken).max()) - last_stop)
            if stop == limit or np.asarray(state.stationary).all():
                return state, result

    def _took(self, steps: int) -> None:
        self.watch.took(steps)
        if self.watch.pressed:
            raise Interrupted(None)

    def _weight(self, region: Region, head: Head, params: Params, limit: int, still: Scalar) -> Endpoint:
        def go_on(state: Descent, stop: Index) -> tuple[Descent, Endpoint]:
            return best_weight(self.problem, self.data, head, self.scores, region, state, stop)

        return jax.tree.map(np.asarray, self._steps(go_on, begin(params, still), limit)[1])

    def _head_and_weight(self, region: Region, limit: int, still: Scalar) -> Endpoint:
        """min L(v, W) over ‖v‖ ≤ r, N(W) ≤ R, block by block until the head stays where it is.

        The constraints do not couple the blocks, so a point that is best in each is stationary in both.
        In saturation the two gradients differ by e^(−R·margin): no joint step could see the smaller one.
        """
        radius = np.asarray(region.head_radius)[..., None]
        v, moving = jax.tree.leaves(self.head)[0] / radius, ~still
        endpoint = self._weight(region, self.head, self.params, limit, True)
        for _ in range(LIMITS.rounds):
            params = endpoint.params

            def go_on(state: Descent, stop: Index, params: Params = params) -> tuple[Descent, None]:
                return best_head(self.problem, self.data, params, region, state, stop), None

            state, _ = self._steps(go_on, begin({"v": v}, ~moving), limit)
            new = np.asarray(state.x["v"])
            candidate = self._weight(region, Linear(new * radius), params, limit, ~moving)
            candidate = candidate._replace(stationary=candidate.stationary & np.asarray(state.stationary))
            endpoint = where(moving, candidate, endpoint)
            far, v = np.abs(new - v).max(-1) > 10 * DESCENT.tolerance, np.where(moving[..., None], new, v)
            moving = moving & far
            if not moving.any():
                break
        return endpoint._replace(stationary=endpoint.stationary & ~moving)


class BestStart(NamedTuple):
    """The best start of every run (runs, …), its radius, and how many fresh starts found the same (runs,)."""

    endpoint: Endpoint
    radius: Floats
    agreed: NDArray[np.intp]


def follow(search: Search, radii: Floats, head_radii: Floats | None) -> Iterator[BestStart]:
    """The best of all starts at every radius: those that come from the radius before, and fresh ones.

    The fresh ones do not depend on the radii before, so that a path is nowhere worse than its radius alone.
    """
    endpoint: Endpoint | None = None
    for radius, head_radius, recorded in _ladder(radii, head_radii):
        if endpoint is not None:
            endpoint = search.solve(radius, head_radius)
        if recorded:
            endpoint, agreeing = _refreshed(search, endpoint, radius, head_radius)
        assert endpoint is not None  # the first radius is wanted
        best = at(endpoint, np.argmin(endpoint.rank, axis=1))
        search = search.moved(endpoint, best)
        if recorded:
            yield BestStart(best, np.full(len(agreeing), radius), agreeing[:, : search.starts].sum(1))


def _refreshed(
    search: Search, endpoint: Endpoint | None, radius: float, head_radius: float
) -> tuple[Endpoint, AnyArray]:
    """The better of an endpoint and of fresh starts, start by start, and which fresh ones found the best."""

    def solve(search: Search, at_radius: Scalar) -> tuple[Endpoint, AnyArray]:
        return search.solve(at_radius, head_radius, LIMITS.fresh_steps), at_radius

    fresh, _ = fresh_endpoints(search, solve, radius, head_radius)
    best = np.arange(search.batch[1]) == np.argmin(fresh.rank, axis=1)[:, None]
    hurried = best & ~np.asarray(fresh.stationary)
    if endpoint is not None:  # where both end in one place, one of them need not go on
        least = endpoint.rank.min(1, keepdims=True)
        with np.errstate(invalid="ignore"):  # two excesses of zero are one place: −∞ − −∞ is not above
            hurried &= np.abs(fresh.rank - least) > agreement(fresh)
    if hurried.any():
        continued = search._replace(params=fresh.params, head=fresh.head)
        fresh = where(hurried, continued.solve(radius, head_radius, still=~hurried), fresh)
    better, agreeing = compared(fresh if endpoint is None else endpoint, fresh)
    return (fresh if endpoint is None else where(better, fresh, endpoint)), agreeing


def fresh_endpoints(
    search: Search,
    solve: Callable[[Search, Scalar], tuple[Endpoint, AnyArray]],
    radius: Scalar,
    head_radius: Scalar = 1.0,
) -> tuple[Endpoint, AnyArray]:
    """What fresh starts find, start by start the better of two, with its radius: the same in every path.

    Of each two starts the first begins at zero or at random, as a path does, and finds any minimum. The
    second begins at the best of many random weights; it finds a deep minimum, but mostly the same one.
    """
    initial = search.initial()
    from_anywhere = solve(initial, radius)
    from_best = solve(initial.restarted(from_anywhere[1], head_radius, from_anywhere[0]), from_anywhere[1])
    better: tuple[Endpoint, AnyArray] = where(
        np.asarray(from_best[0].rank < from_anywhere[0].rank), from_best, from_anywhere
    )
    return better


def agreement(endpoint: Endpoint) -> float:
    """Two starts whose ranks differ by less found the same minimum."""
    return LIMITS.agreement if isinstance(endpoint.head, Linear) else LIMITS.loss_agreement


def compared(followed: Endpoint, fresh: Endpoint) -> tuple[AnyArray, Flags]:
    """Which fresh starts are better (runs, starts), and which of them agree with the best."""
    tolerance = agreement(fresh)
    old, new = np.asarray(followed.rank), np.asarray(fresh.rank)
    loose = np.asarray(followed.stationary) & ~np.asarray(fresh.stationary)
    better = new < old - np.where(loose, tolerance, LIMITS.switch * tolerance)
    least = np.where(better, new, old).min(1, keepdims=True)
    return better, (new < np.inf) & (new <= least + tolerance)


def at(tree: Tree, start: NDArray[np.intp]) -> Tree:
    """One start of every run."""
    return jax.tree.map(lambda x: x[np.arange(len(start)), start], tree)


def where(mask: Flags, new: Tree, old: Tree) -> Tree:
    """Leaf by leaf, the new value where the mask (runs, starts) is True."""

    def of_leaf(x: Floats, y: Floats) -> Floats:
        return np.where(mask.reshape(mask.shape + (1,) * (np.ndim(y) - 2)), x, y)

    return jax.tree.map(of_leaf, new, old)


# ---------------------------------------------------------------------- ridges


def follow_ridges(search: Search, ridges: Floats) -> Iterator[BestStart]:
    """The best of all starts for every ridge, in decreasing order.

    Stationarity of L + λN²/2 is −∇L ∈ λ N ∂N: the W_R at which N*(∇L(W_R)) = λR. Every start finds its
    own root R; the best has the smallest L + λR²/2.
    """
    origin = np.minimum(1.0, search.largest) * np.ones(search.batch)
    radius = origin
    for k, strength in enumerate(ridges):

        def solve(search: Search, radius: Scalar, strength: float = strength) -> tuple[Endpoint, AnyArray]:
            return _at_ridge(search, strength, radius)

        fresh = fresh_endpoints(search, solve, origin)
        followed = solve(search, radius) if k else fresh
        better, agreeing = compared(followed[0], fresh[0])
        endpoint, radius = where(better, fresh, followed)
        best, radius[:, 0] = at((endpoint, radius), np.argmin(endpoint.rank, axis=1))
        yield BestStart(best, radius[:, 0].copy(), agreeing[:, : search.starts].sum(1))
        if search.guide:
            radius[:, 1] = radius[:, -1]
        search = search.moved(endpoint, best)


def _at_ridge(search: Search, strength: float, radius: Floats) -> tuple[Endpoint, Floats]:
    """The radius of every start, by false position on log N*(∇L) − log R − log λ, which falls with R.

    The rank of the endpoint is that of L + λR²/2.
    """
    bracket = _Bracket(radius.shape)
    for _ in range(RIDGE.trials):
        endpoint = search.solve(radius)
        value = endpoint.log_pull + np.log(search.scale) - np.log(radius) - np.log(strength)
        solved = bracket.narrow(radius, value)
        if solved.all():
            break
        search = search._replace(params=endpoint.params)
        radius = np.where(solved, radius, np.minimum(bracket.middle(), search.largest))
    penalty = np.log(strength / 2) + 2 * np.log(radius)
    in_logs = search.scores is not None  # then the rank is log(L − L*), else L
    rank = np.logaddexp(endpoint.rank, penalty) if in_logs else endpoint.rank + np.exp(penalty)
    stationary = endpoint.stationary & (np.abs(value) <= RIDGE.jump)
    return endpoint._replace(stationary=stationary, rank=rank), radius


class _Bracket:
    """Radii below and above each root, with the function's values there (Illinois variant)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.low, self.high = np.zeros(shape), np.full(shape, np.inf)
        self.low_value, self.high_value = np.full(shape, np.inf), np.full(shape, -np.inf)
        self.side = np.zeros(shape)

    def narrow(self, radius: Floats, value: Floats) -> Floats:
        """Narrow by new values; True where the root is found."""
        short = value > 0
        # Two moves of one end in a row: halve the value of the other, or it would never move.
        self.high_value = np.where(short & (self.side > 0), self.high_value / 2, self.high_value)
        self.low_value = np.where(~short & (self.side < 0), self.low_value / 2, self.low_value)
        self.low, self.low_value = np.where(short, (radius, value), (self.low, self.low_value))
        self.high, self.high_value = np.where(short, (self.high, self.high_value), (radius, value))
        self.side = np.where(short, 1, -1)
        return (np.abs(value) <= RIDGE.accuracy) | (self.high - self.low <= RIDGE.accuracy * self.low)

    def middle(self) -> Floats:
        """The next radius: twice or half the known one, then false position."""
        both = np.isfinite(self.low_value) & np.isfinite(self.high_value)
        rise, fall = np.where(both, self.low_value, 1), np.where(both, -self.high_value, 1)
        low, high = np.where(both, self.low, 0), np.where(both, self.high, 0)
        inner = (low * fall + high * rise) / (rise + fall)
        outer = np.where(np.isfinite(self.high), (self.low + self.high) / 2, 2 * self.low)
        return np.where(both, inner, outer)


# ---------------------------------------------------------------------- details


def _ladder(radii: Floats, head_radii: Floats | None) -> Iterator[tuple[float, float, bool]]:
    """The radii and, between distant ones, rungs that are solved but not recorded."""
    heads = np.ones_like(radii) if head_radii is None else head_radii
    yield radii[0], heads[0], True
    for k in range(1, len(radii)):
        grow = max(radii[k] / radii[k - 1], heads[k] / heads[k - 1])
        rungs = max(int(np.ceil(np.log(grow) / np.log(LIMITS.growth))), 1)
        share = np.arange(1, rungs + 1) / rungs
        between = [a[k - 1] ** (1 - share) * a[k] ** share for a in (radii, heads)]
        for j in range(rungs):
            last = j == rungs - 1
            yield radii[k] if last else between[0][j], heads[k] if last else between[1][j], last


def _put(tree: Tree, start: int, value: Tree) -> Tree:
    def placed(x: Floats, y: Floats) -> Floats:
        x = x.copy()
        x[:, start] = y
        return x

    return jax.tree.map(placed, tree, value)
