"""From an objective to fitted weights: ridges are chosen, then every concept is fitted on all sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from sklearn.utils import check_random_state

from attsvm.numbers import Float
from attsvm.probe.data.backends import backend_of
from attsvm.probe.fitting.attention import Weights
from attsvm.probe.fitting.descent import minimise
from attsvm.probe.fitting.evaluation import evaluate
from attsvm.probe.fitting.objective import Objective, Probes
from attsvm.probe.fitting.ridge_path import WEAK, RidgeChoice, choose, largest_norm_start


class ProbeFit(NamedTuple):
    """weights for tokens as they come; the chosen ridges; objective, steps, largest partial derivative."""

    weights: Weights
    choice: RidgeChoice
    value: float
    steps: int
    slope: float


Seed: TypeAlias = int | np.random.RandomState | None


@dataclass(frozen=True)
class FitOptions:
    """ridges: of head and prompt, None where the data choose; starts: how many, and their seed.

    steps, tolerance: of L-BFGS. compare_kinds: hold out even if both ridges are fixed.
    """

    ridges: Sequence[float | None]
    starts: int
    steps: int
    tolerance: float
    seed: Seed = None
    compare_kinds: bool = False


def choose_ridges(objective: Objective, options: FitOptions) -> list[RidgeChoice]:
    """The ridges of every concept."""
    backend = backend_of(objective.store.rows)
    start = _starts(objective, options)[0]
    with backend.scope():
        return choose(backend, objective, options.ridges, start, options.steps, options.compare_kinds)


def fit_concepts(objective: Objective, options: FitOptions, choices: Sequence[RidgeChoice]) -> list[ProbeFit]:
    """Every concept's best of several starts, all in shared passes; the path's end is the first start.

    Without a path, and with weak ridges, attention to the largest tokens is a rival of the first start.
    """
    backend, concepts = backend_of(objective.store.rows), np.arange(len(objective.targets))
    starts, attends = _starts(objective, options), objective.store.lengths.max() > 1
    first = [starts[0] if choice.start is None else choice.start for choice in choices]
    ridges = np.array([(choice.prompt_ridge, choice.head_ridge) for choice in choices])
    without_path = np.array([choice.start is None for choice in choices])
    contested = concepts[without_path & (ridges <= WEAK).all(1) & attends]
    with backend.scope():
        start = [largest_norm_start(backend, objective, starts[0])] if len(contested) else []
        random = np.repeat(starts[1:], len(concepts), axis=0)
        points = np.concatenate([np.stack([*first, *start * len(contested)]), random])
        concept = np.concatenate([concepts, contested, np.tile(concepts, options.starts - 1)])
        probes = Probes(concept, np.zeros_like(concept), *ridges[concept].T)
        search = minimise(
            backend,
            lambda at, index: evaluate(objective, backend, at, probes.take(index)),
            objective.tie(backend, backend.put(points)),
            steps=options.steps,
            tolerance=options.tolerance,
            rivals=[(int(q), len(concepts) + number) for number, q in enumerate(contested)],
        )
        searches = [np.flatnonzero(concept == q) for q in concepts]
        best = np.array([index[search.scalars.value[index].argmin()] for index in searches])
        minima = search.take(backend, best)
        points = backend.numpy(minima.vectors.points)
    weights = map(objective.weights_for_tokens, points)
    numbers = (array.tolist() for array in (minima.scalars.value, minima.scalars.steps, minima.scalars.slope))
    return list(map(ProbeFit, weights, choices, *numbers))


def _starts(objective: Objective, options: FitOptions) -> Float:
    """Starts (s, D): mean pooling first; after it, or for several heads, random logits N(0, 1)."""
    rng = check_random_state(0 if options.seed is None else options.seed)
    d, h = objective.store.width, objective.h
    starts = np.zeros((options.starts, objective.size))
    for start in starts if h > 1 else starts[1:]:
        start[: d * h] = rng.standard_normal(d * h) / np.sqrt(d)
    return starts
