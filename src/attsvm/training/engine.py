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
from attsvm.training.optimizers import needs_excess
from attsvm.training.rules import Optimizer
from attsvm.training.weights import Params, Weight


@dataclass(frozen=True)
class Model:
    """What is trained: weight and loss, with a runs axis on the state and on the data or without."""

    weight: Weight
    loss: Loss
    runs: bool
    data_runs: bool

    def over_runs(self, function: Any, states: int) -> Any:
        """The function of (data, state, …) with `states` arguments per run, mapped over the runs."""
        data = 0 if self.data_runs else None
        return jax.vmap(function, in_axes=(data, *[0] * states)) if self.runs else function


@dataclass(frozen=True)
class Plan:
    """What is compiled: equal plans on equal shapes share one program."""

    model: Model
    optimizer: Optimizer
    train_head: Optimizer | None

    @property
    def needs_excess(self) -> bool:
        rules = [rule for rule in (self.optimizer, self.train_head) if rule is not None]
        return any(needs_excess(rule, foreign=True) for rule in rules)


class State(NamedTuple):
    """What a step changes. `finite`: no step was dropped; `moving`: the last step changed something."""

    params: Params
    head: Head
    memory: Any
    head_memory: Any
    finite: Array
    moving: Array


class Snapshot(NamedTuple):
    """The trained arrays at a recorded step."""

    params: Params
    head: Head


class Record(NamedTuple):
    """What is known at a recorded step."""

    W: Array
    loss: Array
    log_excess: Array


@partial(jax.jit, static_argnames="plan")
def start(plan: Plan, params: Params, head: Head) -> State:
    """The state before the first step."""

    def one(params: Params, head: Head) -> State:
        memory = plan.optimizer.init(params)
        head_memory = None if plan.train_head is None else plan.train_head.init(head)
        return State(params, head, memory, head_memory, jnp.asarray(True), jnp.asarray(True))

    return jax.vmap(one)(params, head) if plan.model.runs else one(params, head)


@partial(jax.jit, static_argnames="plan")
def advance(plan: Plan, data: Data, state: State, lengths: Any) -> tuple[State, Snapshot]:
    """Take lengths[j] steps, keep a snapshot, and so on for every j; memory grows with these only."""
    model, scores = plan.model, None
    if isinstance(state.head, Linear) and plan.train_head is None:  # saves one pass over the values per step
        scores = model.over_runs(attention.fixed_scores, 1)(data, state.head.v)
    step = model.over_runs(partial(_step, plan), 2)

    def segment(state: State, length: Array) -> tuple[State, Snapshot]:
        state = lax.fori_loop(0, length, lambda _, s: step(data, s, scores), state)
        return state, Snapshot(state.params, state.head)

    return lax.scan(segment, state, lengths)


@partial(jax.jit, static_argnames="model")
def observe(model: Model, data: Data, snapshots: Snapshot) -> Record:
    """Weight, loss and excess at every snapshot, one after the other; compiled once for all optimizers."""
    one = model.over_runs(partial(_observe, model), 1)
    return lax.map(lambda snapshot: one(data, snapshot), snapshots)


def _step(plan: Plan, data: Data, state: State, scores: Array | None) -> State:
    """One step of one run; a step to a non-finite weight is dropped and remembered."""
    model = plan.model
    look = attention.attend(data, model.weight.matrix(state.params))
    reading = attention.read(data, look, state.head, scores)
    slope = attention.gradient(data, look, reading, model.loss)
    grads = model.weight.pullback(state.params, slope.mantissa)
    known = {"value": attention.mean_loss(reading, model.loss)}
    if plan.needs_excess:
        known["log_excess"] = _log_excess(model, data, look, reading, state.head)
    updates, memory = plan.optimizer.update(
        grads, state.memory, state.params, log_scale=slope.log_scale, **known
    )
    params = jax.tree.map(jnp.add, state.params, updates)
    head, head_memory = state.head, state.head_memory
    if plan.train_head is not None:
        pull = attention.head_gradient(data, look, reading, model.loss)
        updates, head_memory = plan.train_head.update(
            Linear(pull.mantissa), head_memory, head, log_scale=pull.log_scale, **known
        )
        head = jax.tree.map(jnp.add, head, updates)
    finite = state.finite & _all(jnp.isfinite, (params, head))
    moving = ~_all(jnp.equal, (params, head), (state.params, state.head))
    after = State(params, head, memory, head_memory, finite, moving)
    held = state._replace(finite=finite, moving=moving)
    return jax.tree.map(lambda new, old: jnp.where(finite, new, old), after, held)


def _observe(model: Model, data: Data, snapshot: Snapshot) -> Record:
    W = model.weight.matrix(snapshot.params)
    look = attention.attend(data, W)
    reading = attention.read(data, look, snapshot.head)
    loss = attention.mean_loss(reading, model.loss)
    return Record(W, loss, _log_excess(model, data, look, reading, snapshot.head))


def _log_excess(model: Model, data: Data, look: Any, reading: Any, head: Head) -> Array:
    if isinstance(head, Linear):
        return attention.log_excess(data, look, reading.scores, model.loss)
    return jnp.full((), jnp.nan, reading.margin.dtype)


def _all(test: Any, *trees: Any) -> Array:
    each = jax.tree.leaves(jax.tree.map(lambda *leaves: test(*leaves).all(), *trees))
    return jnp.stack(each).all()
