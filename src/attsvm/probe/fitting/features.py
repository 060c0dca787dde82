"""Kinds of features: what the prompts attend to, a probe on each kind, and the mean of the best kinds.

"linear": the tokens; "rbf": Nyström features of a rational quadratic kernel; "last": the last token alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import block_diag

from attsvm.numbers import Array, Float, Index
from attsvm.numbers.stored.matrix import as_matrix
from attsvm.probe.data.backends import Backend, backend_of
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.attention import Weights, log_loss, read_out
from attsvm.probe.fitting.fits import FitOptions, ProbeFit, choose_ridges, fit_concepts
from attsvm.probe.fitting.objective import Objective, Standard
from attsvm.probe.fitting.tolerances import TOLERANCES

T = TypeVar("T")

Splits = NDArray[np.int8]
"""(folds, n): 1 where a fold trains, −1 where it is tested, 0 for neither."""


# ---------------------------------------------------------------------- maps


class FeatureMap:
    """Tokens → features."""

    def on(self, backend: Backend, raw: Array) -> Array:
        """Features (m, width) of a block of stored tokens, on the backend."""
        raise NotImplementedError

    def transform(self, tokens: Array) -> Float:
        """Features (N, width) of tokens (N, d)."""
        rows = as_matrix(np.asarray(tokens))
        return np.asarray(self.on(backend_of(rows), rows.read(slice(0, len(tokens)))))


@dataclass(frozen=True, eq=False)
class Same(FeatureMap):
    """The tokens themselves, beside other features; zeros (d,): a mean that is not subtracted."""

    zeros: Float

    def on(self, backend: Backend, raw: Array) -> Array:
        return backend.centred(raw, backend.operand(self.zeros))


@dataclass(frozen=True, eq=False)
class Rbf(FeatureMap):
    """φ(x) = K^(−1/2) (1 / (1 + γ ‖x − l_j‖²))_j for landmarks l_j among the training tokens, standardised.

    The rational quadratic kernel is a mixture of Gaussians of all widths: it resolves near tokens like a
    narrow one, and reaches far tokens like a wide one. φ(x)·φ(x') is the kernel on the landmarks' span
    (Williams & Seeger 2001). landmarks (m, d), mean, scale (d,), root (m, m); gamma, power: one number each.
    Computed in float64, whatever the tokens are stored in: ‖x‖² + ‖l‖² − 2 x·l cancels for large tokens, and
    the root multiplies errors by up to a thousand.
    """

    landmarks: Float
    mean: Float
    scale: Float
    root: Float
    gamma: Float
    power: Float

    def on(self, backend: Backend, raw: Array) -> Array:
        arrays = (self.mean, self.scale, (self.landmarks**2).sum(1), -2 * self.landmarks.T, self.root)
        mean, scale, squares, matrix, root = map(backend.put, arrays)
        zeros = backend.operand(np.zeros(raw.shape[1]))
        features = []
        for piece in backend.pieces(len(raw), len(self.landmarks)):
            x = (backend.widened(backend.centred(raw[piece], zeros)) - mean) / scale
            distances = (x * x).sum(1)[:, None] + squares + x @ matrix
            similarities = kernel(backend.xp.clip(distances, 0, None), self.gamma, self.power)
            features.append(backend.narrowed(similarities @ root))
        return backend.xp.concatenate(features)


def kernel(distances: Array, gamma: Float, power: Float) -> Array:
    """(1 + γ a)^(−power) of squared distances a."""
    return (1 + float(gamma[0]) * distances) ** -float(power[0])


class SideBySide(FeatureMap):
    """The features of several maps, joined: those of a probe that is the mean of several probes."""

    def __init__(self, maps: Sequence[FeatureMap]) -> None:
        self.maps = list(maps)

    def on(self, backend: Backend, raw: Array) -> Array:
        return backend.xp.concatenate([features.on(backend, raw) for features in self.maps], 1)


def rbf(store: TokenStore, standard: Standard) -> Rbf:
    """The kernel map whose landmarks are tokens at equal distances, copies of a sequence left out.

    The same data give the same map, and a weight of two the map of two copies.
    """
    store = store[distinct_sequences(store)]
    ends = np.cumsum(store.lengths)
    count = min(TOLERANCES.landmarks, int(ends[-1]))
    place = (2 * np.arange(count) + 1) * int(ends[-1]) // (2 * count)
    sequence = np.searchsorted(ends, place, side="right")
    row = store.starts[sequence] + place - (ends - store.lengths)[sequence]
    tokens = np.concatenate([store.rows.numpy(store.rows.read(slice(r, r + 1))) for r in row.tolist()])
    landmarks = (tokens.astype(np.float64) - standard.mean) / standard.scale
    gamma, power = np.array([TOLERANCES.spread / landmarks.shape[1]]), np.ones(1)
    square = (landmarks**2).sum(1)
    distances = np.maximum(square[:, None] + square - 2 * landmarks @ landmarks.T, 0.0)
    values, vectors = np.linalg.eigh(kernel(distances, gamma, power))
    root = (vectors / np.sqrt(np.maximum(values, 1e-6))) @ vectors.T
    return Rbf(landmarks, standard.mean, standard.scale, root, gamma, power)


def distinct_sequences(store: TokenStore) -> Index:
    """Places of the sequences that are no copy of an earlier one."""
    ends = [token.tobytes() for token in store.last_tokens.numpy(slice(0, len(store)))]
    count = Counter(ends)
    # Sequences of equal ends are rare, and only they are read whole.
    whole = [sha256(store[i].tobytes()).digest() if count[end] > 1 else end for i, end in enumerate(ends)]
    first = {content: i for i, content in reversed([*enumerate(whole)])}
    return np.sort([*first.values()])


def mapped(store: TokenStore, features: FeatureMap | None) -> TokenStore:
    """The features of all tokens in memory, in the precision of products; None: the tokens as stored."""
    if features is None:
        return store
    backend = backend_of(store.rows)
    with backend.scope():
        blocks = [features.on(backend, store.read(span)) for span in store.spans(backend.block)]
        rows = as_matrix(backend.xp.concatenate(blocks))
    return TokenStore(rows, np.cumsum(store.lengths) - store.lengths, store.lengths, store.given_mask)


# ---------------------------------------------------------------------- a probe on each kind


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
    """Fits on features of every kind. objective_on(tokens): the objective; splits (folds, n): its folds."""

    objective_on: Callable[[TokenStore], Objective]
    store: TokenStore
    splits: Splits
    options: FitOptions

    def fit(self, kinds: Sequence[str]) -> FeatureProbe:
        """The mean of the probes on features of these kinds, or of the best of them if they are compared."""
        results = {kind: KINDS[kind](self) for kind in kinds}
        best = best_mean(self.on_tokens, results) if self.options.compare_kinds else kinds
        return _averaged([results[kind].fit() for kind in best])

    @cached_property
    def on_tokens(self) -> Objective:
        return self.objective_on(self.store)

    def linear(self) -> KindResult:
        return self._with_ridges("linear", self.on_tokens, None)

    def rbf(self) -> KindResult:
        features = rbf(self.store, self.on_tokens.standard)
        objective = self.objective_on(mapped(self.store, features))
        return self._with_ridges("rbf", objective, features)

    def last(self) -> KindResult:
        """A linear head on the last token of every sequence."""
        store = last_tokens(self.store)
        objective = self.objective_on(store)
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


KINDS = {"linear": KindSearch.linear, "rbf": KindSearch.rbf, "last": KindSearch.last}
"""The kinds of features, and the method that fits each."""

COMPARED = ("linear", "rbf")
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
        if loss([*members, rival]) < (1 - TOLERANCES.least_gain) * loss(members):
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
