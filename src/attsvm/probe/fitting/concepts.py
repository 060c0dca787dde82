"""From an objective to fitted weights: ridges are chosen, then every concept is fitted on all sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from sklearn.utils import check_random_state

from attsvm.numbers import Float
from attsvm.probe.data.arithmetic import arithmetic
from attsvm.probe.fitting.attention import Weights
from attsvm.probe.fitting.descent import minimise
from attsvm.probe.fitting.evaluation import evaluate
from attsvm.probe.fitting.loudest import WEAK, loud_start
from attsvm.probe.fitting.objective import Objective, Probes
from attsvm.probe.fitting.ridge_path import Choice, choose


class Fitted(NamedTuple):
    """weights for the tokens as given; what was chosen; objective, steps, largest partial derivative."""

    weights: Weights
    choice: Choice
    value: float
    steps: int
    slope: float


Seed: TypeAlias = int | np.random.RandomState | None


@dataclass(frozen=True)
class Plan:
    """given: head and prompt ridge, None where the data choose; starts: how many, and their seed.

    steps, tolerance: of L-BFGS. judge: hold out in any case, to compare features.
    """

    given: Sequence[float | None]
    starts: int
    steps: int
    tolerance: float
    seed: Seed = None
    judge: bool = False


def choose_ridges(objective: Objective, plan: Plan) -> list[Choice]:
    """The ridges of every concept."""
    where = arithmetic(objective.store.rows)
    with where.scope():
        return choose(where, objective, plan.given, _starts(objective, plan)[0], plan.steps, plan.judge)


def fit_concepts(objective: Objective, plan: Plan, choices: Sequence[Choice]) -> list[Fitted]:
    """Every concept's best of several starts, all in shared passes; the path's end is the first start.

    Without a path, and with weak ridges, attention to the loudest tokens is one more, a rival of the first.
    """
    where, concepts = arithmetic(objective.store.rows), np.arange(len(objective.targets))
    starts, several = _starts(objective, plan), objective.store.lengths.max() > 1
    first = [starts[0] if choice.start is None else choice.start for choice in choices]
    ridges = np.array([(c.prompt_ridge, c.head_ridge) for c in choices])
    unsought = np.array([choice.start is None for choice in choices])
    again = concepts[unsought & (ridges <= WEAK).all(1) & several]
    with where.scope():
        loud = [loud_start(where, objective, starts[0])] * len(again) if len(again) else []
        others = np.repeat(starts[1:], len(concepts), axis=0)
        points = np.concatenate([np.stack([*first, *loud]), others])
        concept = np.concatenate([concepts, again, np.tile(concepts, plan.starts - 1)])
        probes = Probes(concept, np.zeros_like(concept), *ridges[concept].T)
        numbers, vectors, _ = minimise(
            where,
            lambda at, which: evaluate(objective, where, at, probes.take(which)),
            objective.within(where, where.put(points)),
            steps=plan.steps,
            tolerance=plan.tolerance,
            rivals=[(int(one), len(concepts) + number) for number, one in enumerate(again)],
        )
        own = [np.flatnonzero(concept == one) for one in concepts]
        best = np.array([each[numbers.value[each].argmin()] for each in own])
        ended, told = where.numpy(vectors.points[where.put(best)]), numbers.take(best)
    return [
        Fitted(for_given_tokens(objective, point), choice, value.item(), steps.item(), slope.item())
        for point, choice, value, steps, slope in zip(
            ended, choices, told.value, told.steps, told.slope, strict=True
        )
    ]


def _starts(objective: Objective, plan: Plan) -> Float:
    """Starts (s, D): mean pooling first; after it, or for several heads, random logits N(0, 1)."""
    rng = check_random_state(0 if plan.seed is None else plan.seed)
    d, h = objective.store.width, objective.h
    starts = np.zeros((plan.starts, objective.size))
    for start in starts if h > 1 else starts[1:]:
        start[: d * h] = rng.standard_normal(d * h) / np.sqrt(d)
    return starts


def for_given_tokens(objective: Objective, point: Float) -> Weights:
    """A point as weights for the tokens as given: standardisation is folded into them."""
    prompts, head, intercept = objective.like(point)
    mean, scale = objective.standard
    return Weights(prompts / scale[:, None], head / scale[:, None, None], intercept).about(-mean)
