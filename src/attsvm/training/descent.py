"""Accelerated projected descent that sees gradients in log scale only, never the objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from attsvm.training.attention import Scaled
from attsvm.training.weights import Params

GROW, SHRINK = 1.05, 0.5
INTERIOR = 0.999
"""The projection is idle when the step has (nearly) its full length."""


class Descent(NamedTuple):
    """Where a descent stands: x feasible, y = x plus momentum, the step length and the count of steps."""

    x: Params
    y: Params
    momentum: Array
    step: Array
    count: Array
    stationary: Array


def descend(
    slope: Callable[[Params], Scaled],
    project: Callable[[Params], Params],
    start: Params,
    step: Array,
    tolerance: float,
    limit: int,
) -> Descent:
    """A stationary point of L on a set, from its scaled gradient and the projection on the set.

        x⁺ = P(y − η ĝ),  ĝ = ∇L(y)/‖∇L(y)‖,      y⁺ = x⁺ + β (x⁺ − x)

    The step is kept where ⟨∇L(x⁺) − ∇L(y), x⁺ − y⟩ ≤ ‖∇L(y)‖ ‖x⁺ − y‖²/η and halved elsewhere. Only the
    ratio of two gradients enters, so nothing underflows: where L falls like e^(−margin) this test lets
    η grow as if log L were descended. Momentum restarts when it points against the last move.
    Stationary: ‖x⁺ − y‖ ≤ tolerance · η, the share of the gradient that the set does not balance; or,
    inside the set, a move below tolerance · `step`, the size of the set.
    Reference: Beck & Teboulle 2009 (FISTA); O'Donoghue & Candès 2015 (restart).
    """

    def advance(state: Descent) -> Descent:
        here = slope(state.y)
        size = jnp.sqrt(_dot(here.mantissa, here.mantissa))
        safe = jnp.where(size > 0, size, 1)
        x = project(_plus(state.y, -state.step / safe, here.mantissa))
        move = _plus(x, -1.0, state.y)
        there = slope(x)
        ratio = jnp.exp(there.log_scale - here.log_scale)
        rise = (_dot(there.mantissa, move) * ratio - _dot(here.mantissa, move)) / safe
        length = jnp.sqrt(_dot(move, move))
        kept = rise <= length**2 / state.step
        free = length > INTERIOR * state.step
        still = (length <= tolerance * state.step) | (free & (length <= tolerance * step))
        turn = _plus(x, -1.0, state.x)
        against = _dot(move, turn) < 0
        momentum = jnp.where(against, 1.0, (1 + jnp.sqrt(1 + 4 * state.momentum**2)) / 2)
        y = _plus(x, jnp.where(against, 0.0, (state.momentum - 1) / momentum), turn)
        after = Descent(x, y, momentum, GROW * state.step, state.count, still | (size == 0))
        held = state._replace(step=SHRINK * state.step)
        chosen = jax.tree.map(lambda new, old: jnp.where(kept, new, old), after, held)
        return chosen._replace(count=state.count + 1)

    x = project(start)
    one = jnp.ones_like(step)
    begin = Descent(x, x, one, one * step, jnp.asarray(0), jnp.asarray(False))
    return lax.while_loop(lambda s: ~s.stationary & (s.count < limit), advance, begin)


def _dot(a: Params, b: Params) -> Array:
    return jnp.stack([jnp.vdot(a[name], b[name]) for name in a]).sum()


def _plus(x: Params, factor: Array | float, y: Params) -> Params:
    return {name: x[name] + factor * y[name] for name in x}
