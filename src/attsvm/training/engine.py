"""The compiled training loop: one program for all runs, all numbers of steps and all learning rates."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attsvm.training import combinators, fused, weights
from attsvm.training.batches import drawn, some
from attsvm.training.compilation import wide_vectors
from attsvm.training.data import Data
from attsvm.training.plan import Model, Plan, Record, Snapshot, State
from attsvm.training.prediction_heads import Head
from attsvm.training.programs import Program, where
from attsvm.training.runs import fenced
from attsvm.training.sums import Asked, Sums, added, over_examples
from attsvm.training.weights import Params

BLOCK = 32
"""Steps of a loop on a GPU whose length it is told."""
SEEN = Asked(loss=True, excess=True)
"""What a record tells."""


def begun(plan: Plan, params: Params, head: Head, seed: Array | None = None) -> State:
    """The state before the first step: a few arrays of zeros, made without a program."""

    def memories(params: Params, head: Head) -> tuple[Any, Any]:
        return plan.rule.init(params), None if plan.head_rule is None else plan.head_rule.init(head)

    runs = next(iter(params.values())).shape[:1] if plan.model.runs else ()
    memory, head_memory = (jax.vmap(memories) if plan.model.runs else memories)(params, head)
    yes = jnp.asarray(np.ones(runs, bool))
    return State(params, head, memory, head_memory, yes, yes, seed)


def _advance(
    careful: bool, plan: Plan, data: Data, scores: Array | None, state: State, lengths: Any, count: Any
) -> tuple[State, Snapshot]:
    model = plan.model
    if model.batch is not None:  # one number per example, of every run
        state = state._replace(order=jnp.zeros((*state.going.shape, data.labels.shape[-1]), jnp.int64))
    data, scores, state = model.inside(data, count), model.to_last(scores), model.to_last(state)
    checked = model.over_runs(lambda _, old, new: _checked(plan, old, new), 2)

    kernel: Any = fused.steps(_step, plan, data, scores) if model.fused and scores is not None else None

    def step(k: Any, state: State) -> State:
        if kernel is not None:  # the same one, of one step: other sums would round in another way
            new = kernel(state, k, 1)
        else:
            new = model.planned(_step, 2, plan.now(k))(data, state, scores)
        return checked(data, state, new) if careful else new

    repeated: Any = partial(_repeated, model.cpu, step)
    if kernel is not None and not careful:
        repeated = kernel

    def piece(j: Array, carry: tuple[State, Snapshot, Array]) -> tuple[State, Snapshot, Array]:
        state, seen, taken = carry
        length = lengths[j]
        after = checked(data, state, repeated(state, taken, length))
        return after, _put(seen, j, snapshot(after)), taken + length

    def snapshot(state: State) -> Snapshot:
        return model.to_first(Snapshot(state.params, None if plan.head_rule is None else state.head))

    room = _room(jax.eval_shape(snapshot, state), len(lengths))
    state, snapshots, _ = lax.fori_loop(0, count, piece, (state, room, jnp.int64(0)))
    return model.to_first(state._replace(order=None)), snapshots


advance = Program(partial(_advance, False), compiler_options=wide_vectors())
"""Take lengths[j] steps and keep a snapshot, for the first `count` of them; the rest is room.

A run that is not finite at the end of a piece is back where the piece began, and no longer going.
"""

advance_carefully = Program(partial(_advance, True), compiler_options=wide_vectors())
"""The same with a look after every step: a run that diverges stays at its last finite weight."""


@Program
def mended(
    going: Array, fast: tuple[State, Snapshot], careful: tuple[State, Snapshot]
) -> tuple[State, Snapshot]:
    """The careful end of the runs that were going and diverged, the fast one of the others."""
    lost = going & ~fast[0].going

    def chosen(axis: int) -> Any:
        def one(quick: Array, slow: Array) -> Array:
            wide = lost.reshape((1,) * axis + lost.shape + (1,) * (quick.ndim - axis - lost.ndim))
            return where(wide, slow, quick)

        return one

    return (
        jax.tree.map(chosen(0), fast[0], careful[0]),
        jax.tree.map(chosen(1), fast[1], careful[1]),
    )


@partial(Program, static=1)
def observe(
    model: Model, data: Data, scores: Array | None, fixed: Head, records: Snapshot, count: Any
) -> Record:
    """Loss and excess (k, (runs)) of the first `count` records ((runs,) k, …), which are weights W alone."""
    axis = int(model.runs)

    def seen(data: Data, W: Array, head: Head, scores: Array | None) -> Record:
        found = over_examples(SEEN, model.loss, data, W, head, scores, model.block)
        return Record(found.loss, found.log_excess)

    look = model.over_runs(seen, 3)

    @jax.jit  # traced once, for its shapes and for the loop
    def one(j: Any) -> Record:
        there = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, j, axis, keepdims=False), records)
        return look(data, there.params["W"], fixed if there.head is None else there.head, scores)

    room = _room(jax.eval_shape(one, count), records.params["W"].shape[axis])
    return lax.fori_loop(0, count, lambda j, seen: _put(seen, j, one(j)), room)


@partial(Program, static=1)
def matrices(model: Model, params: Params, places: Any, count: Any) -> Array:
    """W at the first `count` of the places of parameters (k, (runs), …), (k, (runs), d, e)."""
    look = model.over_runs(lambda _, params: weights.matrix(model.weight, params, False), 1)

    def one(j: Any) -> Array:
        return look(
            None, jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, places[j], keepdims=False), params)
        )

    room: Array = _room(jax.eval_shape(one, count), len(places))
    return lax.fori_loop(0, count, lambda j, W: _put(W, j, one(j)), room)


@partial(Program, static=2)
def sums_over(asked: Asked, model: Model, data: Data, params: Params, head: Head) -> Sums:
    """The sums over a chunk of the examples; compiled once for all optimizers."""

    def one(data: Data, params: Params, head: Head) -> Sums:
        W = weights.matrix(model.weight, params, False)
        return over_examples(asked, model.loss, data, W, head, None, model.block)

    found: Sums = model.over_runs(one, 2)(data, params, head)
    return found


@partial(Program, static=1)
def sums_together(runs: bool, one: Sums, other: Sums) -> Sums:
    """Those of two chunks."""
    both: Sums = (jax.vmap(added) if runs else added)(one, other)
    return both


@Program
def stepped(plan: Plan, state: State, found: Sums) -> State:
    """The state after one step, looked at."""

    def one(plan: Plan, _: Any, old: State, found: Sums) -> State:
        return _checked(plan, old, _updated(plan, old, found))

    return plan.model.planned(one, 2, plan)(None, state, found)


@partial(Program, static=1)
def matrix(model: Model, params: Params) -> Array:
    """W (d, e) of every run."""
    W: Array = model.over_runs(lambda _, p: weights.matrix(model.weight, p, False), 1)(None, params)
    return W


def _repeated(cpu: bool, step: Any, state: State, begin: Array, length: Array) -> State:
    """step(k, ·) for k = begin … begin + length − 1.

    A GPU is told the number of turns of most of its loops: else each would ask the host whether to go on.
    """
    if cpu:
        return lax.fori_loop(0, length, lambda i, s: step(begin + i, s), state)
    blocks = length // BLOCK

    def block(b: Any, state: State) -> State:
        return lax.fori_loop(0, BLOCK, lambda i, s: step(begin + b * BLOCK + i, s), state)

    state = lax.fori_loop(0, blocks, block, state)
    return lax.fori_loop(blocks * BLOCK, length, lambda i, s: step(begin + i, s), state)


def _room(one: Any, count: int) -> Any:
    return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), one)


def _put(many: Any, j: Array, one: Any) -> Any:
    # many.at[j].set(one) would be a scatter, which is slower.
    return jax.tree.map(lambda all_, new: lax.dynamic_update_index_in_dim(all_, new, j, 0), many, one)


def _step(plan: Plan, data: Data, state: State, scores: Array | None) -> State:
    """One step of one run, or of all of them in lanes."""
    model, params, last = plan.model, state.params, plan.model.runs_last
    if model.batch is not None:
        chosen, order, share = drawn(model.batch, state.seed, state.order, plan.place)
        data, scores = some(data, scores, chosen, share)
        state = state._replace(order=order)
    W = weights.matrix(model.weight, params, last)
    if last and len(params) > 1:
        W = fenced(data.fence, lambda W: W, W)
    found = over_examples(plan.asked, model.loss, data, W, state.head, scores, model.block)
    return _updated(plan, state, found)


def _updated(plan: Plan, state: State, found: Sums) -> State:
    """The state after the step that these sums ask for."""
    model, params, last = plan.model, state.params, plan.model.runs_last
    slope, pull = found.slope, found.pull
    known = {"value": found.loss, "log_excess": found.log_excess}
    known = {name: value for name, value in known.items() if value is not None}
    assert slope is not None  # every plan asks for it
    grads = weights.pullback(model.weight, params, slope.mantissa, last)
    given = known | {"log_scale": slope.log_scale}
    updates, memory = combinators.update(plan.rule, grads, state.memory, params, last, given)
    params = jax.tree.map(jnp.add, params, updates)
    head, head_memory = state.head, state.head_memory
    if pull is not None and plan.head_rule is not None:
        given = known | {"log_scale": pull.log_scale}
        along = jax.tree.unflatten(jax.tree.structure(head), [pull.mantissa])
        updates, head_memory = combinators.update(plan.head_rule, along, head_memory, head, last, given)
        head = jax.tree.map(jnp.add, head, updates)
    return state._replace(params=params, head=head, memory=memory, head_memory=head_memory)


def _checked(plan: Plan, old: State, new: State) -> State:
    """The new state of runs that are going and finite, the old one of the others."""
    before, after = ((s.params, None if plan.head_rule is None else s.head) for s in (old, new))
    own = old.going.ndim
    finite = _all(jnp.isfinite, own, after)
    new = new._replace(going=new.going & finite, moving=~_all(jnp.equal, own, before, after))
    held = old._replace(going=new.going)
    if plan.head_rule is None:
        held = held._replace(head=new.head)  # which is the old one
    kept = old.going & finite
    return jax.tree.map(lambda new, old: new if new is old else where(kept, new, old), new, held)


def _all(test: Any, runs: int, *trees: Any) -> Array:
    """Whether a test holds for all entries of a run; `runs`: how many axes behind the others are theirs."""

    def whole(*leaves: Array) -> Array:
        found = test(*leaves)
        return found.all(tuple(range(found.ndim - runs)))

    return jnp.stack(jax.tree.leaves(jax.tree.map(whole, *trees))).all(0)
