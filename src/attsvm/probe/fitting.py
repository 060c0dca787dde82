"""From an objective to fitted weights: ridges are chosen, then every concept is fitted on all sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from attsvm.probe.arithmetic import arithmetic
from attsvm.probe.descent import minimise
from attsvm.probe.features import FeatureMap, Together, mapped, rbf
from attsvm.probe.objective import Objective, Probes, Weights
from attsvm.probe.path import Choice, choose
from attsvm.probe.relu import train
from attsvm.probe.standard import Standard
from attsvm.probe.store import TokenStore
from attsvm.tokens import Float

ROUGH = 1e-4
"""Slope at which the members of an average end: they differ by far more than further steps would change."""


class Fitted(NamedTuple):
    """weights for the tokens as given; what was chosen; objective, steps, largest partial derivative."""

    weights: Weights
    choice: Choice
    value: float
    steps: int
    slope: float


@dataclass(frozen=True)
class Plan:
    """given: head and prompt ridge, None where the data choose; starts: how many, and their seed.

    steps, tolerance: of L-BFGS. judge: hold out in any case, to compare features.
    """

    given: Sequence[float | None]
    starts: int
    steps: int
    tolerance: float
    seed: Any = None
    judge: bool = False


def choose_ridges(objective: Objective, plan: Plan) -> list[Choice]:
    """The ridges of every concept."""
    where = arithmetic(objective.store.rows)
    with where.scope():
        return choose(where, objective, plan.given, _starts(objective, plan)[0], plan.steps, plan.judge)


def fit_concepts(objective: Objective, plan: Plan, choices: Sequence[Choice]) -> list[Fitted]:
    """Every concept's best of several starts, all in shared passes; the path's end is the first start."""
    where, concepts, s = arithmetic(objective.store.rows), len(objective.targets), plan.starts
    starts = _starts(objective, plan)
    with where.scope():
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
            steps=plan.steps,
            tolerance=plan.tolerance,
        )
        best = found.value.reshape(concepts, s).argmin(1) + s * np.arange(concepts)
        ended = where.numpy(found.points[where.put(best)])
    return [
        Fitted(
            _given(objective, point),
            choice,
            *(each[i].item() for each in (found.value, found.steps, found.slope)),
        )
        for point, choice, i in zip(ended, choices, best, strict=True)
    ]


def _starts(objective: Objective, plan: Plan) -> Float:
    """Starts (s, D): mean pooling first; after it, or for several heads, random logits N(0, 1)."""
    rng = check_random_state(0 if plan.seed is None else plan.seed)
    d, h = objective.store.width, objective.h
    starts = np.zeros((plan.starts, objective.size))
    for start in starts if h > 1 else starts[1:]:
        start[: d * h] = rng.standard_normal(d * h) / np.sqrt(d)
    return starts


def _given(objective: Objective, point: Float) -> Weights:
    """A point as weights for the tokens as given: standardisation is folded into them."""
    prompts, head, intercept = objective.like(point)
    mean, scale = objective.standard
    head = head / scale[:, None, None]
    return Weights(prompts / scale[:, None], head, intercept - np.einsum("d,dhk->k", mean, head))


# ---------------------------------------------------------------------- features


class Features(NamedTuple):
    """A fitted probe, the standardisation of its features, and their map (None: the tokens themselves)."""

    fitted: Fitted
    standard: Standard
    map: FeatureMap | None


@dataclass(frozen=True, eq=False)
class Ways:
    """How to fit on features of every kind: each gives a held-out loss, and a function that finishes it.

    objective_on(tokens, parts): parts (folds, n) are those of the path, many those of trained maps.
    average: so many probes, whose scores are averaged. The held-out loss costs the search, not the fit.
    """

    objective_on: Callable[[TokenStore, NDArray[Any]], Objective]
    store: TokenStore
    parts: NDArray[Any]
    many: NDArray[Any]
    average: int
    plan: Plan

    def fit(self, kind: str) -> Features:
        """kind: "linear", "rbf", "relu", or "auto", which is what held out best."""
        ways = [self.linear, self.relu, self.rbf] if kind == "auto" else [getattr(self, kind)]
        return min((way() for way in ways), key=lambda found: found[0])[1]()

    @property
    def seed(self) -> int:
        return int(check_random_state(0 if self.plan.seed is None else self.plan.seed).randint(2**31))

    @cached_property
    def plain(self) -> Objective:
        return self.objective_on(self.store, self.parts)

    def linear(self) -> tuple[float, Callable[[], Features]]:
        choice = choose_ridges(self.plain, self.plan)

        def fit() -> Features:
            return Features(fit_concepts(self.plain, self.plan, choice)[0], self.plain.standard, None)

        return choice[0].held_out, fit

    def relu(self) -> tuple[float, Callable[[], Features]]:
        each = 2 if self.plan.judge else 1  # two per fold tell what averaging will gain
        members = max(self.average, each * len(self.many), 1)
        done = train(self.objective_on(self.store, self.many), members, self.seed)
        loss, none = float(done.held_out.mean()), np.array([np.nan])
        path = {"head_ridge": none, "prompt_ridge": none, "held_out": np.array([loss])}
        choice = Choice(np.nan, np.nan, path | {"folds": done.held_out[None]})
        fitted = Fitted(done.weights, choice, loss, int(done.steps.max()), 0.0)
        standard = Standard(np.zeros(done.features.width), np.ones(done.features.width))
        return loss if len(self.many) else np.inf, lambda: Features(fitted, standard, done.features)

    def rbf(self) -> tuple[float, Callable[[], Features]]:
        maps = [rbf(self.store, self.plain.standard, 0, self.seed)]
        objectives = [self.objective_on(mapped(self.store, maps[0]), self.parts)]
        choice = choose_ridges(objectives[0], self.plan)

        def fit() -> Features:
            rough = ROUGH if self.average > 1 else 0.0
            plan = replace(self.plan, tolerance=max(self.plan.tolerance, rough))
            members, standards = [fit_concepts(objectives[0], plan, choice)[0]], [objectives[0].standard]
            alike = [replace(choice[0], start=None)]
            for number in range(1, self.average):
                maps.append(rbf(self.store, self.plain.standard, number, self.seed))
                objective = self.objective_on(mapped(self.store, maps[-1]), self.parts)
                members.append(fit_concepts(objective, plan, alike)[0])
                standards.append(objective.standard)
            standard = Standard(*(np.concatenate(each) for each in zip(*standards, strict=True)))
            return Features(_averaged(members), standard, maps[0] if self.average == 1 else Together(maps))

        return choice[0].held_out, fit


def _averaged(members: Sequence[Fitted]) -> Fitted:
    """The mean of the scores of probes, each on features of its own, side by side: one with more heads."""
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
