"""Probes on features of several kinds: each kind is fitted, and the best kinds are averaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag
from sklearn.utils import check_random_state

from attsvm.numbers import Float
from attsvm.numbers.stored.matrix import as_matrix
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.attention import Weights, log_loss, read_out
from attsvm.probe.fitting.features import FeatureMap, Same, SideBySide, mapped, rbf
from attsvm.probe.fitting.fits import FitOptions, ProbeFit, RidgeChoice, choose_ridges, fit_concepts
from attsvm.probe.fitting.objective import Objective, Standard
from attsvm.probe.fitting.relu import train

LEAST_GAIN = 0.005
"""Share by which another kind, or layer, must lower the held-out loss of the mean to join it."""

T = TypeVar("T")

Splits = NDArray[np.int8]
"""(folds, n): 1 where a fold trains, −1 where it is tested, 0 for neither."""


class FeatureProbe(NamedTuple):
    """A fitted probe on features of these kinds, their standardisation and map (None: the tokens)."""

    kinds: list[str]
    fitted: ProbeFit
    standard: Standard
    map: FeatureMap | None


class KindResult(NamedTuple):
    """held_out: the held-out loss of a kind of features, known after the search and before the fit.

    scores(): held-out scores (k, n), NaN where a sequence was never held out; fit(): the probe.
    """

    held_out: float
    scores: Callable[[], Float]
    fit: Callable[[], FeatureProbe]


@dataclass(frozen=True, eq=False)
class KindSearch:
    """Fits on features of every kind.

    objective_on(tokens, splits, heads); splits (folds, n): of the ridge path; member_splits: of the trained
    maps. heads: the number that was asked for.
    members: at least so many trained maps.
    """

    objective_on: Callable[[TokenStore, Splits, int], Objective]
    heads: int
    store: TokenStore
    splits: Splits
    member_splits: Splits
    members: int
    options: FitOptions

    def fit(self, kinds: Sequence[str]) -> FeatureProbe:
        """The mean of the probes on features of these kinds, or of the best of them if they are compared."""
        results = {kind: KINDS[kind](self) for kind in kinds}
        best = best_mean(self.on_tokens, results) if self.options.compare_kinds else kinds
        return _averaged([results[kind].fit() for kind in best])

    @cached_property
    def on_tokens(self) -> Objective:
        return self.objective_on(self.store, self.splits, self.heads)

    def linear(self) -> KindResult:
        return self._with_ridges("linear", self.on_tokens, None)

    def rbf(self) -> KindResult:
        features = rbf(self.store, self.on_tokens.standard)
        objective = self.objective_on(mapped(self.store, features), self.splits, self.heads)
        return self._with_ridges("rbf", objective, features)

    def last(self) -> KindResult:
        """A linear head on the last token of every sequence."""
        store = last_tokens(self.store)
        objective = self.objective_on(store, self.splits, 1)
        result = self._with_ridges("last", objective, None)

        def fit() -> FeatureProbe:
            probe = result.fit()
            of_one = probe.fitted.weights
            weights = of_one._replace(prompts=np.zeros_like(of_one.prompts), last=np.ones(1, bool))
            return probe._replace(fitted=probe.fitted._replace(weights=weights))

        return result._replace(fit=fit)

    def _with_ridges(self, kind: str, objective: Objective, features: FeatureMap | None) -> KindResult:
        """The probe on fixed features, whose ridges the path chooses."""
        choices = choose_ridges(objective, self.options)

        def scores() -> Float:
            points = choices[0].points
            weights = [objective.weights_for_tokens(point) for point in ([] if points is None else points)]
            return held_out_mean(self.splits, read_out(objective.store, weights, objective.standard.mean)[1])

        def fit() -> FeatureProbe:
            fitted = fit_concepts(objective, self.options, choices)[0]
            return FeatureProbe([kind], fitted, objective.standard, features)

        return KindResult(choices[0].held_out, scores, fit)

    def relu(self) -> KindResult:
        per_fold = 2 if self.options.compare_kinds else 1  # two per fold show how much averaging gains
        members = max(self.members, per_fold * len(self.member_splits), 1)
        seed = check_random_state(0 if self.options.seed is None else self.options.seed).randint(2**31)
        trained = train(self.objective_on(self.store, self.member_splits, self.heads), members, int(seed))
        loss, no_ridge = float(trained.held_out.mean()), np.array([np.nan])
        path = {"head_ridge": no_ridge, "prompt_ridge": no_ridge, "held_out": np.array([loss])}
        choice = RidgeChoice(np.nan, np.nan, path | {"folds": trained.held_out[None]})
        fitted = ProbeFit(trained.weights, choice, loss, trained.steps, 0.0)
        standard = Standard(np.zeros(trained.features.width), np.ones(trained.features.width))
        probe = FeatureProbe(["relu"], fitted, standard, trained.features)
        held_out = loss if len(self.member_splits) else np.inf
        return KindResult(held_out, lambda: held_out_mean(self.member_splits, trained.scores), lambda: probe)


KINDS = {"linear": KindSearch.linear, "relu": KindSearch.relu, "rbf": KindSearch.rbf, "last": KindSearch.last}
"""The kinds of features, and the method that fits each."""

COMPARED = ("linear", "relu", "rbf")
"""Kinds that are compared where the data choose."""


def last_tokens(store: TokenStore) -> TokenStore:
    """The last token of every sequence, in memory."""
    ends = store.last_tokens
    rows = as_matrix(ends.read(slice(0, len(ends))))
    return TokenStore(rows, np.arange(len(ends)), ends.lengths)


def best_mean(objective: Objective, results: dict[str, KindResult]) -> list[str]:
    """The kind that held out best, and those that lower the loss of the mean of scores, one by one."""
    ranked = sorted(results, key=lambda kind: results[kind].held_out)
    if not np.isfinite(results[ranked[-1]].held_out):
        return ranked[:1]
    scores = {kind: result.scores() for kind, result in results.items()}
    return lowest_mean(ranked, scores, objective.targets[0], objective.training[0])


def lowest_mean(ranked: Sequence[T], scores: Mapping[T, Float], targets: Float, importance: Float) -> list[T]:
    """The first of the ranked, and those that lower the log loss of the mean of scores, one by one.

    scores (k, n) of each: held out, NaN where a sequence never was; targets (k, n); importance (n,).
    """

    def loss(members: Sequence[T]) -> float:
        mean = np.mean([scores[member] for member in members], axis=0)
        held_out = np.isfinite(mean).all(0)
        losses, _ = log_loss(np, mean[None, :, held_out], targets[None, :, held_out])
        return float(losses[0] @ importance[held_out])

    members = [ranked[0]]
    for rival in ranked[1:]:
        if loss([*members, rival]) < (1 - LEAST_GAIN) * loss(members):
            members.append(rival)
    return members


def held_out_mean(splits: Splits, scores: Float) -> Float:
    """Mean of scores (folds, k, n) over the folds that held a sequence out (k, n); NaN where none did."""
    held_out = (splits == -1)[:, None]
    with np.errstate(invalid="ignore"):
        return np.asarray((scores * held_out).sum(0) / held_out.sum(0))


def _averaged(members: Sequence[FeatureProbe]) -> FeatureProbe:
    """The mean of the scores of several probes as one probe with the heads and features of all."""
    if len(members) == 1:
        return members[0]
    by_map: dict[int, list[FeatureProbe]] = {}
    for i, member in enumerate(members):  # probes on the tokens themselves share them
        by_map.setdefault(-1 if member.map is None else i, []).append(member)
    parts = list(by_map.values())
    members = [member for part in parts for member in part]
    fits, count = [member.fitted for member in members], len(members)
    heads_of = [[member.fitted.weights for member in part] for part in parts]
    prompts = block_diag(*(np.concatenate([w.prompts for w in part], 1) for part in heads_of))
    k = len(fits[0].weights.intercept)
    heads = [
        block_diag(*(np.concatenate([w.head[:, :, j] for w in part], 1) for part in heads_of)) / count
        for j in range(k)
    ]
    intercept = np.mean([fit.weights.intercept for fit in fits], axis=0)
    last = np.concatenate([fit.weights.slopes > 0 for fit in fits])
    weights = Weights(prompts, np.stack(heads, 2), intercept, last)
    slope, steps = max(fit.slope for fit in fits), max(fit.steps for fit in fits)
    fitted = ProbeFit(weights, fits[0].choice, float(np.mean([fit.value for fit in fits])), steps, slope)
    standard = Standard(*map(np.concatenate, zip(*(part[0].standard for part in parts), strict=True)))
    maps = [Same(np.zeros(len(m.standard.mean))) if m.map is None else m.map for m, *_ in parts]
    joined = SideBySide(maps) if len(maps) > 1 else None  # one part has several members: those on tokens
    return FeatureProbe([kind for m in members for kind in m.kinds], fitted, standard, joined)
