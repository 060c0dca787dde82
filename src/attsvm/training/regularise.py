"""regularisation_path(): the smallest loss in growing norm balls, and what its direction tends to."""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray

from attsvm.norms import Norm, Schatten, frobenius
from attsvm.path import Path
from attsvm.tokens import Tokens
from attsvm.training import heads, ridge, runs
from attsvm.training.attention import as_data
from attsvm.training.heads import Head, Linear
from attsvm.training.losses import Loss, logistic
from attsvm.training.radius import Cone, Problem
from attsvm.training.search import Found, Search, follow
from attsvm.training.weights import FullWeight, Weight


FULL = FullWeight()


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
    ridges: ArrayLike | None = None,
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
    ridges: instead of radii, argmin L(W) + λ N(W)²/2 for decreasing λ. Each is the W_R at which
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
    _check_parts(weight, loss, norm, tokens)
    _check_counts(starts, seed)
    index, head_index = _check_radii(radii, ridges, head_radii)
    _check_modes(head, weight, around, cone, ridges, head_index)
    axis = None if around is None else _axis(around, tokens)
    with jax.enable_x64(True):
        search, count = _search(tokens, head, axis, (weight, loss, norm, head_index is not None))
        search = search._replace(params=_starts(search, tokens, starts, seed, axis))
        search = search._replace(head=_repeated(search.head, starts))
        if axis is not None:
            search = search._replace(cone=_cone(axis, cone, index[0], count or 1))
        found = follow(search, index, head_index) if ridges is None else ridge.follow(search, index)
        return _path(tokens, index, found, search, "radius" if ridges is None else "ridge", count)


# ---------------------------------------------------------------------- at the door


def _check_parts(weight: object, loss: object, norm: object, tokens: Tokens) -> None:
    if isinstance(weight, type) or not isinstance(weight, Weight):
        raise TypeError(f"{weight!r} is not a weight. Pass FullWeight(), KeyQuery() or Diagonal().")
    if isinstance(loss, type) or not isinstance(loss, Loss):
        raise TypeError(f"{loss!r} is not a loss. Pass logistic, exponential or linear.")
    if isinstance(norm, type) or not isinstance(norm, Norm):
        raise TypeError(f"{norm!r} is not a norm. Pass frobenius, nuclear, Entrywise(p) or Schatten(p).")
    shapes = weight.shapes(tokens.d, tokens.e)
    if len(shapes) > 1:
        matrices = all(len(shape) == 2 for shape in shapes.values())
        if norm.p != 1 or (matrices and not isinstance(norm, Schatten)):
            name, ball = type(weight).__name__, "nuclear" if matrices else "l1"
            raise ValueError(
                f"norm is {norm}, but {name} takes the ball of half the sum of squares, the {ball} ball of W. "
                f"Pass norm={ball}, or FullWeight() for another norm."
            )


def _check_counts(starts: object, seed: object) -> None:
    for name, value, least in (("starts", starts, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise ValueError(f"{name} is {value!r}. Pass an integer ≥ {least}.")


def _check_radii(
    radii: ArrayLike | None, ridges: ArrayLike | None, head_radii: ArrayLike | None
) -> tuple[NDArray[Any], NDArray[Any] | None]:
    if (radii is None) == (ridges is None):
        raise ValueError("pass either radii, or ridges for the penalised form.")
    if radii is None:
        return _positive("ridges", ridges, -1), None
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
    head: Head, weight: Weight, around: object, cone: float, ridges: object, head_index: object
) -> None:
    if around is not None and (ridges is not None or head_index is not None):
        raise ValueError("around takes radii and a fixed head. Drop ridges and head_radii.")
    if ridges is not None and head_index is not None:
        raise ValueError("ridges takes a fixed head. Drop head_radii.")
    if around is not None and not isinstance(weight, FullWeight):
        raise ValueError(f"around keeps W in a cone and needs FullWeight(), got {type(weight).__name__}.")
    if around is not None and not (np.isscalar(cone) and 0 < cone < 1):
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


def _search(
    tokens: Tokens, head: Head, axis: NDArray[Any] | None, parts: tuple[Weight, Loss, Norm, bool]
) -> tuple[Search, int | None]:
    """The search without its starts, everything but the data with a runs axis; and the number of runs."""
    weight, loss, norm, joint = parts
    given, axes = heads.arrays(head)
    found = {f"head {name}": count for name, count in runs.counts(given, axes).items()}
    found |= {} if axis is None else runs.counts({"around": axis}, {"around": 2})
    count = runs.common({"tokens": tokens.runs, **found})
    given = runs.repeated(given, axes, count or 1)
    problem = Problem(weight, loss, norm, joint, tokens.runs is not None)
    # Single precision cannot resolve a radius of 1,000: the path is always computed in float64.
    data, head = _double(as_data(tokens)), _double(heads.with_arrays(head, given))
    best = None
    if isinstance(head, Linear) and not joint and axis is None:
        scores = (
            np.matmul(tokens.values, np.asarray(head.v)[:, None, :, None])[..., 0] * tokens.labels[..., None]
        )
        scores = np.where(tokens.mask, scores, -np.inf)
        best = jnp.asarray(scores == scores.max(-1, keepdims=True))
    return Search(problem, data, head, {}, None, best), count


def _starts(search: Search, tokens: Tokens, starts: int, seed: int, axis: NDArray[Any] | None) -> Any:
    """Zero, then random directions, (runs, starts, …); around a solution: its axis, then tilted ones."""
    rng = np.random.Generator(np.random.PCG64(seed))
    shapes = search.problem.weight.shapes(tokens.d, tokens.e)
    draws = {name: rng.standard_normal((1, starts, *shape)) for name, shape in shapes.items()}
    if len(draws) == 1:
        draws = {
            name: draw / frobenius.value(draw)[..., None, None] if draw.ndim == 4 else draw
            for name, draw in draws.items()
        }
        next(iter(draws.values()))[:, 0] = 0
    if axis is not None:
        draws = {"W": draws["W"] + np.atleast_3d(axis.T).T[:, None]}
    count = jax.tree.leaves(search.head)[0].shape[0]
    return {n: jnp.asarray(np.broadcast_to(a, (count, *a.shape[1:]))) for n, a in draws.items()}


def _cone(axis: NDArray[Any], opening: float, inner: float, count: int) -> Cone:
    each = np.broadcast_to(axis, (count, *axis.shape[-2:]))
    return Cone(jnp.asarray(each), jnp.full(count, 1.0 - opening), jnp.full(count, inner))


def _repeated(head: Head, starts: int) -> Any:
    return jax.tree.map(lambda x: jnp.repeat(x[:, None], starts, axis=1), head)


def _double(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64) if x.dtype.kind == "f" else x, tree)


# ---------------------------------------------------------------------- the record


def _path(
    tokens: Tokens, index: NDArray[Any], found: list[Found], search: Search, kind: str, count: int | None
) -> Path:
    def along(name: str) -> NDArray[Any]:  # k arrays (runs, …) → (runs, k, …), or (k, …) without runs
        stacked = np.stack([np.asarray(getattr(one.answer, name)) for one in found], axis=1)
        return stacked if count is not None else stacked[0]

    def factor(name: str) -> NDArray[Any] | None:
        if name not in found[0].answer.params or len(found[0].answer.params) == 1:
            return None
        stacked = np.stack([np.asarray(one.answer.params[name]) for one in found], axis=1)
        return stacked if count is not None else stacked[0]

    agreed = np.stack([np.asarray(one.agreed) for one in found], axis=1)
    reasons = np.where(np.atleast_2d(along("stationary")).all(-1), "converged", "steps")
    v = np.stack([np.asarray(one.answer.head.v) for one in found], axis=1) if search.problem.joint else None  # type: ignore[attr-defined]
    return Path(
        tokens,
        index,
        along("W"),
        along("loss"),
        along("log_excess"),
        reasons if count is not None else str(reasons[0]),
        kind=kind,
        K=factor("K"),
        Q=factor("Q"),
        v=v if v is None or count is not None else v[0],
        agreed=agreed if count is not None else agreed[0],
    )
