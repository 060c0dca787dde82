"""The regularisation path of head and weight together, with one start more: the pair of joint_margin()."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

import attsvm as att
from attsvm.data.equal_keys import merged
from attsvm.numbers import Bool, Float
from attsvm.training.radius import BallProblem
from attsvm.training.regularise import StartsDisagree, searches
from attsvm.training.search import LIMITS
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
        warnings.simplefilter("ignore", StartsDisagree)  # the pair is another witness
        path = att.regularisation_path(tokens, head, **arguments)
    return _with_pair(path, pair, head, np.asarray(head_radii, float), options)


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


def _with_pair(
    path: att.Path, pair: Pair, head: att.Linear, head_radii: Float, options: dict[str, Any]
) -> att.Path:
    """The path, with the end of a search from the pair at every radius where that has the smaller loss.

    The losses are compared by ranks, which do not underflow: the end of the path is a start that stays.
    """
    norm, loss = options.get("norm", att.frobenius), options.get("loss", att.logistic)
    count, tokens = path.runs or 1, merged(path.tokens)
    problem = BallProblem(att.FullWeight(), loss, norm, joint=True, data_runs=tokens.runs is not None)
    v, W, present = _at_length_one(problem, pair, count)
    records = path if path.runs is not None else path.changed(W=path.W[None], v=np.asarray(path.v)[None])
    ends = []
    with Segments("joint path", len(path.index), first_steps(tokens, count)) as watch, jax.enable_x64(True):
        search = searches(problem, tokens, head, (count, 2), None, 0, watch)
        for k, (radius, head_radius) in enumerate(zip(path.index, head_radii, strict=True)):
            params: dict[str, Any] = {"W": np.stack([records.W[:, k] / radius, W], 1)}
            begun = search._replace(
                params=params,
                head=att.Linear(np.stack([np.asarray(records.v)[:, k], head_radius * v], 1)),
            )
            end = begun.solve(radius, head_radius, still=np.array([True, False]))
            rank: Any = np.where(present, end.rank, [[0.0, np.inf]])
            ends.append(end._replace(W=radius * end.W, rank=rank))
    ranks = np.stack([end.rank for end in ends], 1)  # of the path and of the pair (runs, k, 2)
    better = ranks[..., 1] < ranks[..., 0] - LIMITS.switch * LIMITS.agreement
    found = ranks <= ranks.min(-1, keepdims=True) + LIMITS.agreement
    agreed = np.where(found[..., 0], np.reshape(np.asarray(path.agreed), better.shape), 0)
    if ((agreed <= 1) & ~found[..., 1]).any():
        warnings.warn(
            "the starts disagree, and the pair has a larger loss: a smaller one may exist. Pass more starts.",
            StartsDisagree,
            stacklevel=3,
        )
    unsettled = (better & ~np.stack([end.stationary[:, 1] for end in ends], 1)).any(-1)
    fields = {
        "W": [end.W for end in ends],
        "v": [jax.tree.leaves(end.head)[0] for end in ends],
        "loss": [end.loss for end in ends],
        "log_excess": [end.log_excess for end in ends],
    }
    arrays: dict[str, Any] = {"agreed": agreed, "stopped": np.where(unsettled, "steps", path.stopped)}
    for name, of_ends in fields.items():
        old, new = getattr(records, name), np.stack([np.asarray(end)[:, 1] for end in of_ends], 1)
        wide = better.reshape(better.shape + (1,) * (new.ndim - 2))
        arrays[name] = np.where(wide, new, np.reshape(old, new.shape))
    if path.runs is not None:
        return path.changed(**arrays)
    of_run = {name: array[0] for name, array in arrays.items()}
    return path.changed(**of_run | {"stopped": str(of_run["stopped"])})


def _at_length_one(problem: BallProblem, pair: Pair, count: int) -> tuple[Float, Float, Bool]:
    """v (runs, c) and W (runs, d, e), and which runs have a pair (runs, 1)."""
    v, W = (np.broadcast_to(x, (count, *x.shape[-axes:])) for x, axes in zip(pair, (1, 2), strict=True))
    present: Bool = np.asarray(np.isfinite(v).all(-1) & np.isfinite(W).all((-2, -1)))
    v, W = np.where(present[:, None], v, 1.0), np.where(present[:, None, None], W, 1.0)
    v = v / np.asarray(problem.head_norm.value(v[..., None]))[:, None]
    return v, W / np.asarray(problem.norm.value(W))[:, None, None], present[:, None]
