"""Where the searches of a regularisation path begin, and the data they share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from attsvm.data.tokens import Tokens
from attsvm.norms import Norm
from attsvm.training import prediction_heads as heads, radii, runs
from attsvm.training.data import Data, equal_values, linear_scores
from attsvm.training.prediction_heads import Head, Linear
from attsvm.training.radius import Cone, Problem
from attsvm.training.search import Pair, Search
from attsvm.training.segments import Segments
from attsvm.training.weights import FullWeight, KeyQuery

SPREAD = 10.0
"""Random starts are this much shorter or longer than the ball, whose surface the long ones meet anywhere."""


def search(
    problem: Problem,
    tokens: Tokens,
    head: Head,
    batch: tuple[int, int],
    cone: tuple[NDArray[Any], float, float] | None,
    seed: int,
    watch: Segments,
    pair: tuple[NDArray[Any], NDArray[Any]] | None = None,
) -> Search:
    """The searches of a path; batch = (runs, starts); cone: axis, opening, the norm from which it counts.

    pair: v (runs, c) and W (runs, d, e) at which one search more begins, NaN in runs without.
    """
    given, axes = heads.arrays(head)
    # Single precision cannot resolve a radius of 1,000: the path is always computed in float64.
    head = _double(heads.with_arrays(head, runs.repeated(given, axes, batch[0])))
    scores, alike, guide = None, None, False
    if isinstance(head, Linear) and not problem.joint:
        guide = cone is None and batch[1] > 1
        scores = jax.device_put(_scores(tokens, head, batch[1], guide))
    else:
        alike = equal_values(tokens)
    data, scale = _data(tokens, batch[0], alike)
    pair_start = None if pair is None else _pair(problem, *pair)
    batch = (batch[0], batch[1] + guide + (pair_start is not None))
    head = jax.tree.map(lambda x: np.repeat(x[:, None], batch[1], axis=1), head)
    keep = None if cone is None else _cone(*cone, batch[0])

    def draws() -> Iterator[Any]:
        rng = np.random.Generator(np.random.PCG64(seed))
        if keep is None:
            drawn = _anywhere(problem.weight.shapes(tokens.d, tokens.e), batch, rng)
        else:
            drawn = _inside(keep, problem.norm, batch, rng)
        first = next(drawn)
        if len(first) == 1:  # the zero of factors is a saddle
            next(iter(first.values()))[:, 0] = 0 if keep is None else keep.axis
        yield first
        yield from drawn

    largest = radii.largest(tokens)
    return Search(
        problem,
        data,
        head,
        scores,
        next(draws()),
        keep,
        guide,
        scale,
        largest,
        draws,
        head,
        watch,
        pair_start,
    )


def _pair(problem: Problem, v: NDArray[Any], W: NDArray[Any]) -> Pair | None:
    """The pair at length one; None for weights whose parameters W does not tell."""
    present = np.isfinite(v).all(-1) & np.isfinite(W).all((-2, -1))
    v, W = np.where(present[:, None], v, 1.0), np.where(present[:, None, None], W, 1.0)
    v = v / np.asarray(problem.head_norm.value(v[..., None]))[:, None]
    W = W / np.asarray(problem.norm.value(W))[:, None, None]
    if isinstance(problem.weight, FullWeight):
        return Pair({"W": W}, v, present)
    if not isinstance(problem.weight, KeyQuery):
        return None
    U, sigma, Vt = np.linalg.svd(W, full_matrices=False)
    root, width = np.sqrt(sigma)[:, None, :], problem.weight.shapes(*W.shape[1:])["K"][1]
    factors = {"K": U * root, "Q": np.swapaxes(Vt, 1, 2) * root}
    missing = max(width - sigma.shape[1], 0)
    wide = {name: np.pad(x, ((0, 0), (0, 0), (0, missing)))[..., :width] for name, x in factors.items()}
    return Pair(wide, v, present)


def _data(tokens: Tokens, count: int, alike: Any) -> tuple[Data, NDArray[Any]]:
    """The tokens with keys and queries of a size that products neither under- nor overflow; its scale."""
    of_keys, of_queries = radii.units(tokens)
    keys, queries = tokens.keys, tokens.queries
    values = None if tokens.values is tokens.keys else tokens.values
    if of_keys.any() or of_queries.any():
        lead = (-1,) if tokens.runs else ()
        keys = np.ldexp(keys.astype(float), -of_keys.reshape(*lead, 1, 1, 1))
        queries = np.ldexp(queries.astype(float), -of_queries.reshape(*lead, 1, 1))
        values = tokens.values
    scale = np.ldexp(1.0, of_keys + of_queries)
    data = _double(Data(keys, queries, tokens.labels, tokens.mask, values, alike=alike))  # type: ignore[arg-type]
    return jax.device_put(data), np.broadcast_to(scale, (count, 1))


def _scores(tokens: Tokens, head: Linear, starts: int, guide: bool) -> NDArray[Any]:
    """γ (runs, starts, n, T); those of the guide are 1 for the best tokens, 0 for the others."""
    own = linear_scores(tokens.values, tokens.labels, tokens.mask, head.v)
    scores = np.repeat(own[:, None], starts + guide, axis=1)
    if guide:
        own = np.where(tokens.mask, own, -np.inf)
        scores[:, -1] = own == own.max(-1, keepdims=True)
    return scores


def _anywhere(
    shapes: dict[str, tuple[int, ...]], batch: tuple[int, int], rng: np.random.Generator
) -> Iterator[Any]:
    """Random directions of random length, (runs, starts, …), the same for every run."""
    while True:
        drawn = {name: rng.standard_normal((1, batch[1], *shape)) for name, shape in shapes.items()}
        size = np.sqrt(sum((x * x).sum(tuple(range(2, x.ndim))) for x in drawn.values()))
        factor = SPREAD ** rng.uniform(-1, 1, size.shape) / size
        long = {name: x * factor.reshape(*factor.shape, *[1] * (x.ndim - 2)) for name, x in drawn.items()}
        yield {name: np.array(np.broadcast_to(x, (*batch, *x.shape[2:]))) for name, x in long.items()}


def _inside(cone: Cone, norm: Norm, batch: tuple[int, int], rng: np.random.Generator) -> Iterator[Any]:
    """Random weights in cone and ball, (runs, starts, d, e): projections from afar would take long."""
    axis, widest = np.asarray(cone.axis)[:, None], np.arccos(np.asarray(cone.cosine))
    while True:
        tilt = rng.standard_normal((1, batch[1], *axis.shape[2:]))  # the same for every run
        tilt = tilt - (tilt * axis).sum((2, 3), keepdims=True) * axis
        size = np.sqrt((tilt * tilt).sum((2, 3), keepdims=True))
        angle = (widest[:, None] * rng.uniform(size=batch[1]))[..., None, None]
        W = np.cos(angle) * axis + np.sin(angle) * tilt / np.where(size > 0, size, 1)
        length = SPREAD ** rng.uniform(-1, 0, batch[1]) / np.asarray(norm.value(W))
        yield {"W": W * length[..., None, None]}


def _cone(axis: NDArray[Any], opening: float, inner: float, count: int) -> Cone:
    each = np.broadcast_to(axis, (count, *axis.shape[-2:]))
    return Cone(each, np.full(count, 1.0 - opening), np.full(count, inner))  # type: ignore[arg-type]


def _double(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, float) if x.dtype.kind == "f" else np.asarray(x), tree)
