"""regularisation_path(): the smallest loss in growing norm balls, and what its direction tends to."""

from __future__ import annotations

import math
import warnings
from contextlib import suppress
from typing import Any, Protocol

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm._support.validation import as_integer, is_finite, is_integer
from attsvm.data.equal_keys import merged
from attsvm.data.path import Path
from attsvm.data.tokens import Tokens, as_tokens
from attsvm.norms import Norm, capabilities_of, frobenius
from attsvm.norms.names import norm_of
from attsvm.training import losses, prediction_heads as heads, radii as radius_rules, runs, weights
from attsvm.training.balls import PROJECTED
from attsvm.training.inputs import check_size
from attsvm.training.losses import Loss, logistic
from attsvm.training.prediction_heads import Head, Linear
from attsvm.training.radius import Problem
from attsvm.training.search import Found, follow, follow_ridges
from attsvm.training.segments import Interrupted, Segments, first_steps
from attsvm.training.starts import search
from attsvm.training.weights import FULL, FullWeight, Weight


class StartsDisagree(UserWarning):
    """The smallest loss of a path of head and weight together was found by one start alone."""


class Direction(Protocol):
    """Anything with a weight W (d, e), with runs (runs, d, e): a Solution of max_margin, say."""

    @property
    def W(self) -> Any: ...


def regularisation_path(
    tokens: Tokens,
    head: Head,
    *,
    norm: Norm | str = frobenius,
    radii: ArrayLike | None = None,
    ridge: ArrayLike | None = None,
    head_radii: ArrayLike | None = None,
    pair: tuple[ArrayLike, ArrayLike] | None = None,
    loss: Loss = logistic,
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
    pair: with head_radii, a head v (c,) and a weight W (d, e), or runs of them, along which one search more
        begins at every radius; by default those of joint_margin, the limit of the largest radii.
    around: stay where ⟨W, W_around⟩ ≥ (1 − cone) ‖W‖ ‖W_around‖ and N(W) ≥ the first radius: the local
        path, which tends to W_around if and only if its tokens are locally optimal.
    starts: local searches begun afresh at every radius, seeded by `seed` and the same whatever the radii
        before, beside those that follow their branch from the radius before; each begins twice, at random and
        at the best of 64 random weights. path.agreed tells how many of the fresh ones found the best.

    A runs axis in tokens, head or around solves all runs at once. path.stopped is "converged", or
    "steps" where some radius reached the limit of steps first. Ctrl-C raises Interrupted, a
    KeyboardInterrupt whose `path` holds the radii solved so far, or None before the first.
    Reference: Tarzanagh et al. 2023, "Max-Margin Token Selection" and "Transformers as SVMs", RP.
    """
    given = as_tokens(tokens).in_memory()
    weights.check(weight)
    tokens = merged(given, weights.reached(weight, given.queries))
    head = heads.checked(head, tokens)
    if isinstance(weight, weights.MultiHead):
        raise ValueError("regularisation_path takes one head. Pass one weight, such as FullWeight().")
    losses.check(loss)
    heads.check_loss(head, loss, tokens)
    norm = norm_of(norm) if isinstance(norm, str) else norm
    _check_norm(norm, weight, tokens)
    starts = as_integer(starts)
    _check_counts(starts, seed)
    index, head_index = radius_rules.checked(radii, ridge, head_radii)
    _check_modes(head, weight, around, cone, ridge, head_index, pair)
    if ridge is None:
        radius_rules.check_size(tokens, index, head_index)
    v = np.asarray(head.v) if isinstance(head, Linear) and head_index is None else None
    check_size(tokens, v, radius_rules.units(tokens))
    axis = None if around is None else _axis(around, tokens)
    count = _count_runs(tokens, head, axis)
    problem = Problem(weight, loss, norm, head_index is not None, tokens.runs is not None)
    pair_arrays = None if pair is None else _pair(pair, tokens, count)
    batch, near = (count or 1, starts), None if axis is None else (axis, cone, index[0])
    found: list[Found] = []
    first = first_steps(tokens, 10 * math.prod(batch))  # ten: some projections take longer than the step
    with Segments("regularisation path", len(index), first) as watch, jax.enable_x64(True):
        begin = search(problem, tokens, head, batch, near, seed, watch, pair_arrays)
        along = follow(begin, index, head_index) if ridge is None else follow_ridges(begin, index)
        with suppress(Interrupted):
            for one in along:
                found.append(one)
                watch.done = len(found)
    path = _path(given, found, index, problem, count, "radius" if ridge is None else "ridge")
    if path is None or watch.pressed:
        raise Interrupted(path)
    if problem.joint and starts > 1:
        _warn_of_lonely(found, starts)
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
    head: Head, weight: Weight, around: object, cone: float, ridge: object, head_index: object, pair: object
) -> None:
    if around is not None and (ridge is not None or head_index is not None):
        raise ValueError("around takes radii and a fixed head. Drop ridge and head_radii.")
    if around is not None and not isinstance(weight, FullWeight):
        raise ValueError(f"around keeps W in a cone and needs FullWeight(), got {type(weight).__name__}.")
    if around is not None and not (is_finite(cone) and 0 < cone < 1):
        raise ValueError(f"cone is {cone!r}. Pass a number in (0, 1): 1 minus the smallest cosine.")
    if pair is not None and head_index is None:
        raise ValueError("pair is where head and weight begin together. Pass head_radii, or no pair.")
    if head_index is not None and not isinstance(head, Linear):
        raise ValueError(f"head_radii trains the head Linear(v), got {type(head).__name__}.")


def _axis(around: Direction, tokens: Tokens) -> NDArray[Any]:
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


def _pair(
    pair: tuple[ArrayLike, ArrayLike], tokens: Tokens, count: int | None
) -> tuple[NDArray[Any], NDArray[Any]]:
    """v (runs, c) and W (runs, d, e); a run whose pair is NaN has none."""
    shapes = ((tokens.values.shape[-1],), (tokens.d, tokens.e))
    try:
        arrays = [np.asarray(one, dtype=np.float64) for one in pair]
        v, W = (np.broadcast_to(one, (count or 1, *shape)) for one, shape in zip(arrays, shapes, strict=True))
    except (TypeError, ValueError):
        raise ValueError(
            f"pair is not (v, W) of shapes {shapes[0]} and {shapes[1]}, or runs of them."
        ) from None
    if not (v.any(-1) & W.any((-2, -1))).all():
        raise ValueError("v or W of the pair is zero: it has no direction.")
    return v, W


def _warn_of_lonely(found: list[Found], starts: int) -> None:
    """Warn where one search alone found the smallest loss: another might find a smaller one."""
    lonely = np.stack([(one.agreed <= 1) & ~one.paired for one in found])
    if not lonely.any():
        return
    radius = found[int(lonely.any(1).argmax())].radius[0]
    runs = f" in {int(lonely.any(0).sum())} of {lonely.shape[1]} runs" if lonely.shape[1] > 1 else ""
    warnings.warn(
        f"the starts disagree{runs}: at radius {radius:g} at most one of {starts} found the smallest loss, "
        f"and a smaller one may exist. path.agreed has the counts; pass more, such as starts={4 * starts}.",
        StartsDisagree,
        stacklevel=4,  # the caller of attsvm.comparison.joint_path
    )


def _count_runs(tokens: Tokens, head: Head, axis: NDArray[Any] | None) -> int | None:
    found = {f"head {name}": count for name, count in runs.counts(*heads.arrays(head)).items()}
    found |= {} if axis is None else runs.counts({"around": axis}, {"around": 2})
    return runs.common({"tokens": tokens.runs, **found})


# ---------------------------------------------------------------------- the record


def _path(
    tokens: Tokens, found: list[Found], index: NDArray[Any], problem: Problem, count: int | None, kind: str
) -> Path | None:
    if not found:
        return None

    def along(parts: list[Any]) -> NDArray[Any]:  # k arrays (runs, …) → (runs, k, …), or (k, …) without runs
        stacked = np.stack([np.asarray(part) for part in parts], axis=1)
        return stacked if count is not None else stacked[0]

    def grown(x: Any, radius: NDArray[Any], degree: int) -> NDArray[Any]:
        return x * (radius ** (1 / degree)).reshape(-1, *[1] * (x.ndim - 1))

    answers, degree = [one.answer for one in found], len(found[0].answer.params)
    parts: dict[str, Any] = {
        "W": along([grown(one.answer.W, one.radius, 1) for one in found]),
        "loss": along([a.loss for a in answers]),
        "log_excess": along([a.log_excess for a in answers]),
        "agreed": along([one.agreed for one in found]),
    }
    for name in {"K", "Q"} & answers[0].params.keys():
        parts[name] = along([grown(one.answer.params[name], one.radius, degree) for one in found])
    if problem.joint:
        parts["v"] = along([jax.tree.leaves(a.head)[0] for a in answers])
    reasons = np.where(along([a.stationary for a in answers]).all(-1), "converged", "steps")
    stopped: Any = reasons if count is not None else str(reasons)
    return Path(tokens, index[: len(found)], stopped=stopped, kind=kind, **parts)
