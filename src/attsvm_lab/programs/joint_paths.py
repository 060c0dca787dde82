"""The regularisation path of head and weight together, with one start more: the pair of joint_margin()."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

import attsvm as att
from attsvm.data.equal_keys import merged
from attsvm.numbers import Float
from attsvm.training.radius import BallProblem
from attsvm.training.regularise import searches
from attsvm.training.search import AGREEMENT
from attsvm.training.segments import Segments, first_steps
from attsvm_lab.programs.joint_selection import joint_margin

PROGRAMS = 500
"""Most programs that the search for a pair solves: enough for the best pair of few examples."""
Pair = tuple[Float, Float]
"""A head v (c,) and a weight W (d, e), or runs of them; NaN in runs without."""


def joint_path(
    tokens: att.Tokens,
    head: att.Linear,
    *,
    radii: ArrayLike,
    head_radii: ArrayLike,
    pair: Pair | None = None,
    **options: Any,
) -> att.Path:
    """argmin L(v, W) over ‖v‖ ≤ r, N(W) ≤ R, begun at a pair of head and weight, too.

    pair: by default that of `joint_margin`, the limit of the largest radii, which random starts alone may
        miss.
    options: those of att.regularisation_path.
    """
    pair = best_pair(tokens) if pair is None else pair
    arguments = {"radii": radii, "head_radii": head_radii, **options}
    if pair is None:
        return att.regularisation_path(tokens, head, **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", att.StartsDisagree)  # the pair is another witness
        path = att.regularisation_path(tokens, head, **arguments)
    begun = _begun_at(pair, path, head, np.asarray(head_radii, float), options)
    return _better(path, begun)


def best_pair(tokens: att.Tokens) -> Pair | None:
    """The head and the weight of joint_margin for every run; NaN where no selection has a positive margin."""
    runs = [tokens] if tokens.runs is None else [tokens.run(k) for k in range(tokens.runs)]
    v, W = (np.stack(arrays) for arrays in zip(*map(_pair_of_run, runs), strict=True))
    if np.isnan(v).any(-1).all():
        return None
    return (v[0], W[0]) if tokens.runs is None else (v, W)


def _pair_of_run(tokens: att.Tokens) -> tuple[Any, Any]:
    no_pair = np.full(tokens.values.shape[-1], np.nan), np.full((tokens.d, tokens.e), np.nan)
    try:
        best = joint_margin(tokens, most=PROGRAMS)
    except ValueError:  # no selection has a positive margin
        return no_pair
    return no_pair if best.prompt is None else (best.head.W[:, 0], best.prompt.W)


def _begun_at(
    pair: Pair, path: att.Path, head: att.Linear, head_radii: Float, options: dict[str, Any]
) -> dict[str, Any]:
    """What a search that begins at the pair finds at every radius: arrays (runs, k, …), or (k, …)."""
    norm, loss = options.get("norm", att.frobenius), options.get("loss", att.logistic)
    count, tokens = path.runs or 1, merged(path.tokens)
    problem = BallProblem(att.FullWeight(), loss, norm, joint=True, data_runs=tokens.runs is not None)
    v, W = (np.broadcast_to(x, (count, *x.shape[-axes:])) for x, axes in zip(pair, (1, 2), strict=True))
    absent = ~(np.isfinite(v).all(-1) & np.isfinite(W).all((-2, -1)))
    v, W = np.where(absent[:, None], 1.0, v), np.where(absent[:, None, None], 1.0, W)
    v = v / np.asarray(problem.head_norm.value(v[..., None]))[:, None]
    W = W / np.asarray(norm.value(W))[:, None, None]
    ends: list[tuple[Any, ...]] = []
    with Segments("joint path", len(path.index), first_steps(tokens, count)) as watch, jax.enable_x64(True):
        search = searches(problem, tokens, head, (count, 1), None, 0, watch)
        for radius, head_radius in zip(path.index, head_radii, strict=True):
            begun = search._replace(params={"W": W[:, None]}, head=att.Linear(head_radius * v[:, None]))
            end = begun.solve(radius, head_radius)
            loss = np.where(absent[:, None], np.inf, end.loss)
            ends.append((radius * end.W, jax.tree.leaves(end.head)[0], loss, end.log_excess, end.stationary))
    names = ("W", "v", "loss", "log_excess", "stationary")
    arrays = [np.stack([array[:, 0] for array in of_radii], 1) for of_radii in zip(*ends, strict=True)]
    return {
        name: array if path.runs is not None else array[0] for name, array in zip(names, arrays, strict=True)
    }


def _better(path: att.Path, begun: dict[str, Any]) -> att.Path:
    """The path, with the end of the pair at every radius where that has the smaller loss."""
    better = begun["loss"] < path.loss

    def smaller(name: str) -> Float:
        new, old = begun[name], np.asarray(getattr(path, name))
        return np.where(better.reshape(better.shape + (1,) * (new.ndim - better.ndim)), new, old)

    arrays: dict[str, Any] = {name: smaller(name) for name in ("W", "v", "loss", "log_excess")}
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(path.loss) <= np.log(arrays["loss"]) + AGREEMENT  # by random starts
        paired = np.log(begun["loss"]) <= np.log(arrays["loss"]) + AGREEMENT
    assert path.agreed is not None
    agreed = np.where(found, path.agreed, 0)
    if ((agreed <= 1) & ~paired).any():
        warnings.warn(
            "the starts disagree, and the pair has a larger loss: a smaller one may exist. Pass more starts.",
            att.StartsDisagree,
            stacklevel=3,
        )
    unsettled = (better & ~begun["stationary"]).any(-1)
    stopped: Any = np.where(unsettled, "steps", path.stopped)
    return path.changed(**arrays, agreed=agreed, stopped=stopped if path.runs is not None else str(stopped))
