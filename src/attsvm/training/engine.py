"""The compiled training loop: one traced program for all steps of all runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from attsvm.training import attention
from attsvm.training.attention import Data
from attsvm.training.heads import Head, Linear
from attsvm.training.losses import Loss
from attsvm.training.optimizers import Optimizer
from attsvm.training.weights import Params, Weight


@dataclass(frozen=True)
class Plan:
    """What is compiled: equal plans on equal shapes share one program."""

    weight: Weight
    loss: Loss
    optimizer: Optimizer
    train_head: Optimizer | None
    runs: bool
    data_runs: bool


class State(NamedTuple):
    """What a step changes. `finite`: no step was dropped; `moving`: the last step changed something."""

    params: Params
    head: Head
    memory: Any
    head_memory: Any
    finite: Array
    moving: Array


class Record(NamedTuple):
    """What is kept of a recorded step."""

    params: Params
    head: Head
    W: Array
    loss: Array
    log_excess: Array


def start(plan: Plan, params: Params, head: Head) -> State:
    """The state before the first step."""

    def one(params: Params, head: Head) -> State:
        memory = plan.optimizer.init(params)
        head_memory = None if plan.train_head is None else plan.train_head.init(head)
        return State(params, head, memory, head_memory, jnp.asarray(True), jnp.asarray(True))

    return jax.vmap(one)(params, head) if plan.runs else one(params, head)


@partial(jax.jit, static_argnames="plan")
def advance(plan: Plan, data: Data, state: State, lengths: Array) -> tuple[State, Record]:
    """Take lengths[j] steps, record, and so on for every j; memory grows with the records only."""
    axis = 0 if plan.data_runs else None

    def over_runs(function: Any) -> Any:
        return jax.vmap(function, in_axes=(axis, 0, 0)) if plan.runs else function

    scores = None
    if isinstance(state.head, Linear) and plan.train_head is None:  # one pass over the values saved per step
        fixed = jax.vmap(attention.fixed_scores, (axis, 0)) if plan.runs else attention.fixed_scores
        scores = fixed(data, state.head.v)
    step, observe = over_runs(partial(_step, plan)), over_runs(partial(_observe, plan))

    def segment(state: State, length: Array) -> tuple[State, Record]:
        state = lax.fori_loop(0, length, lambda _, s: step(data, scores, s), state)
        return state, observe(data, scores, state)

    return lax.scan(segment, state, lengths)


def _step(plan: Plan, data: Data, scores: Array | None, state: State) -> State:
    """One step of one run; a step to a non-finite weight is dropped and remembered."""
    look = attention.attend(data, plan.weight.matrix(state.params))
    reading = attention.read(data, look, state.head, scores)
    slope = attention.gradient(data, look, reading, plan.loss)
    grads = plan.weight.pullback(state.params, slope.mantissa)
    known = {"log_excess": _log_excess(plan, data, look, reading, state.head)}
    known["value"] = attention.mean_loss(reading, plan.loss)
    updates, memory = plan.optimizer.update(
        grads, state.memory, state.params, log_scale=slope.log_scale, **known
    )
    params = jax.tree.map(jnp.add, state.params, updates)
    head, head_memory = state.head, state.head_memory
    if plan.train_head is not None:
        pull = attention.head_gradient(data, look, reading, plan.loss)
        updates, head_memory = plan.train_head.update(
            Linear(pull.mantissa), head_memory, head, log_scale=pull.log_scale, **known
        )
        head = jax.tree.map(jnp.add, head, updates)
    finite = state.finite & _all(jnp.isfinite, (params, head))
    moving = ~_all(jnp.equal, (params, head), (state.params, state.head))
    after = State(params, head, memory, head_memory, finite, moving)
    held = state._replace(finite=finite, moving=moving)
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, held)


def _observe(plan: Plan, data: Data, scores: Array | None, state: State) -> Record:
    W = plan.weight.matrix(state.params)
    look = attention.attend(data, W)
    reading = attention.read(data, look, state.head, scores)
    loss = attention.mean_loss(reading, plan.loss)
    return Record(state.params, state.head, W, loss, _log_excess(plan, data, look, reading, state.head))


def _log_excess(plan: Plan, data: Data, look: Any, reading: Any, head: Head) -> Array:
    if isinstance(head, Linear):
        return attention.log_excess(data, look, reading.scores, plan.loss)
    return jnp.full((), jnp.nan, reading.margin.dtype)


def _all(test: Any, *trees: Any) -> Array:
    each = jax.tree.leaves(jax.tree.map(lambda *leaves: test(*leaves).all(), *trees))
    return jnp.stack(each).all()
