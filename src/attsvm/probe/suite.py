"""ProbeSuite: many probes over one read of the tokens, and the AUC of every layer for every concept."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.metrics import roc_auc_score
from sklearn.utils.validation import check_array, check_is_fitted

from attsvm.numbers import Float
from attsvm.probe.attention_probe import AttentionProbe
from attsvm.probe.data.sequences import Sequences, from_table, read_sequences
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.attention import log_loss, read_out
from attsvm.probe.fitting.features import Splits, held_out_mean, lowest_mean
from attsvm.probe.fitting.fits import AUTO, choose_ridges, fit_concepts
from attsvm.probe.fitting.folds import Folding, folds
from attsvm.probe.fitting.objective import Objective

Name: TypeAlias = Hashable
"""Of a layer, or of a concept."""

Layers: TypeAlias = Sequences | Mapping[Name, Sequences]


class ProbeSuite(BaseEstimator):
    """An `AttentionProbe` for every layer and concept; the concepts of a layer share every pass.

        suite = ProbeSuite().fit({5: store_5, 11: store_11}, Y, names=["deception", "refusal"])
        print(suite.auc(test_layers, Y_test))         # layers × concepts
        suite.probes_[11]["refusal"]                  # an AttentionProbe
        suite.combined(test_layers)                   # (n, concepts): the mean of the scores of some layers

    X: one of the probe's inputs, or a mapping from layers to them. Y (n, concepts): 0 or 1, or soft targets
        between.
    Parameters as of `AttentionProbe`; "auto" ridges are chosen for each concept separately.
    Fitted: probes_; layers_: of every concept the layer that held out best, and those that lower the held-out
        loss of the mean of scores by at least 0.5 % (all layers, if the ridges are given).
    """

    def __init__(
        self,
        *,
        head_ridge: float | str = AUTO,
        prompt_ridge: float | str = AUTO,
        cv: Folding = 3,
        max_iter: int = 1000,
        tol: float = 1e-6,
    ) -> None:
        self.head_ridge = head_ridge
        self.prompt_ridge = prompt_ridge
        self.cv = cv
        self.max_iter = max_iter
        self.tol = tol

    def fit(
        self, X: Layers, Y: ArrayLike, names: Sequence[Name] | None = None, groups: ArrayLike | None = None
    ) -> ProbeSuite:
        """Fit all probes. names: of the concepts, by default 0, 1, …; groups (n,): kept together in folds."""
        layers, targets = _layers(X), _targets(Y)
        if not layers:
            raise ValueError("X has no layers. Pass sequences, or a mapping from layers to them.")
        self.names_: list[Name] = list(range(targets.shape[1]) if names is None else names)
        if not len(self.names_) == len(set(self.names_)) == targets.shape[1]:
            problem = f"names is {self.names_} for {targets.shape[1]} concepts"
            raise ValueError(f"{problem}. Pass one per column of Y, all different.")
        constant = (targets == targets[0]).all(0)
        if constant.any():
            name, value = self.names_[int(constant.argmax())], targets[0, constant][0]
            raise ValueError(f"concept {name!r} is {value:g} in all {len(targets)} rows of Y. Leave it out.")
        splits = folds(self.cv, np.zeros(len(targets), int), groups, np.ones(len(targets)))
        fits = {layer: self._fit_layer(layer, tokens, targets, splits) for layer, tokens in layers.items()}
        self.probes_ = {layer: fitted.probes for layer, fitted in fits.items()}
        self.layers_ = {
            name: _together({layer: fitted.held_out[q] for layer, fitted in fits.items()}, targets[:, q])
            for q, name in enumerate(self.names_)
        }
        return self

    def _fit_layer(self, layer: Name, X: Sequences, targets: Float, splits: Splits) -> _LayerFit:
        store, n = _store(layer, X), len(targets)
        if len(store) != n:
            size = f"layer {layer!r} has {len(store)} sequences"
            raise ValueError(f"{size}, Y has {n} rows. Pass a row per sequence.")
        settings = self.get_params()
        template = AttentionProbe(**settings)
        template._check_parameters()
        with _naming(layer):
            objective = Objective.of(store, targets.T[:, None], np.ones(n) / n, splits)
        options = template._fit_options()
        choices = choose_ridges(objective, options)
        fits = fit_concepts(objective, options, choices)
        points = [point for choice in choices if choice.points is not None for point in choice.points]
        weights = list(map(objective.weights_for_tokens, points))
        held_out = [np.full(n, np.nan)] * len(choices)
        if weights:
            scores = read_out(store, weights, objective.standard.mean)[1].reshape(len(choices), -1, 1, n)
            held_out = [held_out_mean(splits, of_folds)[0] for of_folds in scores]
        probes = {}
        for name, fitted in zip(self.names_, fits, strict=True):
            probe = probes[name] = AttentionProbe(**settings)
            probe.classes_, probe.n_features_in_ = np.array([0, 1]), store.width
            probe.features_, probe.kinds_ = None, ["linear"]
            probe._set_fitted(fitted, objective.standard)
            probe._fitted_on_sequences = bool(store.lengths.max() > 1)
        return _LayerFit(probes, held_out)

    def decision_function(self, X: Layers) -> dict[Name, Float]:
        """Scores (n, concepts) of every layer, each in one read."""
        check_is_fitted(self, "probes_")
        scores = {}
        for layer, tokens in _layers(X, self.probes_).items():
            probes = list(self.probes_[layer].values())
            store = _store(layer, tokens, probes[0]._fitted_on_sequences)
            if store.width != (width := probes[0].n_features_in_):
                raise ValueError(f"layer {layer!r} has tokens {store.width} wide, its probes read {width}.")
            weights = [probe._weights for probe in probes]
            with _naming(layer):
                scores[layer] = read_out(store, weights, probes[0].mean_)[1][:, 0].T
        return scores

    def combined(self, X: Layers) -> Float:
        """Scores (n, concepts): of every concept the mean over the layers in `layers_`."""
        check_is_fitted(self, "probes_")
        layers, used = _layers(X, self.probes_), {layer for of in self.layers_.values() for layer in of}
        missing = [layer for layer in self.probes_ if layer in used and layer not in layers]
        if missing:
            raise ValueError(f"X has no layer {missing[0]!r}. Pass the layers that the suite was fitted on.")
        needed: dict[Name, Sequences] = {layer: layers[layer] for layer in self.probes_ if layer in used}
        scores = self.decision_function(needed)
        sizes = [len(of) for of in scores.values()]
        if len(set(sizes)) > 1:
            raise ValueError(f"layers have {sizes} sequences. Pass the same sequences in every layer.")
        columns = [
            np.mean([scores[layer][:, q] for layer in self.layers_[name]], axis=0)
            for q, name in enumerate(self.names_)
        ]
        return np.stack(columns, 1)

    def auc(self, X: Layers, Y: ArrayLike) -> AucTable:
        """AUC of every layer for every concept, on sequences that no probe was fitted on; Y (n, concepts)."""
        targets, scores = _targets(Y) > 0.5, self.decision_function(X)
        sizes = {(len(of), len(self.names_)) for of in scores.values()}
        if sizes != {targets.shape}:
            raise ValueError(f"Y has shape {targets.shape}. Pass a row per sequence, a column per concept.")
        mixed = targets.any(0) & ~targets.all(0)
        if not mixed.all():
            name = self.names_[int(mixed.argmin())]
            raise ValueError(f"concept {name!r} has one class in Y. Pass sequences of both.")
        rows = [[roc_auc_score(y, s) for y, s in zip(targets.T, of.T, strict=True)] for of in scores.values()]
        return AucTable(list(scores), self.names_, np.array(rows))


class _LayerFit(NamedTuple):
    """probes of a layer by concept; held_out: scores (n,) of each, NaN where a sequence was not held out."""

    probes: dict[Name, AttentionProbe]
    held_out: list[Float]


def _together(held_out: Mapping[Name, Float], targets: Float) -> list[Name]:
    """The layers whose mean of scores holds out best; all of them, if nothing was held out."""
    if not all(np.isfinite(scores).any() for scores in held_out.values()):
        return list(held_out)

    def loss(layer: Name) -> float:
        scores, tested = held_out[layer], np.isfinite(held_out[layer])
        return float(log_loss(np, scores[None, None, tested], targets[None, None, tested])[0].mean())

    ranked = sorted(held_out, key=loss)
    weight = np.ones(len(targets)) / len(targets)
    return lowest_mean(ranked, {layer: of[None] for layer, of in held_out.items()}, targets[None], weight)


@dataclass(frozen=True, eq=False)
class AucTable:
    """auc (layers, concepts): the share of pairs of a positive and a negative sequence in the right order."""

    layers: list[Name]
    concepts: list[Name]
    auc: Float

    def __str__(self) -> str:
        head = "layer | " + " ".join(f"{str(name)[:10]:>10}" for name in self.concepts)
        rows = [
            f"{layer!s:>5} | " + " ".join(f"{value:10.3f}" for value in row)
            for layer, row in zip(self.layers, self.auc, strict=True)
        ]
        return "\n".join([head, "-" * len(head), *rows])

    def plot(self) -> Any:
        """A picture of the table."""
        from attsvm.plotting.results import draw_auc

        return draw_auc(self)


def _layers(X: Layers, fitted: Mapping[Name, object] | None = None) -> Mapping[Name, Sequences]:
    """Layers and their tokens; what is not a mapping is layer 0."""
    layers: Mapping[Name, Sequences] = X if isinstance(X, Mapping) else {0: X}
    unknown = [layer for layer in layers if fitted is not None and layer not in fitted]
    if unknown:
        raise ValueError(f"layer {unknown[0]!r} was not fitted. Pass some of {list(fitted or ())}.")
    return layers


def _store(layer: Name, X: Sequences, fitted_on_sequences: bool = False) -> TokenStore:
    with _naming(layer):
        store = read_sequences(X)
        if isinstance(store, TokenStore):
            return store
        return from_table(check_array(store, dtype=np.float64), fitted_on_sequences)


@contextmanager
def _naming(layer: Name) -> Iterator[None]:
    """Begin the message of an error about sequences with their layer."""
    try:
        yield
    except (ValueError, TypeError) as error:
        raise type(error)(f"layer {layer!r}: {error}") from None


def _targets(Y: ArrayLike) -> Float:
    remedy = "Pass (n, concepts) with numbers from 0 to 1"
    try:
        targets = np.asarray(Y, np.float64)
    except (ValueError, TypeError):
        raise ValueError(f"Y holds no numbers. {remedy}, such as labels == name.") from None
    if targets.ndim != 2 or 0 in targets.shape:
        raise ValueError(f"Y has shape {targets.shape}. {remedy}; Y[:, None] is one concept.")
    outside = targets[~((targets >= 0) & (targets <= 1))]
    if len(outside):
        raise ValueError(f"Y has the entry {outside[0]:g}. {remedy}.")
    return targets
