"""The compiled training loop: one program for all runs, all numbers of steps and all learning rates."""

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
from attsvm.training.rules import Rule
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


@partial(jax.tree_util.register_dataclass, data_fields=["rule", "head_rule"], meta_fields=["model"])
@dataclass(frozen=True)
class Plan:
    """What is compiled: plans that differ in the numbers of their rules only share one program."""

    model: Model
    rule: Rule
    head_rule: Rule | None

    @property
    def needs_excess(self) -> bool:
        rules = [rule for rule in (self.rule, self.head_rule) if rule is not None]
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


@jax.jit
def start(plan: Plan, data: Data, params: Params, head: Head) -> tuple[State, Array | None]:
    """The state before the first step, and the token scores of a linear head that is not trained.

    The scores save one pass over the values per step.
    """

    def one(params: Params, head: Head) -> State:
        memory = plan.rule.init(params)
        head_memory = None if plan.head_rule is None else plan.head_rule.init(head)
        return State(params, head, memory, head_memory, jnp.asarray(True), jnp.asarray(True))

    state = jax.vmap(one)(params, head) if plan.model.runs else one(params, head)
    if not isinstance(head, Linear) or plan.head_rule is not None:
        return state, None
    return state, plan.model.over_runs(attention.fixed_scores, 1)(data, head.v)


@jax.jit
def advance(
    plan: Plan, data: Data, scores: Array | None, state: State, lengths: Any, count: Any
) -> tuple[State, Snapshot]:
    """Take lengths[j] steps and keep a snapshot, for the first `count` of them; the rest is room."""
    step = plan.model.over_runs(partial(_step, plan), 2)

    def segment(j: Array, carry: tuple[State, Snapshot]) -> tuple[State, Snapshot]:
        state = lax.fori_loop(0, lengths[j], lambda _, s: step(data, s, scores), carry[0])
        return state, _put(carry[1], j, Snapshot(state.params, state.head))

    room = _room(Snapshot(state.params, state.head), len(lengths))
    return lax.fori_loop(0, count, segment, (state, room))


@partial(jax.jit, static_argnames="model")
def observe(model: Model, data: Data, snapshots: Snapshot, count: Any) -> Record:
    """Weight, loss and excess at the first `count` snapshots; compiled once for all optimizers."""
    look = model.over_runs(partial(_observe, model), 1)

    def one(j: Any) -> Record:
        return look(data, jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, j, keepdims=False), snapshots))

    room = _room(jax.eval_shape(one, 0), len(jax.tree.leaves(snapshots)[0]))
    return lax.fori_loop(0, count, lambda j, records: _put(records, j, one(j)), room)


def _room(one: Any, count: int) -> Any:
    return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), one)


def _put(many: Any, j: Array, one: Any) -> Any:
    # many.at[j].set(one) would be a scatter, which is slower.
    return jax.tree.map(lambda all_, new: lax.dynamic_update_index_in_dim(all_, new, j, 0), many, one)


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
    updates, memory = plan.rule.update(grads, state.memory, state.params, log_scale=slope.log_scale, **known)
    params = jax.tree.map(jnp.add, state.params, updates)
    head, head_memory = state.head, state.head_memory
    if plan.head_rule is not None:
        pull = attention.head_gradient(data, look, reading, model.loss)
        updates, head_memory = plan.head_rule.update(
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
