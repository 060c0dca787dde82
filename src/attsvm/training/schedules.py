"""Learning rates as data: a schedule is written out for the next steps, so none is compiled into the loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attsvm.training.holding import AROUND
from attsvm.training.rule import LAST, Rule


class Rates(NamedTuple):
    """The learning rates of the next steps (k,), in place of a schedule."""

    table: Any


def scheduled(rule: Rule | None) -> bool:
    """Whether the learning rate of a rule is a schedule that can be written out."""
    inner = getattr(rule, "rule", None)
    return callable(getattr(rule, "lr", None)) if inner is None else scheduled(inner)


def written_out(rule: Any, first: int, count: int) -> Any:
    """The rule with the rates of the steps first … first + count − 1 in place of its schedule."""
    if not scheduled(rule):
        return rule
    if isinstance(rule, AROUND):
        return replace(rule, rule=written_out(rule.rule, first, count))
    # Not compiled as a whole: its operations are the same for every schedule of a kind.
    try:
        rates = jax.vmap(rule.lr)(np.minimum(np.arange(first, first + count), LAST).astype(np.int32))
    except jax.errors.ConcretizationTypeError as error:
        raise ValueError(
            "the schedule lr asks which step it is, in an `if` say, but is called for many at once. "
            "Write it with jax.numpy, as jnp.where(step < 5, 0.1, 0.01), or take one of optax."
        ) from error
    if rates.shape != (count,):
        raise ValueError(f"the schedule lr has shape {rates.shape[1:]} at a step. Return one number.")
    return replace(rule, lr=Rates(np.asarray(rates)))


def at_step(tree: Any, k: Any) -> Any:
    """The rules in a tree with their rate of step k alone."""
    return jax.tree.map(
        lambda x: jnp.asarray(x.table)[k] if isinstance(x, Rates) else x,
        tree,
        is_leaf=lambda x: isinstance(x, Rates),
    )
