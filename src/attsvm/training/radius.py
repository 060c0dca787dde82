"""The smallest loss at one radius, from many starts of many runs at once: one compiled program."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from attsvm.norms import Entrywise, Norm, frobenius
from attsvm.training import attention
from attsvm.training.attention import Attention, Data, Reading
from attsvm.training.balls import ball_of, project_ball, project_both
from attsvm.training.descent import Descent, Slope, descend
from attsvm.training.heads import Head, Linear
from attsvm.training.losses import Loss
from attsvm.training.weights import Params, Weight

TOLERANCE = 1e-7
"""Share of the gradient that may stay unbalanced: the direction of W is then right to about 1e-7."""
STEPS = 100_000
FAR = 1e7
"""Beyond every log of a loss: shifts the logs of signed numbers so that they order as the numbers do."""
ROUNDS = 100
"""Rounds of the joint problem: head, weight, head, …"""


@dataclass(frozen=True)
class Problem:
    """What is compiled: equal problems on equal shapes share one program."""

    weight: Weight
    loss: Loss
    norm: Norm
    joint: bool = False
    data_runs: bool = False

    @property
    def head_norm(self) -> Norm:
        """The ball of a trained head v: the entrywise norm of W, else the Euclidean one."""
        return self.norm if isinstance(self.norm, Entrywise) else frobenius


class Cone(NamedTuple):
    """Directions near an axis (d, e) of unit length, and the norm from which they count."""

    axis: Array
    cosine: Array
    inner: Array


class Region(NamedTuple):
    """Where a start may move: the radius of its weight and of its head, and the cone it keeps to."""

    radius: Array
    head_radius: Array
    cone: Cone | None


class Answer(NamedTuple):
    """The point that a start reached.

    rank: smaller is better. log_pull: log of −⟨∇L, W⟩/N(W), which is N*(∇L) on the sphere.
    """

    params: Params
    head: Head
    W: Array
    loss: Array
    log_excess: Array
    rank: Array
    log_pull: Array
    stationary: Array


@partial(jax.jit, static_argnames="problem")
def smallest(
    problem: Problem, data: Data, head: Head, scores: Array | None, params: Params, region: Region
) -> Answer:
    """min L over the region for every run and start.

    params, head, scores and the radii carry (runs, starts) first, the cone (runs,).
    scores (runs, starts, n, T): fixed token scores in place of the head's.
    """
    each, cone = None if scores is None else 0, None if region.cone is None else 0
    starts = jax.vmap(partial(_smallest, problem), in_axes=(None, 0, each, 0, Region(0, 0, None)))  # type: ignore[arg-type]
    axes = (0 if problem.data_runs else None, 0, each, 0, Region(0, 0, cone))  # type: ignore[arg-type]
    return jax.vmap(starts, in_axes=axes)(data, head, scores, params, region)


def _smallest(
    problem: Problem, data: Data, head: Head, scores: Array | None, params: Params, region: Region
) -> Answer:
    if problem.joint:
        x, head, slope, stationary = _alternate(problem, data, head, params, region)
    else:
        end = _best_weight(problem, data, head, scores, params, region)
        x, slope, stationary = end.x, end.slope, end.stationary
    W = problem.weight.matrix(x)
    look = attention.attend(data, W)
    reading = attention.read(data, look, head, scores)
    loss = attention.mean_loss(reading, problem.loss)
    excess = jnp.full_like(loss, jnp.nan)
    if isinstance(head, Linear):
        excess = attention.log_excess(data, look, reading.scores, problem.loss)
    rank = excess if isinstance(head, Linear) else loss
    if problem.joint:
        rank = _log_loss(problem, data, reading.margin, region.head_radius)
    elif isinstance(head, Linear) and region.cone is not None:
        rank = _rank_near(problem, data, look, reading, region.cone.axis)
    pull = -jnp.stack([jnp.vdot(slope.mantissa[name], x[name]) for name in x]).mean()
    log_pull = jnp.log(jnp.maximum(pull, 0) / region.radius) + slope.log_scale
    return Answer(x, head, W, loss, excess, rank, log_pull, stationary)


def _best_weight(
    problem: Problem, data: Data, head: Head, scores: Array | None, params: Params, region: Region
) -> Descent:
    """The weight block: min L(W) for a fixed head."""

    def slope(params: Params) -> Slope:
        look = attention.attend(data, problem.weight.matrix(params))
        reading = attention.read(data, look, head, scores)
        G, log_scale = attention.gradient(data, look, reading, problem.loss)
        return Slope(problem.weight.pullback(params, G), log_scale)

    size = region.radius if len(params) == 1 else jnp.sqrt(2 * region.radius)
    return descend(slope, partial(_inside, problem, region), params, size, TOLERANCE, STEPS)


def _best_head(problem: Problem, data: Data, head: Linear, W: Array, radius: Array) -> tuple[Linear, Array]:
    """The head block: min L(v) for fixed attention, a convex problem on the pooled tokens."""
    look = attention.attend(data, W)

    def slope(params: Params) -> Slope:
        reading = attention.read(data, look, Linear(params["v"]))
        v, log_scale = attention.head_gradient(data, look, reading, problem.loss)
        return Slope({"v": v}, log_scale)

    def project(params: Params) -> Params:
        return {"v": project_ball(params["v"], problem.head_norm, radius)}

    end = descend(slope, project, {"v": head.v}, radius, TOLERANCE, STEPS)
    return Linear(end.x["v"]), end.stationary


def _alternate(
    problem: Problem, data: Data, head: Any, params: Params, region: Region
) -> tuple[Params, Head, Slope, Array]:
    """min L(v, W) over ‖v‖ ≤ r, N(W) ≤ R, block by block until the head stays where it is.

    The constraints do not couple the blocks, so a point that is best in each is stationary in both.
    In saturation the two gradients differ by e^(−R·margin): no joint step could see the smaller one.
    """

    def one_round(state: tuple[Any, ...]) -> tuple[Any, ...]:
        count, x, head, *_ = state
        new, head_done = _best_head(problem, data, head, problem.weight.matrix(x), region.head_radius)
        end = _best_weight(problem, data, new, None, x, region)
        moved = jnp.abs(new.v - head.v).max() > 10 * TOLERANCE * region.head_radius
        return count + 1, end.x, new, end.slope, moved, head_done & end.stationary

    def unfinished(state: tuple[Any, ...]) -> Array:
        return state[-2] & (state[0] < ROUNDS)

    flat = Slope(jax.tree.map(jnp.zeros_like, params), jnp.zeros_like(region.radius))
    start = (jnp.asarray(0), params, head, flat, jnp.asarray(True), jnp.asarray(False))
    _, x, head, slope, moved, done = lax.while_loop(unfinished, one_round, start)
    return x, head, slope, done & ~moved


def _inside(problem: Problem, region: Region, params: Params) -> Params:
    """The nearest parameters of the region.

    One parameter: N ≤ R. Factors such as K and Q: ‖K‖² + ‖Q‖² ≤ 2R, where min over all factors of
    one W is the nuclear ball (of diagonal factors, the l1 ball).
    """
    if len(params) > 1:
        size = jnp.sqrt(jnp.stack([(x * x).sum() for x in params.values()]).sum())
        bound = jnp.sqrt(2 * region.radius)
        shrink = jnp.where(size > bound, bound / jnp.where(size > 0, size, 1), 1)
        return {name: x * shrink for name, x in params.items()}
    ((name, x),) = params.items()
    norm = ball_of(problem.norm, x.ndim)
    if region.cone is None:
        return {name: project_ball(x, norm, region.radius)}
    axis, cosine, inner = region.cone
    x = project_both(x, norm, region.radius, axis, cosine)
    size = norm.value(x)
    grown = jnp.where(size > 0, x / jnp.where(size > 0, size, 1), axis / norm.value(axis)) * inner
    return {name: jnp.where(size < inner, grown, x)}


def _log_loss(problem: Problem, data: Data, margin: Array, head_radius: Array) -> Array:
    """log(L − ℓ(M)) with M above every margin that ‖v‖ ≤ r allows: orders losses that underflow."""
    values = data.keys if data.values is None else data.values
    top = 1 + head_radius * problem.head_norm.dual.value(values[..., None]).max()
    return jax.nn.logsumexp(problem.loss.log_increase(top, jnp.log(top - margin)))


def _rank_near(problem: Problem, data: Data, look: Attention, reading: Reading, axis: Array) -> Array:
    """An increasing function of L − L_α, L_α the loss if only the axis' own tokens α were attended to.

    Near a selection that is not the best, L − L* is a constant plus e^(−R·margin): the sign of the small
    part, which decides whether leaving pays, is seen relative to L_α only.
    """
    chosen = jnp.where(attention.attend(data, axis).winner, reading.scores, 0).sum(-1)
    gap = jnp.where(data.mask, chosen[:, None] - reading.scores, 0)
    log_drop, sign = jax.nn.logsumexp(look.log_weights, b=gap, axis=-1, return_sign=True)
    top = chosen + jnp.where(sign < 0, jnp.exp(log_drop), 0)
    increase = problem.loss.log_increase(top, log_drop)
    log_size, sign = jax.nn.logsumexp(increase, b=sign, return_sign=True)
    return sign * (FAR + jnp.maximum(log_size, -FAR))
