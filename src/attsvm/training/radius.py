"""The smallest loss at one radius, from many starts of many runs at once, as compiled programs.

The unknown is U in the ball of radius one, W = R·U: radii of every size are one problem with other logits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attsvm.norms import Norm, capabilities_of, frobenius
from attsvm.training import attention
from attsvm.training.attention import Attention, Reading
from attsvm.training.balls import ball_of, project_ball, project_both
from attsvm.training.data import Data
from attsvm.training.descent import Descent, Slope, descend
from attsvm.training.losses import Loss
from attsvm.training.prediction_heads import Head, Linear, SquaredError
from attsvm.training.programs import Program, where
from attsvm.training.weights import Params, Weight

TOLERANCE = 1e-7
"""Share of the gradient that may stay unbalanced: the direction of W is then right to about 1e-7."""
FAR = 1e7
"""Beyond every log of a loss: shifts the logs of signed numbers so that they order as the numbers do."""


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
        return self.norm if capabilities_of(self.norm).acts_on == "entries" else frobenius


class Cone(NamedTuple):
    """Directions near an axis (d, e) of unit length; inner: the share of the radius from which they count."""

    axis: Array
    cosine: Array
    inner: Array


class Region(NamedTuple):
    """Where a start may move: the radius of its weight and of its head, and the cone it keeps to."""

    radius: Array
    head_radius: Array
    cone: Cone | None


class Answer(NamedTuple):
    """The point that a start reached: parameters and W in the ball of radius one, the head as it is.

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


@partial(Program, static=1)
def best_weight(
    problem: Problem,
    data: Data,
    head: Head,
    scores: Array | None,
    region: Region,
    state: Descent,
    stop: Array,
) -> tuple[Descent, Answer]:
    """Go on to `stop` steps towards min L over the region, the head fixed, for every run and start.

    head, scores, state and the radii carry (runs, starts) first, the cone (runs,).
    scores (runs, starts, n, T): fixed token scores in place of the head's.
    """
    each, cone = None if scores is None else 0, None if region.cone is None else 0
    inner = (None, 0, each, Region(0, 0, None), 0, None)  # type: ignore[arg-type]
    outer = (0 if problem.data_runs else None, 0, each, Region(0, 0, cone), 0, None)  # type: ignore[arg-type]
    starts: Any = jax.vmap(partial(_best_weight, problem), in_axes=inner)
    if region.radius.shape[0] == 1:  # one map is traced in three quarters of the time of two
        one = jax.tree.map(lambda x: x[0], (head, scores, region, state))
        own = jax.tree.map(lambda x: x[0], data) if problem.data_runs else data
        found: tuple[Descent, Answer] = jax.tree.map(lambda x: x[None], starts(own, *one, stop))
        return found
    return jax.vmap(starts, in_axes=outer)(data, head, scores, region, state, stop)


@partial(Program, static=1)
def best_head(
    problem: Problem, data: Data, params: Params, region: Region, state: Descent, stop: Array
) -> Descent:
    """The same for the head, the weight fixed: a convex problem on the pooled tokens. The state holds v/r."""
    starts = jax.vmap(partial(_best_head, problem), in_axes=(None, 0, 0, 0, None))
    data_axis = 0 if problem.data_runs else None
    return jax.vmap(starts, in_axes=(data_axis, 0, 0, 0, None))(data, params, region, state, stop)


def _best_weight(
    problem: Problem,
    data: Data,
    head: Head,
    scores: Array | None,
    region: Region,
    state: Descent,
    stop: Array,
) -> tuple[Descent, Answer]:
    def slope(params: Params) -> Slope:
        look = attention.attend(data, problem.weight.matrix(params), region.radius, scores)
        reading = attention.read(data, look, head, scores)
        G, log_scale = attention.gradient(data, look, reading, problem.loss)
        return _unit(problem.weight.pullback(params, G), log_scale)

    end = descend(slope, partial(_inside, problem, region), state, TOLERANCE, stop)
    return end, _answer(problem, data, head, scores, region, end)


def _best_head(
    problem: Problem, data: Data, params: Params, region: Region, state: Descent, stop: Array
) -> Descent:
    look = attention.attend(data, problem.weight.matrix(params), region.radius)

    def slope(params: Params) -> Slope:
        reading = attention.read(data, look, Linear(region.head_radius * params["v"]))
        v, log_scale = attention.head_gradient(data, look, reading, problem.loss)
        return _unit({"v": v}, log_scale)

    def project(params: Params) -> Params:
        return {"v": project_ball(params["v"], problem.head_norm, jnp.ones_like(region.radius))}

    return descend(slope, project, state, TOLERANCE, stop)


def _answer(
    problem: Problem, data: Data, head: Head, scores: Array | None, region: Region, end: Descent
) -> Answer:
    W = problem.weight.matrix(end.x)
    look = attention.attend(data, W, region.radius)
    reading = attention.read(data, look, head, scores)
    loss = attention.mean_loss(data, reading.margin, problem.loss)
    excess = jnp.full_like(loss, jnp.nan)
    if isinstance(head, (Linear, SquaredError)):
        excess = attention.log_excess(data, *attention.drops(data, look, reading), problem.loss)
    rank = excess if isinstance(head, Linear) else loss
    if problem.joint:
        rank = _log_loss(problem, data, reading.margin, region.head_radius)
    elif isinstance(head, Linear) and region.cone is not None:
        rank = _rank_near(problem, data, look, reading, region.cone.axis)
    pull = -jnp.stack([jnp.vdot(end.slope.mantissa[name], end.x[name]) for name in end.x]).mean()
    log_pull = jnp.log(jnp.maximum(pull, 0)) + end.slope.log_scale
    return Answer(end.x, head, W, loss, excess, rank, log_pull, end.stationary)


def _inside(problem: Problem, region: Region, params: Params) -> Params:
    """The nearest parameters of the region, in the ball of radius one.

    One parameter: N ≤ 1. Factors such as K and Q: ‖K‖² + ‖Q‖² ≤ 2, where min over all factors of
    one W is the nuclear ball (of diagonal factors, the l1 ball).
    """
    if len(params) > 1:
        size = jnp.sqrt(jnp.stack([(x * x).sum() for x in params.values()]).sum())
        bound = math.sqrt(2)
        shrink = where(size > bound, bound / where(size > 0, size, 1), 1)
        return {name: x * shrink for name, x in params.items()}
    ((name, x),) = params.items()
    norm, one = ball_of(problem.norm, x.ndim), jnp.ones_like(region.radius)
    if region.cone is None:
        return {name: project_ball(x, norm, one)}
    axis, cosine, inner = region.cone
    x = project_both(x, norm, one, axis, cosine)
    size = norm.value(x)
    grown = where(size > 0, x / where(size > 0, size, 1), axis / norm.value(axis)) * inner
    return {name: where(size < inner, grown, x)}


def _unit(mantissa: Params, log_scale: Array) -> Slope:
    """The slope with a largest entry of one: the squares of tiny tokens and scores would underflow."""
    largest = jnp.stack([jnp.abs(x).max() for x in mantissa.values()]).max()
    safe = where(largest > 0, largest, 1)
    return Slope({name: x / safe for name, x in mantissa.items()}, log_scale + jnp.log(safe))


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
    chosen = where(attention.attend(data, axis).winner, reading.scores, 0).sum(-1)
    gap = attention.unmasked(data, chosen[:, None] - reading.scores, 0)
    log_drop, sign = jax.nn.logsumexp(look.log_weights, b=gap, axis=-1, return_sign=True)
    top = chosen + where(sign < 0, jnp.exp(log_drop), 0)
    increase = problem.loss.log_increase(top, log_drop)
    log_size, sign = jax.nn.logsumexp(increase, b=sign, return_sign=True)
    return sign * (FAR + jnp.maximum(log_size, -FAR))
