"""Learning rates as data: a schedule is written out for the next steps, so none is compiled into the loop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attsvm.training.rules import AROUND, LAST, Rate, Rule
from attsvm.training.types import AnyArray, Floats, Function, Index, Tree


class Rates(NamedTuple):
    """The learning rates of the next steps (k,), in place of a schedule."""

    table: AnyArray


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
    steps = np.minimum(np.arange(first, first + count), LAST).astype(np.int32)
    return replace(rule, lr=Rates(rates_at(rule.lr, steps)))


def rates_at(schedule: Function, steps: Floats) -> Floats:
    """The learning rates of a schedule at many steps (k,)."""
    # Not compiled as a whole: its operations are the same for every schedule of a kind.
    try:
        rates = jnp.asarray(jax.vmap(schedule)(steps))
    except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError) as error:
        raise ValueError(
            "the schedule lr asks which step it is, in an `if` or in NumPy say, but is called for many at "
            "once. Write it with jax.numpy, as jnp.where(step < 5, 0.1, 0.01), or take one of optax."
        ) from error
    if rates.shape != steps.shape:
        raise ValueError(f"the schedule lr has shape {rates.shape[1:]} at a step. Return one number.")
    if jnp.iscomplexobj(rates):
        raise ValueError("the schedule lr is complex. Return one real number.")
    return np.asarray(rates)


def at_step(tree: Tree, k: Index) -> Tree:
    """The rules in a tree with their rate of step k alone."""
    return jax.tree.map(
        lambda x: jnp.asarray(x.table)[k] if isinstance(x, Rates) else x,
        tree,
        is_leaf=lambda x: isinstance(x, Rates),
    )


# ---------------------------------------------------------------------- what a schedule sums to

OCTAVES = range(4, 27)
"""Steps 2^j … 2^(j+1) are sampled for each of these j, after the first sixteen steps."""
TAIL = 8
"""The last octaves, of which the trend is taken."""
SUMMABLE = -0.1
"""If sums over octaves fall faster than this power of the step, the whole sum is finite; 1/k has power 0."""
SUMMABLE_SQUARES = -0.05
"""The same limit for sums of squares: k^−0.55 has power −0.1, and k^−0.5 has power 0."""


def no_limit(lr: Rate) -> str:
    """Why steps of these lengths lead to no limit, in words; empty if some hundred of them show no reason.

    Ascent, steps that end and steps with a finite sum have no limit. Steps that are not evaluated remain a
    hypothesis.
    """
    if not callable(lr):
        wrong = [x for x in np.atleast_1d(np.asarray(lr, float)) if not 0 < x < np.inf]
        return f"lr is {wrong[0]:g}, and not positive" if wrong else ""
    steps, rates = _sampled(lr)
    wrong_steps = steps[~((rates >= 0) & (rates < np.inf))]
    if len(wrong_steps):
        first = wrong_steps.min()
        return f"lr is {rates[steps == first][0]:g} at step {first:,}"
    sums, slope = _octaves(steps, rates)
    if not sums[-1]:
        positive = steps[rates > 0]
        return f"lr is 0 at every step looked at beyond {positive.max():,}" if len(positive) else "lr is 0"
    return (
        f"the steps lr(k) sum to a finite number: they fall like k^{slope - 1:.2g}"
        if slope < SUMMABLE
        else ""
    )


def squares_sum(lr: Rate) -> bool:
    """Whether the squares of a schedule sum to a finite number, as far as some hundred steps tell."""
    if not callable(lr):
        return False
    steps, rates = _sampled(lr)
    sums, slope = _octaves(steps, rates**2)
    return bool(sums.all() and slope < SUMMABLE_SQUARES)


def _sampled(schedule: Function) -> tuple[Floats, Floats]:
    """Some hundred steps in octaves, ascending by octave, and their rates."""
    draw = np.random.default_rng(0)  # random steps: even ones would meet one phase of a periodic schedule
    octaves = [2**j + draw.choice(2**j, min(2**j, 8 if j < OCTAVES[-TAIL] else 32), False) for j in OCTAVES]
    steps = np.concatenate([np.arange(2 ** OCTAVES[0]), *octaves])
    with jax.enable_x64(True):
        return steps, rates_at(schedule, steps).astype(float)


def _octaves(steps: Floats, rates: Floats) -> tuple[Floats, float]:
    """The sums over the last octaves, and their slope as a power of the step."""
    sums = np.array([2.0**j * rates[(steps >= 2**j) & (steps < 2 ** (j + 1))].mean() for j in OCTAVES])[
        -TAIL:
    ]
    with np.errstate(divide="ignore"):
        slope = np.polyfit(np.arange(TAIL) * np.log(2), np.log(sums), 1)[0] if sums.all() else 0.0
    return sums, float(slope)
