"""Probes on features of several kinds: each is fitted in its way, and the best are averaged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag
from sklearn.utils import check_random_state

from attsvm.numbers import Float
from attsvm.probe.data.standard import Standard
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.attention import Weights, log_loss, read_out
from attsvm.probe.fitting.concepts import Fitted, Plan, choose_ridges, fit_concepts, for_given_tokens
from attsvm.probe.fitting.features import FeatureMap, Same, Together, mapped, rbf
from attsvm.probe.fitting.objective import Objective
from attsvm.probe.fitting.relu import train
from attsvm.probe.fitting.ridge_path import Choice

GAIN = 0.005
"""By what share another kind must lower the held-out loss of the mean to be part of it."""

Parts = NDArray[np.int8]
"""(folds, n): 1 where a fold trains, −1 where it is tested, 0 for neither."""


class Features(NamedTuple):
    """A fitted probe on features of these kinds, their standardisation and map (None: the tokens)."""

    kinds: list[str]
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

    objective_on: Callable[[TokenStore, Parts], Objective]
    store: TokenStore
    parts: Parts
    many: Parts
    average: int
    plan: Plan

    def fit(self, kinds: Sequence[str]) -> Features:
        """The mean of the probes on features of these kinds; where the plan judges, of the best of them."""
        ways = {kind: KINDS[kind](self) for kind in kinds}
        chosen = best_mean(self.plain, ways) if self.plan.judge else kinds
        return _averaged([ways[kind].fit() for kind in chosen])

    @cached_property
    def plain(self) -> Objective:
        return self.objective_on(self.store, self.parts)

    def linear(self) -> Way:
        return self._with_ridges("linear", self.plain, None)

    def rbf(self) -> Way:
        features = rbf(self.store, self.plain.standard)
        objective = self.objective_on(mapped(self.store, features), self.parts)
        return self._with_ridges("rbf", objective, features)

    def _with_ridges(self, kind: str, objective: Objective, features: FeatureMap | None) -> Way:
        """Given features: the path chooses ridges."""
        choices = choose_ridges(objective, self.plan)

        def scores() -> Float:
            points = choices[0].points
            weights = [for_given_tokens(objective, point) for point in ([] if points is None else points)]
            return _held_out(self.parts, read_out(objective.store, weights, objective.standard.mean)[1])

        def fit() -> Features:
            fitted = fit_concepts(objective, self.plan, choices)[0]
            return Features([kind], fitted, objective.standard, features)

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
        found = Features(["relu"], fitted, standard, done.features)
        held_out = loss if len(self.many) else np.inf
        return Way(held_out, lambda: _held_out(self.many, done.aside), lambda: found)


KINDS = {"linear": Ways.linear, "relu": Ways.relu, "rbf": Ways.rbf}
"""The kinds of features, and the way to fit on each."""


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


def _held_out(parts: Parts, scores: Float) -> Float:
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
    return Features([kind for m in members for kind in m.kinds], fitted, standard, Together(maps))
