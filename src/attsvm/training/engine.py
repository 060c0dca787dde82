"""The compiled training loop: one program for all runs, all numbers of steps and all learning rates."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from attsvm.training import fused, rules, weights
from attsvm.training.batches import drawn, examples_of
from attsvm.training.compilation import few_optimisations, wide_vectors
from attsvm.training.data import Data
from attsvm.training.plan import Model, Plan, Record, Snapshot, State
from attsvm.training.prediction_heads import Head
from attsvm.training.programs import Program, where
from attsvm.training.runs import fenced
from attsvm.training.sums import Needed, Sums, added, over_examples
from attsvm.training.types import Function, Index, Tree
from attsvm.training.weights import Params

BLOCK = 32
"""Steps of the inner loop on a GPU, whose number is compiled in."""
OF_RECORDS = Needed(loss=True, excess=True)
"""The sums of a record."""
FEW, MANY, MOST_BYTES = 64, 1024, 2**23
"""Records that a call has room for, in a run of few or of many; and the most bytes that they may take."""
HASTY = 1 << 19
"""Below so many key entries, computing a record takes less time than optimising its program."""


def _advance(
    careful: bool, plan: Plan, data: Data, scores: Array | None, state: State, lengths: Index, count: Index
) -> tuple[State, Snapshot]:
    model = plan.model
    if model.batch is not None:  # one number per example, of every run
        state = state._replace(order=jnp.zeros((*state.going.shape, data.labels.shape[-1]), jnp.int64))
    data, scores, state = model.inside(data, count), model.to_last(scores), model.to_last(state)
    accepted = model.over_runs(lambda _, old, new: _accepted(plan, old, new), 2)

    kernel: Function | None = (
        fused.steps(_step, plan, data, scores) if model.fused and scores is not None else None
    )

    def step(k: Index, state: State) -> State:
        if kernel is not None:  # the kernel of one step: the general loop rounds sums in another way
            new = kernel(state, k, 1)
        else:
            new = model.planned(_step, 2, plan.of_step(k))(data, state, scores)
        return accepted(data, state, new) if careful else new

    repeated: Function = partial(_repeated, model.cpu, step)
    if kernel is not None and not careful:
        repeated = kernel

    def piece(j: Array, carry: tuple[State, Snapshot, Array]) -> tuple[State, Snapshot, Array]:
        state, snapshots, steps = carry
        length = lengths[j]
        new_state = accepted(data, state, repeated(state, steps, length))
        return new_state, _put(snapshots, j, snapshot(new_state)), steps + length

    def snapshot(state: State) -> Snapshot:
        return model.to_first(Snapshot(state.params, None if plan.head_rule is None else state.head))

    empty = _empty(jax.eval_shape(snapshot, state), len(lengths))
    state, snapshots, _ = lax.fori_loop(0, count, piece, (state, empty, jnp.int64(0)))
    return model.to_first(state._replace(order=None)), snapshots


advance = Program(partial(_advance, False), compiler_options=wide_vectors())
"""For the first `count` lengths: take lengths[j] steps and keep a snapshot; the other places are not used.

A run that is not finite at the end of a piece returns to the beginning of the piece and stops.
"""

advance_carefully = Program(partial(_advance, True), compiler_options=wide_vectors())
"""The same with a check after every step: a run that diverges stays at its last finite weight."""


def _with_diverged(
    going: Array, fast: tuple[State, Snapshot], careful: tuple[State, Snapshot]
) -> tuple[State, Snapshot]:
    """The result of `advance`, with that of `advance_carefully` for the runs that diverged."""
    diverged = going & ~fast[0].going

    def selected(axis: int) -> Function:
        def of_leaf(quick: Array, slow: Array) -> Array:
            wide = diverged.reshape((1,) * axis + diverged.shape + (1,) * (quick.ndim - axis - diverged.ndim))
            return where(wide, slow, quick)

        return of_leaf

    return (
        jax.tree.map(selected(0), fast[0], careful[0]),
        jax.tree.map(selected(1), fast[1], careful[1]),
    )


with_diverged = Program(_with_diverged)


# ---------------------------------------------------------------------- records


def room(records: int, size: int) -> int:
    """Room of a call for records of `size` bytes: few different numbers, since each compiles a program."""
    return max(1, min(FEW if records < FEW else MANY, MOST_BYTES // max(size, 1)))


def compiled_quickly(data: Data, runs: int, chunks: int) -> AbstractContextManager[None]:
    """Compile records with few optimisations where all chunks, of `runs` runs each, have few keys."""
    numbers = chunks * (1 if data.keys.ndim == 4 else runs) * data.keys.size
    return few_optimisations() if numbers < HASTY else nullcontext()


def _observe(
    model: Model, data: Data, scores: Array | None, fixed: Head, records: Snapshot, count: Index
) -> Record:
    """Loss and excess (k, (runs)) of the first `count` records ((runs,) k, …), which are weights W alone."""
    axis = int(model.runs)

    def of_run(data: Data, W: Array, head: Head, scores: Array | None) -> Record:
        sums = over_examples(OF_RECORDS, model.loss, data, W, head, scores, model.block, model.kind)
        return Record(sums.loss, sums.log_excess)

    of_runs = model.over_runs(of_run, 3)

    @jax.jit  # traced once, for its shapes and for the loop
    def losses(j: Index) -> Record:
        at_record = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, j, axis, keepdims=False), records)
        head = fixed if at_record.head is None else at_record.head
        return of_runs(data, at_record.params["W"], head, scores)

    empty = _empty(jax.eval_shape(losses, count), records.params["W"].shape[axis])
    return lax.fori_loop(0, count, lambda j, all_losses: _put(all_losses, j, losses(j)), empty)


observe = Program(_observe, static=1)


def _matrices(model: Model, params: Params, places: Index, count: Index) -> Array:
    """W at the first `count` of the places of parameters (k, (runs), …), (k, (runs), d, e)."""
    of_runs = model.over_runs(lambda _, params: weights.matrix(model.weight, params, False), 1)

    def at_place(j: Index) -> Array:
        return of_runs(
            None, jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, places[j], keepdims=False), params)
        )

    empty: Array = _empty(jax.eval_shape(at_place, count), len(places))
    return lax.fori_loop(0, count, lambda j, W: _put(W, j, at_place(j)), empty)


matrices = Program(_matrices, static=1)


# ---------------------------------------------------------------------- data in chunks of examples


def _sums_over(needed: Needed, model: Model, data: Data, params: Params, head: Head) -> Sums:
    """The sums over a chunk of the examples; compiled once for all optimizers."""

    def of_run(data: Data, params: Params, head: Head) -> Sums:
        W = weights.matrix(model.weight, params, False)
        return over_examples(needed, model.loss, data, W, head, None, model.block, model.kind)

    sums: Sums = model.over_runs(of_run, 2)(data, params, head)
    return sums


sums_over = Program(_sums_over, static=2)


def _sums_together(runs: bool, a: Sums, b: Sums) -> Sums:
    """The sums over two chunks."""
    total: Sums = (jax.vmap(added) if runs else added)(a, b)
    return total


sums_together = Program(_sums_together, static=1)


def _stepped(plan: Plan, state: State, sums: Sums) -> State:
    """The state after one step, checked."""

    def of_run(plan: Plan, _: None, old: State, sums: Sums) -> State:
        return _accepted(plan, old, _updated(plan, old, sums))

    return plan.model.planned(of_run, 2, plan)(None, state, sums)


stepped = Program(_stepped)


def _matrix(model: Model, params: Params) -> Array:
    """W (d, e) of every run."""
    W: Array = model.over_runs(lambda _, p: weights.matrix(model.weight, p, False), 1)(None, params)
    return W


matrix = Program(_matrix, static=1)


# ---------------------------------------------------------------------- one step


def _repeated(cpu: bool, step: Function, state: State, begin: Array, length: Array) -> State:
    """step(k, ·) for k = begin … begin + length − 1.

    On a GPU, a loop whose number of turns is not compiled in asks the host after every turn whether to go on.
    """
    if cpu:
        return lax.fori_loop(0, length, lambda i, s: step(begin + i, s), state)
    blocks = length // BLOCK

    def block(b: Index, state: State) -> State:
        return lax.fori_loop(0, BLOCK, lambda i, s: step(begin + b * BLOCK + i, s), state)

    state = lax.fori_loop(0, blocks, block, state)
    return lax.fori_loop(blocks * BLOCK, length, lambda i, s: step(begin + i, s), state)


def _empty(shapes: Tree, count: int) -> Tree:
    return jax.tree.map(lambda x: jnp.zeros((count, *x.shape), x.dtype), shapes)


def _put(stack: Tree, j: Array, tree: Tree) -> Tree:
    # stack.at[j].set(tree) would be a scatter, which is slower.
    return jax.tree.map(lambda x, new: lax.dynamic_update_index_in_dim(x, new, j, 0), stack, tree)


def _step(plan: Plan, data: Data, state: State, scores: Array | None) -> State:
    """One step of one run, or of all runs on the last axis."""
    model, params, last = plan.model, state.params, plan.model.runs_last
    if model.batch is not None:
        batch, order, share = drawn(model.batch, state.seed, state.order, plan.place)
        data, scores = examples_of(data, scores, batch, share)
        state = state._replace(order=order)
    W = weights.matrix(model.weight, params, last)
    if last and len(params) > 1:
        W = fenced(data.fence, lambda W: W, W)
    sums = over_examples(plan.needed, model.loss, data, W, state.head, scores, model.block, model.kind)
    return _updated(plan, state, sums)


def _updated(plan: Plan, state: State, sums: Sums) -> State:
    """The state after the step along these sums."""
    model, params, last = plan.model, state.params, plan.model.runs_last
    slope, pull = sums.slope, sums.pull
    losses = {"value": sums.loss, "log_excess": sums.log_excess}
    losses = {name: value for name, value in losses.items() if value is not None}
    assert slope is not None  # every plan needs it
    grads = weights.pullback(model.weight, params, slope.mantissa, last)
    scaled = losses | {"log_scale": slope.log_scale}
    updates, memory = rules.update(plan.rule, grads, state.memory, params, last, scaled)
    params = jax.tree.map(jnp.add, params, updates)
    head, head_memory = state.head, state.head_memory
    if pull is not None and plan.head_rule is not None:
        scaled = losses | {"log_scale": pull.log_scale}
        grads_of_head = jax.tree.unflatten(jax.tree.structure(head), [pull.mantissa])
        updates, head_memory = rules.update(plan.head_rule, grads_of_head, head_memory, head, last, scaled)
        head = jax.tree.map(jnp.add, head, updates)
    return state._replace(params=params, head=head, memory=memory, head_memory=head_memory)


def _accepted(plan: Plan, old: State, new: State) -> State:
    """The new state of runs that are going and finite, the old state of the others."""
    old_arrays, new_arrays = ((s.params, None if plan.head_rule is None else s.head) for s in (old, new))
    run_axes = old.going.ndim
    finite = _all(jnp.isfinite, run_axes, new_arrays)
    new = new._replace(going=new.going & finite, moving=~_all(jnp.equal, run_axes, old_arrays, new_arrays))
    stopped = old._replace(going=new.going)
    if plan.head_rule is None:
        stopped = stopped._replace(head=new.head)  # untrained: both are equal
    accepted = old.going & finite
    return jax.tree.map(lambda new, old: new if new is old else where(accepted, new, old), new, stopped)


def _all(test: Function, run_axes: int, *trees: Tree) -> Array:
    """Whether a test holds for all entries of a run; the axes of runs are the last ones."""

    def of_leaves(*leaves: Array) -> Array:
        holds = test(*leaves)
        return holds.all(tuple(range(holds.ndim - run_axes)))

    return jnp.stack(jax.tree.leaves(jax.tree.map(of_leaves, *trees))).all(0)
