"""regularisation_path(): the smallest loss in growing norm balls, and what its direction tends to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.norms import Norm, Schatten, frobenius
from attsvm.path import Path
from attsvm.tokens import Tokens
from attsvm.training import heads, losses, runs, weights
from attsvm.training.attention import as_data
from attsvm.training.heads import Head, Linear
from attsvm.training.losses import Loss, logistic
from attsvm.training.radius import Cone, Problem
from attsvm.training.ridge import follow_ridges
from attsvm.training.search import Found, Search, follow
from attsvm.training.weights import FULL, FullWeight, Weight


class Direction(Protocol):
    """Anything with a weight W (d, e), with runs (runs, d, e): a Solution of max_margin, say."""

    @property
    def W(self) -> Any: ...


def regularisation_path(
    tokens: Tokens,
    head: Head,
    *,
    norm: Norm = frobenius,
    radii: ArrayLike | None = None,
    ridge: ArrayLike | None = None,
    head_radii: ArrayLike | None = None,
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
    around: stay where ⟨W, W_around⟩ ≥ (1 − cone) ‖W‖ ‖W_around‖ and N(W) ≥ the first radius: the local
        path, which tends to W_around if and only if its tokens are locally optimal.
    starts: local searches per radius, seeded by `seed`; path.agreed tells how many found the best.

    A runs axis in tokens, head or around solves all runs at once. path.stopped is "converged", or
    "steps" where some radius reached the limit of steps first.
    Reference: Tarzanagh et al. 2023, "Max-Margin Token Selection" and "Transformers as SVMs", RP.
    """
    head = heads.checked(head, tokens)
    weights.check(weight)
    losses.check(loss)
    _check_norm(norm, weight, tokens)
    _check_counts(starts, seed)
    index, head_index = _check_radii(radii, ridge, head_radii)
    _check_modes(head, weight, around, cone, ridge, head_index)
    axis = None if around is None else _axis(around, tokens)
    problem = Problem(weight, loss, norm, head_index is not None, tokens.runs is not None)
    with jax.enable_x64(True):
        count = _count_runs(tokens, head, axis)
        search = _search(problem, tokens, head, (count or 1, starts), axis is None)
        search = search._replace(params=_starts(search, tokens, seed, axis))
        if axis is not None:
            search = search._replace(cone=_cone(axis, cone, index[0], count or 1))
        found = follow(search, index, head_index) if ridge is None else follow_ridges(search, index)
    path = _path(tokens, found, index, problem.joint, count)
    return path if ridge is None else replace(path, kind="ridge")


# ---------------------------------------------------------------------- at the door


def _check_norm(norm: object, weight: Weight, tokens: Tokens) -> None:
    if isinstance(norm, type) or not isinstance(norm, Norm):
        raise TypeError(f"{norm!r} is not a norm. Pass frobenius, nuclear, Entrywise(p) or Schatten(p).")
    shapes = weight.shapes(tokens.d, tokens.e)
    if len(shapes) > 1:
        matrices = all(len(shape) == 2 for shape in shapes.values())
        if norm.p != 1 or (matrices and not isinstance(norm, Schatten)):
            name, ball = type(weight).__name__, "nuclear" if matrices else "l1"
            raise ValueError(
                f"norm is {norm}, but the ball of {name}, half its sum of squares, is the {ball} ball of W. "
                f"Pass norm={ball}, or FullWeight() for another norm."
            )


def _check_counts(starts: object, seed: object) -> None:
    for name, value, least in (("starts", starts, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{name} is {value!r}. Pass an integer ≥ {least}.")


def _check_radii(
    radii: ArrayLike | None, ridge: ArrayLike | None, head_radii: ArrayLike | None
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if (radii is None) == (ridge is None):
        raise ValueError("pass either radii, or ridge for the penalised form.")
    if radii is None:
        if head_radii is not None:
            raise ValueError("ridge takes a fixed head. Drop head_radii.")
        return _positive("ridge", ridge, -1), None
    index = _positive("radii", radii, 1)
    if head_radii is None:
        return index, None
    head_index = _positive("head_radii", head_radii, 0)
    if head_index.shape != index.shape:
        raise ValueError(
            f"head_radii has {head_index.size} entries but radii has {index.size}. Pass one per radius."
        )
    return index, head_index


def _positive(name: str, values: ArrayLike | None, order: int) -> NDArray[Any]:
    """A vector of positive numbers, increasing (order 1), decreasing (−1) or free (0)."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {values!r}. Pass a sequence of positive numbers.") from None
    if array.ndim != 1 or not array.size or not np.isfinite(array).all() or (array <= 0).any():
        raise ValueError(f"{name} is {values!r}. Pass a sequence of positive numbers.")
    if (order * np.diff(array) <= 0).any() and order:
        raise ValueError(f"{name} must be strictly {'increasing' if order > 0 else 'decreasing'}.")
    return array


def _check_modes(
    head: Head, weight: Weight, around: object, cone: float, ridge: object, head_index: object
) -> None:
    if around is not None and (ridge is not None or head_index is not None):
        raise ValueError("around takes radii and a fixed head. Drop ridge and head_radii.")
    if around is not None and not isinstance(weight, FullWeight):
        raise ValueError(f"around keeps W in a cone and needs FullWeight(), got {type(weight).__name__}.")
    if around is not None and not (isinstance(cone, (int, float)) and 0 < cone < 1):
        raise ValueError(f"cone is {cone!r}. Pass a number in (0, 1): 1 minus the smallest cosine.")
    if head_index is not None and not isinstance(head, Linear):
        raise ValueError(f"head_radii trains the head Linear(v), got {type(head).__name__}.")


def _axis(around: Direction, tokens: Tokens) -> NDArray[Any]:
    """The direction of a solution, (d, e) or (runs, d, e), of unit Frobenius length."""
    W = np.asarray(getattr(around, "W", None), dtype=np.float64)
    if W.shape[-2:] != (tokens.d, tokens.e) or W.ndim not in (2, 3):
        raise ValueError(
            f"around.W has shape {W.shape}. Pass a solution with W ({tokens.d}, {tokens.e}), or runs of it."
        )
    size = np.asarray(frobenius.value(W))[..., None, None]
    if not np.isfinite(W).all() or not (size > 0).all():
        raise ValueError("around.W is zero or not finite: it has no direction.")
    return np.asarray(W / size)


# ---------------------------------------------------------------------- starts


def _count_runs(tokens: Tokens, head: Head, axis: NDArray[Any] | None) -> int | None:
    found = {f"head {name}": count for name, count in runs.counts(*heads.arrays(head)).items()}
    found |= {} if axis is None else runs.counts({"around": axis}, {"around": 2})
    return runs.common({"tokens": tokens.runs, **found})


def _search(problem: Problem, tokens: Tokens, head: Head, batch: tuple[int, int], free: bool) -> Search:
    """The search before its starts are drawn; batch = (runs, starts)."""
    given, axes = heads.arrays(head)
    shared = runs.repeated(given, axes, batch[0])
    # Single precision cannot resolve a radius of 1,000: the path is always computed in float64.
    data, head = jax.device_put(_double(as_data(tokens))), _double(heads.with_arrays(head, shared))
    scores, guide = None, False
    if isinstance(head, Linear) and not problem.joint:
        guide = free and batch[1] > 1
        own = np.matmul(tokens.values, head.v[:, None, :, None])[..., 0] * tokens.labels[..., None]
        scores = np.repeat(own[:, None], batch[1] + guide, axis=1)
        if guide:
            own = np.where(tokens.mask, own, -np.inf)
            scores[:, -1] = own == own.max(-1, keepdims=True)
    head = jax.tree.map(lambda x: np.repeat(x[:, None], batch[1] + guide, axis=1), head)
    return Search(problem, data, head, None if scores is None else jax.device_put(scores), {}, None, guide)


def _starts(search: Search, tokens: Tokens, seed: int, axis: NDArray[Any] | None) -> Any:
    """Zero, then random directions, (runs, starts, …); around a solution: its axis, then tilted ones."""
    rng = np.random.Generator(np.random.PCG64(seed))
    shapes = search.problem.weight.shapes(tokens.d, tokens.e)
    batch = jax.tree.leaves(search.head)[0].shape[:2]
    draws = {name: rng.standard_normal((1, batch[1], *shape)) for name, shape in shapes.items()}
    if len(draws) == 1:  # the zero of factors is a saddle
        next(iter(draws.values()))[:, 0] = 0
    if axis is not None:
        tilt = draws["W"] / np.sqrt(tokens.d * tokens.e)
        draws = {"W": tilt + (axis if axis.ndim == 3 else axis[None])[:, None]}
    return {name: np.broadcast_to(a, (*batch, *a.shape[2:])) for name, a in draws.items()}


def _cone(axis: NDArray[Any], opening: float, inner: float, count: int) -> Cone:
    each = np.broadcast_to(axis, (count, *axis.shape[-2:]))
    return Cone(*jax.device_put((each, np.full(count, 1.0 - opening), np.full(count, inner))))


def _double(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, float) if x.dtype.kind == "f" else np.asarray(x), tree)


# ---------------------------------------------------------------------- the record


def _path(tokens: Tokens, found: list[Found], index: NDArray[Any], joint: bool, count: int | None) -> Path:
    def along(parts: list[Any]) -> NDArray[Any]:  # k arrays (runs, …) → (runs, k, …), or (k, …) without runs
        stacked = np.stack([np.asarray(part) for part in parts], axis=1)
        return stacked if count is not None else stacked[0]

    answers = [one.answer for one in found]
    factors: dict[str, Any] = {
        name: along([a.params[name] for a in answers]) for name in ("K", "Q") if name in answers[0].params
    }
    done = along([a.stationary for a in answers]).all(-1)
    reasons = np.where(done, "converged", "steps")
    return Path(
        tokens,
        index,
        along([a.W for a in answers]),
        along([a.loss for a in answers]),
        along([a.log_excess for a in answers]),
        reasons if count is not None else str(reasons),
        kind="radius",
        v=along([jax.tree.leaves(a.head)[0] for a in answers]) if joint else None,
        agreed=along([one.agreed for one in found]),
        **factors,
    )
