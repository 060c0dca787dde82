"""Where the searches of a regularisation path begin, and the data they share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from attsvm.norms import Norm
from attsvm.tokens import Tokens
from attsvm.training import heads, radii, runs
from attsvm.training.data import Data
from attsvm.training.heads import Head, Linear
from attsvm.training.radius import Cone, Problem
from attsvm.training.search import Search
from attsvm.training.segments import Segments

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
) -> Search:
    """The searches of a path; batch = (runs, starts); cone: axis, opening, the norm from which it counts."""
    given, axes = heads.arrays(head)
    # Single precision cannot resolve a radius of 1,000: the path is always computed in float64.
    head = _double(heads.with_arrays(head, runs.repeated(given, axes, batch[0])))
    data, scale = _data(tokens, batch[0])
    scores, guide = None, False
    if isinstance(head, Linear) and not problem.joint:
        guide = cone is None and batch[1] > 1
        scores = jax.device_put(_scores(tokens, head, batch[1], guide))
    batch = (batch[0], batch[1] + guide)
    head = jax.tree.map(lambda x: np.repeat(x[:, None], batch[1], axis=1), head)
    keep = None if cone is None else _cone(*cone, batch[0])
    if keep is None:
        draw = _anywhere(problem.weight.shapes(tokens.d, tokens.e), batch, seed)
    else:
        draw = _inside(keep, problem.norm, batch, seed)
    first = draw()
    if len(first) == 1:  # the zero of factors is a saddle
        next(iter(first.values()))[:, 0] = 0 if keep is None else keep.axis
    return Search(problem, data, head, scores, first, keep, guide, scale, radii.largest(tokens), draw, watch)


def _data(tokens: Tokens, count: int) -> tuple[Data, NDArray[Any]]:
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
    data = _double(Data(keys, queries, tokens.labels, tokens.mask, values))  # type: ignore[arg-type]
    return jax.device_put(data), np.broadcast_to(scale, (count, 1))


def _scores(tokens: Tokens, head: Linear, starts: int, guide: bool) -> NDArray[Any]:
    """γ (runs, starts, n, T); those of the guide are 1 for the best tokens, 0 for the others."""
    own = np.matmul(tokens.values, head.v[:, None, :, None])[..., 0] * tokens.labels[..., None]
    scores = np.repeat(own[:, None], starts + guide, axis=1)
    if guide:
        own = np.where(tokens.mask, own, -np.inf)
        scores[:, -1] = own == own.max(-1, keepdims=True)
    return scores


def _anywhere(shapes: dict[str, tuple[int, ...]], batch: tuple[int, int], seed: int) -> Callable[[], Any]:
    """Random directions of random length, (runs, starts, …), the same for every run."""
    rng = np.random.Generator(np.random.PCG64(seed))

    def draw() -> Any:
        drawn = {name: rng.standard_normal((1, batch[1], *shape)) for name, shape in shapes.items()}
        size = np.sqrt(sum((x * x).sum(tuple(range(2, x.ndim))) for x in drawn.values()))
        factor = SPREAD ** rng.uniform(-1, 1, size.shape) / size
        long = {name: x * factor.reshape(*factor.shape, *[1] * (x.ndim - 2)) for name, x in drawn.items()}
        return {name: np.array(np.broadcast_to(x, (*batch, *x.shape[2:]))) for name, x in long.items()}

    return draw


def _inside(cone: Cone, norm: Norm, batch: tuple[int, int], seed: int) -> Callable[[], Any]:
    """Random weights in cone and ball, (runs, starts, d, e): projections from afar would take long."""
    rng = np.random.Generator(np.random.PCG64(seed))
    axis, widest = np.asarray(cone.axis)[:, None], np.arccos(np.asarray(cone.cosine))

    def draw() -> Any:
        tilt = rng.standard_normal((1, batch[1], *axis.shape[2:]))  # the same for every run
        tilt = tilt - (tilt * axis).sum((2, 3), keepdims=True) * axis
        size = np.sqrt((tilt * tilt).sum((2, 3), keepdims=True))
        angle = (widest[:, None] * rng.uniform(size=batch[1]))[..., None, None]
        W = np.cos(angle) * axis + np.sin(angle) * tilt / np.where(size > 0, size, 1)
        length = SPREAD ** rng.uniform(-1, 0, batch[1]) / np.asarray(norm.value(W))
        return {"W": W * length[..., None, None]}

    return draw


def _cone(axis: NDArray[Any], opening: float, inner: float, count: int) -> Cone:
    each = np.broadcast_to(axis, (count, *axis.shape[-2:]))
    return Cone(each, np.full(count, 1.0 - opening), np.full(count, inner))  # type: ignore[arg-type]


def _double(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, float) if x.dtype.kind == "f" else np.asarray(x), tree)
