"""What a rule is: a frozen record with init and update, its numbers arguments of one compiled loop.

    update(grads, state, params, log_scale=Λ, log_excess=log(L − L*)),   true gradient = grads · e^Λ

Arrays may carry runs behind their own axes (lanes.py); then Λ carries them too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

Number = Any
"""Of a rule: a float for all runs, or a tuple of one per run."""
Rate = Number | Callable[[Any], Any]
Tree = Any


class Rule(Protocol):
    """What an optimizer does: a frozen record, registered with `numbers`."""

    def init(self, params: Tree) -> Tree: ...
    def update(self, grads: Tree, state: Tree, params: Tree = None, **known: Any) -> tuple[Tree, Tree]: ...


class Optimizer(optax.GradientTransformationExtraArgs):  # type: ignore[misc]
    """An optax transformation that remembers its rule; equal rules make equal optimizers."""

    rule: Rule

    def __new__(cls, rule: Rule) -> Optimizer:
        self: Optimizer = super().__new__(cls, rule.init, rule.update)
        self.rule = rule
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Optimizer) and self.rule == other.rule

    def __ne__(self, other: object) -> bool:  # tuple has its own
        return not self == other

    def __hash__(self) -> int:
        return hash(self.rule)

    def __repr__(self) -> str:
        return repr(self.rule)


def numbers(*names: str) -> Callable[[type[Any]], type[Any]]:
    """Register a rule whose named numbers are arguments of the compiled loop; all else is compiled into it.

    So one program serves every lr, and numbers may be one per run. Zero is compiled in: it changes what is
    computed. So is a schedule, unless it is written out (schedules.py).
    """

    def register(rule_type: type[Any]) -> type[Any]:
        def flatten(rule: Any) -> tuple[list[Any], Any]:
            fields = vars(rule)
            free = [n for n in names if not callable(fields[n]) and not is_zero(fields[n])]
            fixed = {n: value for n, value in fields.items() if n not in free}
            return [_as_leaf(fields[n]) for n in free], (tuple(free), tuple(fixed.items()))

        def restore(kept: Any, values: Any) -> Any:
            free, fixed = kept
            return rule_type(**dict(zip(free, values, strict=True)), **dict(fixed))

        jax.tree_util.register_pytree_node(rule_type, flatten, restore)
        return rule_type

    return register


class Count(NamedTuple):
    """Number of updates made; None where no schedule asks for it."""

    updates: Array | None


# ---------------------------------------------------------------------- what rules are made of


def begin(lr: Rate) -> Array | None:
    """The count of updates before the first."""
    return jnp.zeros((), jnp.int32) if callable(lr) else None


LAST = np.iinfo(np.int32).max
"""Counts stop there, as optax's do: the next one would be negative."""


def one_more(updates: Array) -> Array:
    """The count after one more."""
    return updates + (updates < LAST)


def after(updates: Array | None) -> Array | None:
    """The same where a schedule asks for it."""
    return None if updates is None else one_more(updates)


def rate_at(lr: Rate, updates: Array | None) -> Any:
    """The number, or the schedule's after so many updates."""
    return lr(updates) if callable(lr) else lr


def times(number: Any, tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: (number * leaf).astype(leaf.dtype), tree)  # a schedule may be wider


def decayed(decay: Any, updates: Tree, rate: Any, params: Tree) -> Tree:
    """Less rate · decay of every parameter, whatever the gradient: it never enters the direction."""
    if is_zero(decay):
        return updates
    if params is None:
        raise ValueError("decay needs the parameters: call update(grads, state, params).")
    return jax.tree.map(jnp.subtract, updates, times(rate * decay, params))


def is_zero(value: object) -> bool:
    return isinstance(value, float) and value == 0  # False for a traced number, whose value is not known


def _as_leaf(value: Any) -> Any:
    return np.array(value) if type(value) is tuple else value
