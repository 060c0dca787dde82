"""The smallest loss at one radius, from many starts of many runs at once, as compiled programs.

The unknown is U in the ball of radius one, W = R·U: radii of every size are one problem with other logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from numpy.typing import ArrayLike

from attsvm.data.tokens import Tokens
from attsvm.norms import Norm, capabilities_of, frobenius
from attsvm.training import attention
from attsvm.training.attention import Attention, Reading
from attsvm.training.balls import ball_of, project_ball, project_both
from attsvm.training.data import Data
from attsvm.training.losses import Loss
from attsvm.training.prediction_heads import Head, Linear, SquaredError
from attsvm.training.programs import Program, where
from attsvm.training.types import AnyArray, Floats, Function, Scalar, Tree
from attsvm.training.weights import Params, Weight


@dataclass(frozen=True)
class DescentLimits:
    """How long a step is, and when a descent is at its end."""

    tolerance: float = 1e-7  # share of the gradient that may stay unbalanced: W is right to about as much
    growth: float = 1.05  # of a step that was kept
    shrinkage: float = 0.5  # of one that was not
    first: float = 1e-3  # in a set of size one: a longer one could leave the basin of the start
    free: float = 0.999  # above this share of its full length a step was not stopped by the boundary


DESCENT = DescentLimits()
FAR = 1e7
"""Larger than every log of a loss: it shifts the logs of signed numbers to the order of the numbers."""


@dataclass(frozen=True)
class BallProblem:
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


class Endpoint(NamedTuple):
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
    problem: BallProblem,
    data: Data,
    head: Head,
    scores: Array | None,
    region: Region,
    state: Descent,
    stop: Array,
) -> tuple[Descent, Endpoint]:
    """Go on to `stop` steps towards min L over the region, the head fixed, for every run and start.

    head, scores, state and the radii carry (runs, starts) first, the cone (runs,).
    scores (runs, starts, n, T): fixed token scores in place of the head's.
    """
    each, cone = None if scores is None else 0, None if region.cone is None else 0
    inner = (None, 0, each, Region(0, 0, None), 0, None)  # type: ignore[arg-type]
    outer = (0 if problem.data_runs else None, 0, each, Region(0, 0, cone), 0, None)  # type: ignore[arg-type]
    starts: Function = jax.vmap(partial(_best_weight, problem), in_axes=inner)
    if region.radius.shape[0] == 1:  # tracing one vmap takes three quarters of the time of two
        of_run = jax.tree.map(lambda x: x[0], (head, scores, region, state))
        data_of_run = jax.tree.map(lambda x: x[0], data) if problem.data_runs else data
        results: tuple[Descent, Endpoint] = jax.tree.map(
            lambda x: x[None], starts(data_of_run, *of_run, stop)
        )
        return results
    return jax.vmap(starts, in_axes=outer)(data, head, scores, region, state, stop)


@partial(Program, static=1)
def best_head(
    problem: BallProblem, data: Data, params: Params, region: Region, state: Descent, stop: Array
) -> Descent:
    """The same for the head, the weight fixed: a convex problem on the pooled tokens. The state holds v/r."""
    starts = jax.vmap(partial(_best_head, problem), in_axes=(None, 0, 0, 0, None))
    data_axis = 0 if problem.data_runs else None
    return jax.vmap(starts, in_axes=(data_axis, 0, 0, 0, None))(data, params, region, state, stop)


def _best_weight(
    problem: BallProblem,
    data: Data,
    head: Head,
    scores: Array | None,
    region: Region,
    state: Descent,
    stop: Array,
) -> tuple[Descent, Endpoint]:
    def slope(params: Params) -> Slope:
        softmax = attention.attend(data, problem.weight.matrix(params), region.radius, scores)
        reading = attention.read(data, softmax, head, scores)
        G, log_scale = attention.gradient(data, softmax, reading, problem.loss)
        return _unit(problem.weight.pullback(params, G), log_scale)

    end = descend(slope, partial(_inside, problem, region), state, DESCENT.tolerance, stop)
    return end, _answer(problem, data, head, scores, region, end)


def _best_head(
    problem: BallProblem, data: Data, params: Params, region: Region, state: Descent, stop: Array
) -> Descent:
    softmax = attention.attend(data, problem.weight.matrix(params), region.radius)

    def slope(params: Params) -> Slope:
        reading = attention.read(data, softmax, Linear(region.head_radius * params["v"]))
        v, log_scale = attention.head_gradient(data, softmax, reading, problem.loss)
        return _unit({"v": v}, log_scale)

    def project(params: Params) -> Params:
        return {"v": project_ball(params["v"], problem.head_norm, jnp.ones_like(region.radius))}

    return descend(slope, project, state, DESCENT.tolerance, stop)


def _answer(
    problem: BallProblem, data: Data, head: Head, scores: Array | None, region: Region, end: Descent
) -> Endpoint:
    W = problem.weight.matrix(end.x)
    softmax = attention.attend(data, W, region.radius)
    reading = attention.read(data, softmax, head, scores)
    loss = attention.mean_loss(data, reading.margin, problem.loss)
    excess = jnp.full_like(loss, jnp.nan)
    if isinstance(head, (Linear, SquaredError)):
        excess = attention.log_excess(data, *attention.drops(data, softmax, reading), problem.loss)
    rank = excess if isinstance(head, Linear) else loss
    if problem.joint:
        rank = _log_loss(problem, data, reading.margin, region.head_radius)
    elif isinstance(head, Linear) and region.cone is not None:
        rank = _rank_near(problem, data, softmax, reading, region.cone.axis)
    pull = -jnp.stack([jnp.vdot(end.slope.mantissa[name], end.x[name]) for name in end.x]).mean()
    log_pull = jnp.log(jnp.maximum(pull, 0)) + end.slope.log_scale
    return Endpoint(end.x, head, W, loss, excess, rank, log_pull, end.stationary)


def _inside(problem: BallProblem, region: Region, params: Params) -> Params:
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
    norm, unit_radius = ball_of(problem.norm, x.ndim), jnp.ones_like(region.radius)
    if region.cone is None:
        return {name: project_ball(x, norm, unit_radius)}
    axis, cosine, inner = region.cone
    x = project_both(x, norm, unit_radius, axis, cosine)
    size = norm.value(x)
    grown = where(size > 0, x / where(size > 0, size, 1), axis / norm.value(axis)) * inner
    return {name: where(size < inner, grown, x)}


def _unit(mantissa: Params, log_scale: Array) -> Slope:
    """The slope with a largest entry of one: the squares of tiny tokens and scores would underflow."""
    largest = jnp.stack([jnp.abs(x).max() for x in mantissa.values()]).max()
    safe = where(largest > 0, largest, 1)
    return Slope({name: x / safe for name, x in mantissa.items()}, log_scale + jnp.log(safe))


def _log_loss(problem: BallProblem, data: Data, margin: Array, head_radius: Array) -> Array:
    """log(L − ℓ(M)) with M above every margin that ‖v‖ ≤ r allows: orders losses that underflow."""
    values = data.keys if data.values is None else data.values
    top = 1 + head_radius * problem.head_norm.dual.value(values[..., None]).max()
    return jax.nn.logsumexp(problem.loss.log_increase(top, jnp.log(top - margin)))


def _rank_near(problem: BallProblem, data: Data, softmax: Attention, reading: Reading, axis: Array) -> Array:
    """An increasing function of L − L_α, where L_α is the loss of attention on the axis' tokens α alone.

    Near a selection that is not the best, L − L* is a constant plus a term of size e^(−R·margin). The sign of
    this term decides whether a start leaves. It is visible relative to L_α only.
    """
    axis_scores = where(attention.attend(data, axis).winner, reading.scores, 0).sum(-1)
    gap = attention.unmasked(data, axis_scores[:, None] - reading.scores, 0)
    log_drop, sign = jax.nn.logsumexp(softmax.log_weights, b=gap, axis=-1, return_sign=True)
    top = axis_scores + where(sign < 0, jnp.exp(log_drop), 0)
    increase = problem.loss.log_increase(top, log_drop)
    log_size, sign = jax.nn.logsumexp(increase, b=sign, return_sign=True)
    return sign * (FAR + jnp.maximum(log_size, -FAR))


# ---------------------------------------------------------------------- projected descent


class Slope(NamedTuple):
    """The gradient of every parameter, mantissa · e^log_scale."""

    mantissa: Params
    log_scale: Array


class Descent(NamedTuple):
    """The state of a descent: x in the set, y = x plus momentum, the slope at y, the step length η.

    taken: how many steps were tried; before the first, x is not yet projected on the set.
    """

    x: Params
    y: Params
    slope: Slope
    momentum: Array
    step: Array
    taken: Array
    stationary: Array


def begin(start: Params, still: Scalar = False) -> Descent:
    """The state before the first step from `start` (runs, starts, …); still: which starts do not move."""
    batch = next(iter(start.values())).shape[:2]
    zero: AnyArray = np.zeros(batch)
    flat: Tree = {name: np.zeros_like(x) for name, x in start.items()}
    stationary: AnyArray = np.broadcast_to(still, batch)
    return Descent(
        start, start, Slope(flat, zero), zero + 1, zero + DESCENT.first, zero.astype(int), stationary
    )


def descend(
    slope: Callable[[Params], Slope],
    project: Callable[[Params], Params],
    state: Descent,
    tolerance: float,
    stop: Array,
) -> Descent:
    """Go on towards a stationary point of L on a set of size one, until `stop` steps are taken in all.

        x⁺ = P(y − η ĝ),  ĝ = ∇L(y)/‖∇L(y)‖,      y⁺ = x⁺ + β (x⁺ − x)

    P is the projection on the set. A step is kept where
    ⟨∇L(y⁺) − ∇L(y), y⁺ − y⟩ ≤ ‖∇L(y)‖ ‖y⁺ − y‖²/η, else η is halved. Only the ratio of two gradients
    enters, so nothing underflows; where L falls like e^(−margin), the test lets η grow as if log L were
    descended. Momentum restarts when it points against the last move.
    Stationary: ‖x⁺ − y‖ ≤ tolerance · η, the share of the gradient that the set does not balance; or,
    inside the set, ‖x⁺ − y‖ ≤ tolerance.
    Reference: Beck & Teboulle 2009 (FISTA); O'Donoghue & Candès 2015 (restart).
    """

    def advance(state: Descent) -> Descent:
        g, has_slope = state.slope.mantissa, state.taken > 0
        steepness = jnp.sqrt(_dot(g, g))
        safe = where(steepness > 0, steepness, 1)
        x = project(_plus(state.y, -state.step / safe, g))
        move, turn = _plus(x, -1.0, state.y), _plus(x, -1.0, state.x)
        against = _dot(move, turn) < 0
        momentum = where(against, 1.0, (1 + jnp.sqrt(1 + 4 * state.momentum**2)) / 2)
        y = _plus(x, where(against, 0.0, (state.momentum - 1) / momentum), turn)
        new_slope, change = slope(y), _plus(y, -1.0, state.y)
        ratio = jnp.exp(new_slope.log_scale - state.slope.log_scale)
        rise = (_dot(new_slope.mantissa, change) * ratio - _dot(g, change)) / safe
        accepted = (rise * state.step <= _dot(change, change)) | ~has_slope
        length = jnp.sqrt(_dot(move, move))
        free = length > DESCENT.free * state.step
        still = (length <= tolerance * state.step) | (free & (length <= tolerance))
        moved = Descent(
            x, y, new_slope, momentum, DESCENT.growth * state.step, state.taken, has_slope & still
        )
        halved = state._replace(step=DESCENT.shrinkage * state.step)
        new_state = jax.tree.map(lambda new, old: where(accepted, new, old), moved, halved)
        return new_state._replace(taken=state.taken + 1)

    # The first pass computes the slope and does not move: a second copy of the slope doubles compilation.
    inside = project(state.x)
    x = {name: where(state.taken == 0, inside[name], state.x[name]) for name in inside}
    y = {name: where(state.taken == 0, inside[name], state.y[name]) for name in inside}
    return lax.while_loop(lambda s: ~s.stationary & (s.taken < stop), advance, state._replace(x=x, y=y))


def _dot(a: Params, b: Params) -> Array:
    return jnp.stack([jnp.vdot(a[name], b[name]) for name in a]).sum()


def _plus(x: Params, factor: Array | float, y: Params) -> Params:
    return {name: x[name] + factor * y[name] for name in x}


# ---------------------------------------------------------------------- which radii

LARGEST_LOGIT = 1e12
"""Logits beyond it carry a rounding error that shows in the attention."""


def checked_radii(
    radii: ArrayLike | None, ridge: ArrayLike | None, head_radii: ArrayLike | None
) -> tuple[Floats, Floats | None]:
    """The index of a path, radii or ridges, and the head's radii where it is trained."""
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


def check_radii(tokens: Tokens, radii: Floats, head_radii: Floats | None) -> None:
    """Refuse radii at which rounding decides which token wins: the path would be noise, or never end."""
    last, limit = radii[-1], largest_radius(tokens).min()
    if last > limit:
        raise ValueError(
            f"radii reach {last:g}, but float64 cannot resolve the logits x W z of these tokens beyond the "
            f"radius {limit:.3g}. Stop there; the direction beyond is that of max_margin."
        )
    if head_radii is not None and head_radii.max() > (
        limit := LARGEST_LOGIT / max(np.abs(tokens.values).max(), 1)
    ):
        raise ValueError(f"head_radii reach {head_radii.max():g}. Pass radii up to {limit:.3g}.")


def largest_radius(tokens: Tokens) -> Floats:
    """The radius at which logits reach LARGEST_LOGIT, (runs, 1)."""
    with np.errstate(over="ignore", divide="ignore"):
        return np.asarray(np.exp2(np.log2(LARGEST_LOGIT) - sum(map(np.log2, _sizes(tokens)))))


def units(tokens: Tokens) -> tuple[Floats, Floats]:
    """Exponents of two that bring keys and queries to size one, (runs, 1); zero where they are near it."""
    exponents = (np.frexp(size)[1] for size in _sizes(tokens))
    keys, queries = (np.where(np.abs(each) > 100, each, 0) for each in exponents)
    return keys, queries


def _sizes(tokens: Tokens) -> tuple[Floats, Floats]:
    """The largest entry of the keys and of the queries, (runs, 1)."""
    flat = (a.astype(float).reshape(tokens.runs or 1, -1) for a in (tokens.keys, tokens.queries))
    keys, queries = (np.abs(a).max(-1, keepdims=True) for a in flat)
    return keys, queries


def _positive(name: str, values: ArrayLike | None, order: int) -> Floats:
    """A vector of positive numbers, increasing (order 1), decreasing (−1) or free (0)."""
    try:
        raw = np.asarray(values)
        array = raw.astype(np.float64) if raw.dtype.kind in "iuf" else np.zeros(0)
    except (TypeError, ValueError):
        array = np.zeros(0)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all() or (array <= 0).any():
        raise ValueError(f"{name} is {values!r}. Pass a sequence of positive numbers.")
    if (order * np.diff(array) <= 0).any() and order:
        raise ValueError(f"{name} must be strictly {'increasing' if order > 0 else 'decreasing'}.")
    return array
