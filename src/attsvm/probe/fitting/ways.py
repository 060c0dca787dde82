"""From an objective to fitted weights: ridges are chosen, then every concept is fitted on all sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag
from sklearn.utils import check_random_state

from attsvm.numbers import Float
from attsvm.probe.data.arithmetic import arithmetic
from attsvm.probe.data.standard import Standard
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.descent import minimise
from attsvm.probe.fitting.features import FeatureMap, Same, Together, mapped, rbf
from attsvm.probe.fitting.objective import Objective, Probes, Weights, log_loss, read_out
from attsvm.probe.fitting.relu import train
from attsvm.probe.fitting.ridge_path import Choice, choose

KINDS = ("linear", "relu", "rbf")
GAIN = 0.005
"""Kinds of features; by what share another one must lower the held-out loss of the mean to be part of it."""


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


class Way(NamedTuple):
    """held_out: what a kind of features loses on sequences held out, which costs the search, not the fit.

    scores(): (k, n), of every sequence when it was held out, NaN where it never was; fit(): the probe.
    """

    held_out: float
    scores: Callable[[], Float]
    fit: Callable[[], Features]


@dataclass(frozen=True, eq=False)
class Ways:
    """How to fit on features of every kind.

    objective_on(tokens, parts): parts (folds, n) are those of the path, many those of trained maps.
    average: at least so many trained maps.
    """

    objective_on: Callable[[TokenStore, NDArray[Any]], Objective]
    store: TokenStore
    parts: NDArray[Any]
    many: NDArray[Any]
    average: int
    plan: Plan

    def fit(self, kinds: Sequence[str]) -> tuple[Features, list[str]]:
        """The mean of the probes on features of these kinds; where the plan judges, of the best of them."""
        ways = {kind: getattr(self, kind)() for kind in kinds}
        chosen = best_mean(self.plain, ways) if self.plan.judge else list(kinds)
        return _averaged([ways[kind].fit() for kind in chosen]), chosen

    @cached_property
    def plain(self) -> Objective:
        return self.objective_on(self.store, self.parts)

    def linear(self) -> Way:
        return self._convex(self.plain, None)

    def rbf(self) -> Way:
        features = rbf(self.store, self.plain.standard)
        return self._convex(self.objective_on(mapped(self.store, features), self.parts), features)

    def _convex(self, objective: Objective, features: FeatureMap | None) -> Way:
        """Given features: the path chooses ridges."""
        choices = choose_ridges(objective, self.plan)

        def scores() -> Float:
            points = choices[0].points
            weights = [_given(objective, point) for point in ([] if points is None else points)]
            return _held_out(self.parts, read_out(objective.store, weights, objective.standard.mean)[1])

        def fit() -> Features:
            return Features(fit_concepts(objective, self.plan, choices)[0], objective.standard, features)

        return Way(choices[0].held_out, scores, fit)

    def relu(self) -> Way:
        each = 2 if self.plan.judge else 1  # two per fold tell what averaging will gain
        members = max(self.average, each * len(self.many), 1)
        seed = check_random_state(0 if self.plan.seed is None else self.plan.seed).randint(2**31)
        done = train(self.objective_on(self.store, self.many), members, int(seed))
        loss, none = float(done.held_out.mean()), np.array([np.nan])
        path = {"head_ridge": none, "prompt_ridge": none, "held_out": np.array([loss])}
        choice = Choice(np.nan, np.nan, path | {"folds": done.held_out[None]})
        fitted = Fitted(done.weights, choice, loss, done.steps, 0.0)
        standard = Standard(np.zeros(done.features.width), np.ones(done.features.width))
        found = Features(fitted, standard, done.features)
        held_out = loss if len(self.many) else np.inf
        return Way(held_out, lambda: _held_out(self.many, done.aside), lambda: found)


def best_mean(objective: Objective, ways: dict[str, Way]) -> list[str]:
    """The kind that held out best, and those that lower the loss of the mean of scores, one by one."""
    first, *others = sorted(ways, key=lambda kind: ways[kind].held_out)
    if not np.isfinite(ways[others[-1]].held_out):
        return [first]
    own = {kind: way.scores() for kind, way in ways.items()}

    def loss(kinds: Sequence[str]) -> float:
        scores = np.mean([own[kind] for kind in kinds], axis=0)
        seen = np.isfinite(scores).all(0)
        losses, _ = log_loss(np, scores[None, :, seen], objective.targets[:, :, seen])
        return float(losses[0] @ objective.training[0, seen])

    found = [first]
    for kind in others:
        if loss([*found, kind]) < (1 - GAIN) * loss(found):
            found.append(kind)
    return found


def _held_out(parts: NDArray[Any], scores: Float) -> Float:
    """Of scores (folds, k, n) the mean over the folds that held a sequence out (k, n); NaN where none did."""
    held = (parts == -1)[:, None]
    with np.errstate(invalid="ignore"):
        return np.asarray((scores * held).sum(0) / held.sum(0))


def _averaged(members: Sequence[Features]) -> Features:
    """The mean of the scores of probes, each on features of its own, side by side: one with more heads."""
    if len(members) == 1:
        return members[0]
    fits, count = [member.fitted for member in members], len(members)
    prompts = block_diag(*(fit.weights.prompts for fit in fits))
    k = len(fits[0].weights.intercept)
    heads = [block_diag(*(fit.weights.head[:, :, j] for fit in fits)) / count for j in range(k)]
    weights = Weights(prompts, np.stack(heads, 2), np.mean([fit.weights.intercept for fit in fits], axis=0))
    slope, steps = max(fit.slope for fit in fits), max(fit.steps for fit in fits)
    fitted = Fitted(weights, fits[0].choice, float(np.mean([fit.value for fit in fits])), steps, slope)
    standard = Standard(*map(np.concatenate, zip(*(member.standard for member in members), strict=True)))
    maps = [Same(np.zeros(len(m.standard.mean))) if m.map is None else m.map for m in members]
    return Features(fitted, standard, Together(maps))
