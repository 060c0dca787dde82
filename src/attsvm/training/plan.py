"""The plan of a training: what is compiled, and the records that the loop passes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attsvm.training import runs as runs_axis, schedules
from attsvm.training.attention import SOFTMAX, Mechanism
from attsvm.training.batches import BatchForm, Place
from attsvm.training.data import Data
from attsvm.training.losses import Loss
from attsvm.training.optimizers import needs_excess
from attsvm.training.prediction_heads import Head
from attsvm.training.rules import Rule, is_foreign
from attsvm.training.sums import Needed
from attsvm.training.types import Arrays, Flags, Floats, Function, Index, Scalar, Steps, Tree
from attsvm.training.weights import FULL, Params, Weight


@dataclass(frozen=True)
class Model:
    """What is trained: weight and loss, with a runs axis on the state and on the data or without.

    runs_last: in the compiled loop runs are the last axis, as in small problems; else they are mapped over.
    cpu: whether the loop runs on a CPU. On a GPU the host would read the end of every loop and branch.
    block: the number of examples that are computed at a time, None for all of them.
    fused: pieces of steps are one kernel each (fused.py), on a CPU one that JAX interprets.
    batch: the form of a mini-batch (batches.py), None where every step takes all examples.
    kind: the mechanism of attention.
    """

    weight: Weight
    loss: Loss
    runs: bool
    data_runs: bool
    runs_last: bool = False
    cpu: bool = True
    block: int | None = None
    fused: bool = False
    batch: BatchForm | None = None
    kind: Mechanism = SOFTMAX

    def over_runs(self, function: Function, states: int) -> Function:
        """The function of (data, state, …) with `states` arguments per run, for all runs."""
        if not self.runs or self.runs_last:
            return function
        return jax.vmap(function, in_axes=(0 if self.data_runs else None, *[0] * states))

    def planned(self, function: Function, states: int, plan: Plan) -> Function:
        """The same for a function of (plan, data, state, …); numbers of the plan may be one per run."""
        leaves, tree = jax.tree.flatten(plan)
        per_run = [x if jnp.ndim(x) else None for x in leaves]

        def of_run(data: Tree, per_run: list[Scalar], *states: Tree) -> Tree:
            numbers = [x if mine is None else mine for x, mine in zip(leaves, per_run, strict=True)]
            return function(jax.tree.unflatten(tree, numbers), data, *states)

        mapped = self.over_runs(of_run, 1 + states)
        return lambda data, *states: mapped(data, per_run, *states)

    @property
    def of_records(self) -> Model:
        """The model that computes losses of weights W, however they are parametrised and trained."""
        return replace(self, weight=FULL, runs_last=False, fused=False, batch=None)

    def inside(self, data: Data, open_: Index) -> Data:
        """The data as the compiled loop sees it; open_: a number ≥ 0 that XLA does not know."""
        if not self.runs_last:
            return data
        last = runs_axis.to_last(data) if self.data_runs else jax.tree.map(lambda x: x[..., None], data)
        return last._replace(fence=(open_ >= 0) if self.cpu else None)

    def to_last(self, tree: Tree) -> Tree:
        return runs_axis.to_last(tree) if self.runs_last else tree

    def to_first(self, tree: Tree) -> Tree:
        return runs_axis.to_first(tree) if self.runs_last else tree


@partial(jax.tree_util.register_dataclass, data_fields=["rule", "head_rule", "place"], meta_fields=["model"])
@dataclass(frozen=True)
class Plan:
    """What is compiled: plans that differ in the numbers of their rules only share one program.

    place: counts of steps, from which the next mini-batch follows; None without mini-batches.
    """

    model: Model
    rule: Rule
    head_rule: Rule | None
    place: Place | None = None

    @property
    def needed(self) -> Needed:
        """The sums over the examples that the rules use; a rule of optax may use all."""
        rules = [rule for rule in (self.rule, self.head_rule) if rule is not None]
        return Needed(
            slope=True,
            pull=self.head_rule is not None,
            loss=any(is_foreign(rule) for rule in rules),
            excess=any(needs_excess(rule, foreign=True) for rule in rules),
        )

    @property
    def scheduled(self) -> bool:
        return schedules.scheduled(self.rule) or schedules.scheduled(self.head_rule)

    def at(self, step: int, count: int) -> Plan:
        """The plan with the rates of the next steps in place of schedules."""
        rule, head_rule = (schedules.written_out(rule, step, count) for rule in (self.rule, self.head_rule))
        return Plan(self.model, rule, head_rule, None if self.model.batch is None else Place(step, step))

    def of_step(self, k: Index) -> Plan:
        """The plan of step k of a call: its rates, and its place."""
        plan = schedules.at_step(self, k)
        if self.place is None:
            return plan
        return replace(plan, place=Place(self.place.first, self.place.first + k))


# ---------------------------------------------------------------------- what the loop passes on


class State(NamedTuple):
    """What a step changes. `going`: the run takes steps; `moving`: the last ones changed something.

    seed: of the mini-batches, where there are any; order (n,): that of their epoch, inside a call only.
    """

    params: Params
    head: Head
    memory: Tree
    head_memory: Tree
    going: Array
    moving: Array
    seed: Array | None = None
    order: Array | None = None


class Snapshot(NamedTuple):
    """The trained arrays at a recorded step; no head where that is fixed."""

    params: Params
    head: Head | None


class Record(NamedTuple):
    """The losses at a recorded step."""

    loss: Array | None
    log_excess: Array | None


@dataclass(frozen=True)
class Outcome:
    """What a run returns: the state after the last step, and the records.

    index (k,): the recorded steps. arrays ((runs,) k, …): the trained arrays there, and the losses where they
    are known; lazy: functions that compute the others, by name. converged: per run.
    """

    state: State
    index: Steps
    arrays: Arrays
    converged: Flags
    interrupted: bool
    lazy: dict[str, Callable[[], Floats]] = field(default_factory=dict)
