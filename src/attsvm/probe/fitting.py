"""From an objective to fitted weights: the ridges are chosen, then every concept is fitted on all sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import check_random_state

from attsvm.probe.arithmetic import arithmetic
from attsvm.probe.descent import minimise
from attsvm.probe.objective import Objective, Probes, Weights
from attsvm.probe.path import Choice, choose
from attsvm.tokens import Float


class Fitted(NamedTuple):
    """weights for the tokens as given; what was chosen; objective, steps taken, largest partial derivative."""

    weights: Weights
    choice: Choice
    value: float
    steps: int
    slope: float


def fit_concepts(
    objective: Objective,
    given: Sequence[float | None],
    starts: Float,
    steps: int,
    tolerance: float,
    judge: bool = False,
) -> list[Fitted]:
    """Every concept's best of several starts (s, D), all in shared passes.

    given: head and prompt ridge, None where the data choose; then the first start is the path's.
    judge: hold out in any case, to compare features.
    """
    where, concepts, s = arithmetic(objective.store.rows), len(objective.targets), len(starts)
    with where.scope():
        choices = choose(where, objective, given, starts[0], steps, judge)
        points = np.tile(starts, (concepts, 1, 1))
        for own, choice in zip(points, choices, strict=True):
            if choice.start is not None:
                own[0] = choice.start
        ridges = np.repeat([(c.prompt_ridge, c.head_ridge) for c in choices], s, axis=0).T
        concept = np.repeat(np.arange(concepts), s)
        probes = Probes(concept, np.zeros_like(concept), *ridges)
        found = minimise(
            where,
            lambda at, which: objective(where, at, probes.take(which)),
            where.put(points.reshape(concepts * s, -1)),
            steps=steps,
            tolerance=tolerance,
        )
        best = found.value.reshape(concepts, s).argmin(1) + s * np.arange(concepts)
        ended = where.numpy(found.points[where.put(best)])
    return [
        Fitted(_given(objective, point), choice, float(found.value[i]), int(found.steps[i]), float(found.slope[i]))
        for point, choice, i in zip(ended, choices, best, strict=True)
    ]


def first_points(objective: Objective, count: int, seed: Any) -> Float:
    """Starts (count, D): mean pooling first; random prompts, of logits of variance one, after it or for several."""
    rng = check_random_state(0 if seed is None else seed)
    d, h = objective.store.width, objective.h
    starts = np.zeros((count, objective.size))
    for start in starts if h > 1 else starts[1:]:
        start[: d * h] = rng.standard_normal(d * h) / np.sqrt(d)
    return starts


def _given(objective: Objective, point: Float) -> Weights:
    """A point as weights for the tokens as given: standardisation is folded into them."""
    prompts, head, intercept = objective.like(point)
    mean, scale = objective.standard
    head = head / scale[:, None, None]
    return Weights(prompts / scale[:, None], head, intercept - np.einsum("d,dhk->k", mean, head))


def averaged(members: Sequence[Fitted]) -> Fitted:
    """The mean of the scores of probes on features of their own, which lie side by side: one with more heads."""
    if len(members) == 1:
        return members[0]
    count, sizes = len(members), np.cumsum([0, *(len(m.weights.prompts) for m in members)])
    (_, h, k) = members[0].weights.head.shape
    prompts, head = np.zeros((sizes[-1], count * h)), np.zeros((sizes[-1], count * h, k))
    for i, member in enumerate(members):
        rows, columns = slice(sizes[i], sizes[i + 1]), slice(i * h, (i + 1) * h)
        prompts[rows, columns], head[rows, columns] = member.weights.prompts, member.weights.head / count
    intercept = np.mean([member.weights.intercept for member in members], axis=0)
    slope, steps = max(m.slope for m in members), max(m.steps for m in members)
    value = float(np.mean([m.value for m in members]))
    return Fitted(Weights(prompts, head, intercept), members[0].choice, value, steps, slope)
