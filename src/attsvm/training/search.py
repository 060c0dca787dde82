"""Many starts follow their branches over growing radii; the best of them is the path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from attsvm.training.attention import Data
from attsvm.training.heads import Head
from attsvm.training.losses import linear
from attsvm.training.radius import Answer, Cone, Problem, Region, smallest
from attsvm.training.weights import Params

RATIO = 4.0
"""Largest growth of the radius between two solves: more would lose the branch that is followed."""
AGREEMENT = 1e-3
"""Two starts agree when their log(L − L*) differ by less: neighbouring minima differ by far more."""


class Search(NamedTuple):
    """A problem and the starts of its runs, all with (runs, starts) first.

    best: bool (runs, n, T), the tokens of highest score; None where they are not known or not wanted.
    """

    problem: Problem
    data: Data
    head: Head
    params: Params
    cone: Cone | None
    best: Array | None


class Found(NamedTuple):
    """The best start of every run (runs, …), and how many starts agreed with it (runs,)."""

    answer: Answer
    agreed: Array


def follow(search: Search, radii: NDArray[Any], head_radii: NDArray[Any] | None) -> list[Found]:
    """The best of all starts at every radius, warm-started from the radius before.

    The first start continues the best of the last radius, so the loss never rises along the path. The
    second one begins at every radius from the guide (below); the others keep to their own branches.
    """
    found, last = [], None
    params, head, guide = search.params, search.head, search.params
    for radius, head_radius, wanted in _ladder(radii, head_radii):
        region = _region(search, radius, head_radius)
        growth = 1.0 if last is None else radius / last
        params, guide = scaled(params, growth), scaled(guide, growth)
        if search.best is not None:
            guide = guided(search, guide, region)
            count = region.radius.shape[1]
            if count > 1 or last is None:
                params = put(params, min(1, count - 1), _at(guide, 0))
        answer = smallest(search.problem, search.data, head, params, region)
        one = pick(answer)
        params, head = (
            put(a, 0, b) for a, b in ((answer.params, one.answer.params), (answer.head, one.answer.head))
        )
        found += [one] * wanted
        last = radius
    return found


def guided(search: Search, params: Params, region: Region) -> Params:
    """Where the loss would be smallest if all tokens but the best had one equal score.

    That problem has no other limit than the best tokens (Theorem 2 of the first paper, Assumption B),
    so its solution lies in the basin of the global minimum once the radius is large.
    """
    problem = Problem(search.problem.weight, linear, search.problem.norm, data_runs=search.problem.data_runs)
    first = Region(region.radius[:, :1], region.head_radius[:, :1], None)
    head = jax.tree.map(lambda x: x[:, :1], search.head)
    start = {name: x[:, :1] for name, x in params.items()}
    assert search.best is not None
    return smallest(problem, search.data, head, start, first, search.best.astype(float)).params


def pick(answer: Answer, tolerance: float = AGREEMENT) -> Found:
    """The best start of every run."""
    best = jnp.argmin(answer.rank, axis=1)
    one = jax.tree.map(lambda x: x[jnp.arange(len(best)), best], answer)
    near = answer.rank <= (one.rank + tolerance)[:, None]
    return Found(one, near.sum(1))


def scaled(params: Params, growth: Any) -> Params:
    """Parameters whose W is `growth` times as large, growth a number or (runs, starts)."""
    factor = jnp.asarray(growth) ** (1 / len(params))
    return {
        name: x * factor.reshape(factor.shape + (1,) * (x.ndim - factor.ndim)) for name, x in params.items()
    }


def put(tree: Any, start: int, value: Any) -> Any:
    """The tree with another value (runs, …) for one start."""
    return jax.tree.map(lambda x, y: x.at[:, start].set(y), tree, value)


# ---------------------------------------------------------------------- details


def _ladder(radii: NDArray[Any], head_radii: NDArray[Any] | None) -> Iterator[tuple[float, float, bool]]:
    """The radii and, between distant ones, rungs that are solved but not recorded."""
    heads = np.ones_like(radii) if head_radii is None else head_radii
    yield radii[0], heads[0], True
    for k in range(1, len(radii)):
        grow = max(radii[k] / radii[k - 1], heads[k] / heads[k - 1])
        rungs = max(int(np.ceil(np.log(grow) / np.log(RATIO))), 1)
        share = np.arange(1, rungs + 1) / rungs
        between = [a[k - 1] ** (1 - share) * a[k] ** share for a in (radii, heads)]
        for j in range(rungs):
            last = j == rungs - 1
            yield radii[k] if last else between[0][j], heads[k] if last else between[1][j], last


def _region(search: Search, radius: float, head_radius: float) -> Region:
    batch = jnp.ones(next(iter(search.params.values())).shape[:2])
    return Region(radius * batch, head_radius * batch, search.cone)


def _at(tree: Any, start: int) -> Any:
    return jax.tree.map(lambda x: x[:, start], tree)
