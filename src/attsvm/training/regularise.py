"""regularisation_path(): the smallest loss in growing norm balls, and what its direction tends to."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol

import jax
import numpy as np
from numpy.typing import ArrayLike

from attsvm._support.validation import as_integer, is_finite, is_integer
from attsvm.data.equal_keys import merged
from attsvm.data.path import Path
from attsvm.data.tokens import Tokens, as_tokens
from attsvm.norms import Norm, capabilities_of, frobenius
from attsvm.norms.names import norm_of
from attsvm.training import prediction_heads as heads, runs, weights
from attsvm.training.balls import PROJECTED
from attsvm.training.data import Data, equal_values, linear_scores
from attsvm.training.inputs import check_size
from attsvm.training.losses import Loss
from attsvm.training.prediction_heads import Head, Linear
from attsvm.training.radius import BallProblem, Cone, check_radii, checked_radii, largest_radius, units
from attsvm.training.search import BestStart, Search, follow, follow_ridges
from attsvm.training.segments import Interrupted, Segments, first_steps
from attsvm.training.types import AnyArray, Floats, Options, Tree
from attsvm.training.weights import FULL, FullWeight, Weight


class StartsDisagree(UserWarning):
    """The smallest loss of a path of head and weight together was found by one start alone."""


class Direction(Protocol):
    """Anything with a weight W (d, e), with runs (runs, d, e): a Solution of max_margin, say."""

    @property
    def W(self) -> AnyArray: ...


def regularisation_path(
    tokens: Tokens,
    head: Head,
    *,
    norm: Norm | str = frobenius,
    radii: ArrayLike | None = None,
    ridge: ArrayLike | None = None,
    head_radii: ArrayLike | None = None,
    loss: Loss | None = None,
    weight: Weight = FULL,
    around: Direction | None = None,
    cone: float = 0.1,
    starts: int = 8,
    seed: int = 0,
) -> Path:
    """The weight of smallest loss in each ball; its direction tends to the max-margin weight of the norm.

        W_R = argmin L(W)  subject to  N(W) ≤ R,     R = radii, increasing

    weight: KeyQuery(rank) takes the ball ‖K‖² + ‖Q‖² ≤ 2R, the nuclear ball of W (norm=nuclear).
    ridge: instead of radii, argmin L(W) + λ N(W)²/2 for decreasing λ. Each is the W_R at which
        N*(∇L) = λ R; the index of the path is then λ.
    head_radii (k,): train the head too, argmin L(v, W) over ‖v‖ ≤ r, N(W) ≤ R, one r per R. Where only
        some examples support the head, the ratio r/R decides the limit: p^mm for r/R → 0, p^relax for ∞.
        StartsDisagree warns of a loss that one start alone has found.
    around: stay where ⟨W, W_around⟩ ≥ (1 − cone) ‖W‖ ‖W_around‖ and N(W) ≥ the first radius: the local
        path, which tends to W_around if and only if its tokens are locally optimal.
    starts: local searches that begin anew at every radius, beside those that continue from the previous
        radius. They are seeded by `seed` and do not depend on other radii. Each begins twice: at a random
        weight, and at the best of 64 random weights. path.agreed says how many of them found the best.

    A runs axis in tokens, head or around solves all runs at once. path.stopped is "converged", or
    "steps" where some radius reached the limit of steps first. Ctrl-C raises Interrupted, a
    KeyboardInterrupt whose `path` holds the radii solved so far, or None before the first.
    Reference: Tarzanagh et al. 2023, "Max-Margin Token Selection" and "Transformers as SVMs", RP.
    """
    original = as_tokens(tokens).in_memory()
    weights.check(weight)
    tokens = merged(original, weights.reached(weight, original.queries))
    head = heads.checked(head, tokens)
    if isinstance(weight, weights.MultiHead):
        raise ValueError("regularisation_path takes one head. Pass one weight, such as FullWeight().")
    loss = heads.loss_of(head, loss, tokens)
    norm = norm_of(norm) if isinstance(norm, str) else norm
    _check_norm(norm, weight, tokens)
    starts = as_integer(starts)
    _check_counts(starts, seed)
    index, head_index = checked_radii(radii, ridge, head_radii)
    _check_modes(head, weight, around, cone, ridge, head_index)
    if ridge is None:
        check_radii(tokens, index, head_index)
    v = np.asarray(head.v) if isinstance(head, Linear) and head_index is None else None
    check_size(tokens, v, units(tokens))
    axis = None if around is None else _axis(around, tokens)
    count = _count_runs(tokens, head, axis)
    problem = BallProblem(weight, loss, norm, head_index is not None, tokens.runs is not None)
    batch, near = (count or 1, starts), None if axis is None else (axis, cone, index[0])
    records: list[BestStart] = []
    first = first_steps(tokens, 10 * math.prod(batch))  # ten: some projections take longer than the step
    with Segments("regularisation path", len(index), first) as watch, jax.enable_x64(True):
        begin = searches(problem, tokens, head, batch, near, seed, watch)
        iterates = follow(begin, index, head_index) if ridge is None else follow_ridges(begin, index)
        with suppress(Interrupted):
            for record in iterates:
                records.append(record)
                watch.done = len(records)
    path = _path(original, records, index, problem, count, "radius" if ridge is None else "ridge")
    if path is None or watch.pressed:
        raise Interrupted(path)
    if problem.joint and starts > 1:
        _warn_of_single_start(records, starts)
    return path


# ---------------------------------------------------------------------- at the door


def _check_norm(norm: Norm, weight: Weight, tokens: Tokens) -> None:
    if capabilities_of(norm).acts_on not in PROJECTED:
        raise TypeError(
            f"{norm!r} is not a norm of paths. Pass frobenius, nuclear, Entrywise(p) or Schatten(p)."
        )
    shapes = weight.shapes(tokens.d, tokens.e)
    if len(shapes) > 2:
        raise ValueError(
            f"{type(weight).__name__} has {len(shapes)} factors, whose squares bound no norm of W. "
            "Pass a weight of two factors at most."
        )
    if len(shapes) > 1:
        matrices = all(len(shape) == 2 for shape in shapes.values())
        if norm.p != 1 or (matrices and capabilities_of(norm).acts_on != "singular values"):
            name, ball = type(weight).__name__, "nuclear" if matrices else "l1"
            raise ValueError(
                f"norm is {norm}, but the ball of {name}, half its sum of squares, is the {ball} ball of W. "
                f"Pass norm={ball}, or FullWeight() for another norm."
            )


def _check_counts(starts: object, seed: object) -> None:
    for name, value, least in (("starts", starts, 1), ("seed", seed, 0)):
        if not (is_integer(value) and value >= least):
            raise ValueError(f"{name} is {value!r}. Pass an integer ≥ {least}.")


def _check_modes(
    head: Head, weight: Weight, around: object, cone: float, ridge: object, head_index: object
) -> None:
    if around is not None and (ridge is not None or head_index is not None):
        raise ValueError("around takes radii and a fixed head. Drop ridge and head_radii.")
    if around is not None and not isinstance(weight, FullWeight):
        raise ValueError(f"around keeps W in a cone and needs FullWeight(), got {type(weight).__name__}.")
    if around is not None and not (is_finite(cone) and 0 < cone < 1):
        raise ValueError(f"cone is {cone!r}. Pass a number in (0, 1): 1 minus the smallest cosine.")
    if head_index is not None and not isinstance(head, Linear):
        raise ValueError(f"head_radii trains the head Linear(v), got {type(head).__name__}.")


def _axis(around: Direction, tokens: Tokens) -> Floats:
    """The direction of a solution, (d, e) or (runs, d, e), of unit Frobenius length."""
    try:
        W = np.asarray(getattr(around, "W", None), dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError("around.W is not an array of numbers. Pass a solution of max_margin.") from None
    if W.shape[-2:] != (tokens.d, tokens.e) or W.ndim not in (2, 3):
        raise ValueError(
            f"around.W has shape {W.shape}. Pass a solution with W ({tokens.d}, {tokens.e}), or runs of it."
        )
    size = np.asarray(frobenius.value(W))[..., None, None]
    if not np.isfinite(W).all() or not (size > 0).all():
        raise ValueError("around.W is zero or not finite: it has no direction.")
    return np.asarray(W / size)


def _warn_of_single_start(records: list[BestStart], starts: int) -> None:
    """Warn where one search alone found the smallest loss: another might find a smaller one."""
    lonely = np.stack([record.agreed <= 1 for record in records])
    if not lonely.any():
        return
    radius = records[int(lonely.any(1).argmax())].radius[0]
    runs = f" in {int(lonely.any(0).sum())} of {lonely.shape[1]} runs" if lonely.shape[1] > 1 else ""
    warnings.warn(
        f"the starts disagree{runs}: at radius {radius:g} at most one of {starts} found the smallest loss, "
        f"and a smaller one may exist. path.agreed has the counts; pass more, such as starts={4 * starts}.",
        StartsDisagree,
        stacklevel=3,
    )


def _count_runs(tokens: Tokens, head: Head, axis: Floats | None) -> int | None:
    counts = {f"head {name}": count for name, count in runs.counts(*heads.arrays(head)).items()}
    counts |= {} if axis is None else runs.counts({"around": axis}, {"around": 2})
    return runs.common({"tokens": tokens.runs, **counts})


# ---------------------------------------------------------------------- the record


def _path(
    tokens: Tokens,
    records: list[BestStart],
    index: Floats,
    problem: BallProblem,
    count: int | None,
    kind: str,
) -> Path | None:
    if not records:
        return None

    def along(arrays: list[AnyArray]) -> Floats:  # k arrays (runs, …) → (runs, k, …), or (k, …) without runs
        stacked = np.stack([np.asarray(part) for part in arrays], axis=1)
        return stacked if count is not None else stacked[0]

    def grown(x: AnyArray, radius: Floats, degree: int) -> Floats:
        return x * (radius ** (1 / degree)).reshape(-1, *[1] * (x.ndim - 1))

    endpoints, degree = [record.endpoint for record in records], len(records[0].endpoint.params)
    arrays: Options = {
        "W": along([grown(record.endpoint.W, record.radius, 1) for record in records]),
        "loss": along([a.loss for a in endpoints]),
        "log_excess": along([a.log_excess for a in endpoints]),
        "agreed": along([record.agreed for record in records]),
    }
    for name in {"K", "Q"} & endpoints[0].params.keys():
        arrays[name] = along(
            [grown(record.endpoint.params[name], record.radius, degree) for record in records]
        )
    if problem.joint:
        arrays["v"] = along([jax.tree.leaves(a.head)[0] for a in endpoints])
    reasons = np.where(along([a.stationary for a in endpoints]).all(-1), "converged", "steps")
    stopped: Any = reasons if count is not None else str(reasons)
    return Path(tokens, index[: len(records)], stopped=stopped, kind=kind, **arrays)


# ---------------------------------------------------------------------- where searches begin

SPREAD = 10.0
"""Lengths of random starts, as shares of the radius. Long starts are projected to any part of the surface."""


def searches(
    problem: BallProblem,
    tokens: Tokens,
    head: Head,
    batch: tuple[int, int],
    cone: tuple[Floats, float, float] | None,
    seed: int,
    watch: Segments,
) -> Search:
    """The searches of a path; batch = (runs, starts); cone: axis, opening, the norm from which it counts."""
    head_arrays, axes = heads.arrays(head)
    # Single precision cannot resolve a radius of 1,000: the path is always computed in float64.
    head = _double(heads.with_arrays(head, runs.repeated(head_arrays, axes, batch[0])))
    scores, alike, guide = None, None, False
    if isinstance(head, Linear) and not problem.joint:
        guide = cone is None and batch[1] > 1
        scores = jax.device_put(_scores(tokens, head, batch[1], guide))
    else:
        alike = equal_values(tokens)
    data, scale = _data(tokens, batch[0], alike)
    batch = (batch[0], batch[1] + guide)
    head = jax.tree.map(lambda x: np.repeat(x[:, None], batch[1], axis=1), head)
    keep = None if cone is None else _cone(*cone, batch[0])

    def draws() -> Iterator[Tree]:
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

    largest = largest_radius(tokens)
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
    )


def _data(tokens: Tokens, count: int, alike: AnyArray) -> tuple[Data, Floats]:
    """The tokens with keys and queries of a size that products neither under- nor overflow; its scale."""
    of_keys, of_queries = units(tokens)
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


def _scores(tokens: Tokens, head: Linear, starts: int, guide: bool) -> Floats:
    """γ (runs, starts, n, T); those of the guide are 1 for the best tokens, 0 for the others."""
    scores_of_run = linear_scores(tokens.values, tokens.labels, tokens.mask, head.v)
    scores = np.repeat(scores_of_run[:, None], starts + guide, axis=1)
    if guide:
        scores_of_run = np.where(tokens.mask, scores_of_run, -np.inf)
        scores[:, -1] = scores_of_run == scores_of_run.max(-1, keepdims=True)
    return scores


def _anywhere(
    shapes: dict[str, tuple[int, ...]], batch: tuple[int, int], rng: np.random.Generator
) -> Iterator[Tree]:
    """Random directions of random length, (runs, starts, …), the same for every run."""
    while True:
        drawn = {name: rng.standard_normal((1, batch[1], *shape)) for name, shape in shapes.items()}
        size = np.sqrt(sum((x * x).sum(tuple(range(2, x.ndim))) for x in drawn.values()))
        factor = SPREAD ** rng.uniform(-1, 1, size.shape) / size
        long = {name: x * factor.reshape(*factor.shape, *[1] * (x.ndim - 2)) for name, x in drawn.items()}
        yield {name: np.array(np.broadcast_to(x, (*batch, *x.shape[2:]))) for name, x in long.items()}


def _inside(cone: Cone, norm: Norm, batch: tuple[int, int], rng: np.random.Generator) -> Iterator[Tree]:
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


def _cone(axis: Floats, opening: float, inner: float, count: int) -> Cone:
    each = np.broadcast_to(axis, (count, *axis.shape[-2:]))
    return Cone(each, np.full(count, 1.0 - opening), np.full(count, inner))  # type: ignore[arg-type]


def _double(tree: Tree) -> Tree:
    return jax.tree.map(lambda x: np.asarray(x, float) if x.dtype.kind == "f" else np.asarray(x), tree)
