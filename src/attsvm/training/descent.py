"""Accelerated projected descent that sees gradients in log scale only, never the objective."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attsvm.training.programs import where
from attsvm.training.weights import Params

GROW, SHRINK = 1.05, 0.5
FIRST = 1e-3
"""The first step in a set of size one: a longer one could leave the basin of the start."""
FREE = 0.999
"""Above this share of its full length a step was not stopped by the set's boundary."""


class Slope(NamedTuple):
    """The gradient of every parameter, mantissa · e^log_scale."""

    mantissa: Params
    log_scale: Array


class Descent(NamedTuple):
    """Where a descent stands: x in the set, y = x plus momentum, the slope at y, the step length η.

    taken: how many steps were tried; before the first, x is not yet projected on the set.
    """

    x: Params
    y: Params
    slope: Slope
    momentum: Array
    step: Array
    taken: Array
    stationary: Array


def begin(start: Params, still: Any = False) -> Descent:
    """Before the first step of descents from `start`, (runs, starts, …); `still`: which stay there."""
    batch = next(iter(start.values())).shape[:2]
    zero: Any = np.zeros(batch)
    flat: Any = {name: np.zeros_like(x) for name, x in start.items()}
    stationary: Any = np.broadcast_to(still, batch)
    return Descent(start, start, Slope(flat, zero), zero + 1, zero + FIRST, zero.astype(int), stationary)


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
        g, known = state.slope.mantissa, state.taken > 0
        steepness = jnp.sqrt(_dot(g, g))
        safe = where(steepness > 0, steepness, 1)
        x = project(_plus(state.y, -state.step / safe, g))
        move, turn = _plus(x, -1.0, state.y), _plus(x, -1.0, state.x)
        against = _dot(move, turn) < 0
        momentum = where(against, 1.0, (1 + jnp.sqrt(1 + 4 * state.momentum**2)) / 2)
        y = _plus(x, where(against, 0.0, (state.momentum - 1) / momentum), turn)
        there, way = slope(y), _plus(y, -1.0, state.y)
        ratio = jnp.exp(there.log_scale - state.slope.log_scale)
        rise = (_dot(there.mantissa, way) * ratio - _dot(g, way)) / safe
        kept = (rise * state.step <= _dot(way, way)) | ~known
        length = jnp.sqrt(_dot(move, move))
        free = length > FREE * state.step
        still = (length <= tolerance * state.step) | (free & (length <= tolerance))
        after = Descent(x, y, there, momentum, GROW * state.step, state.taken, known & still)
        held = state._replace(step=SHRINK * state.step)
        chosen = jax.tree.map(lambda new, old: where(kept, new, old), after, held)
        return chosen._replace(taken=state.taken + 1)

    # The first pass stands still and only takes the slope: a second copy of it would compile twice as long.
    inside = project(state.x)
    x = {name: where(state.taken == 0, inside[name], state.x[name]) for name in inside}
    y = {name: where(state.taken == 0, inside[name], state.y[name]) for name in inside}
    return lax.while_loop(lambda s: ~s.stationary & (s.taken < stop), advance, state._replace(x=x, y=y))


def _dot(a: Params, b: Params) -> Array:
    return jnp.stack([jnp.vdot(a[name], b[name]) for name in a]).sum()


def _plus(x: Params, factor: Array | float, y: Params) -> Params:
    return {name: x[name] + factor * y[name] for name in x}
