"""AttentionProbe: the prompt-and-head model as a scikit-learn classifier on token sequences."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from attsvm._support.validation import is_finite, is_integer
from attsvm.numbers import Bool, Float, Values
from attsvm.probe import evaluation, explanation, saved
from attsvm.probe.data.sequences import Sequences, from_table, read_sequences, unwrapped
from attsvm.probe.data.store import TokenStore
from attsvm.probe.evaluation import Curves, Stability, Threshold
from attsvm.probe.explanation import Explanation, Texts
from attsvm.probe.fitting.attention import (
    ProbeOutput,
    StreamState,
    Weights,
    checked_tokens,
    extend_stream,
    probabilities,
    read_out,
    start_stream,
)
from attsvm.probe.fitting.features import COMPARED, KINDS, FeatureMap, KindSearch, mapped
from attsvm.probe.fitting.fits import AUTO, FitOptions, ProbeFit
from attsvm.probe.fitting.folds import ClassWeight, Folding, folds, importance_of, warn_without_folds
from attsvm.probe.fitting.objective import Objective, Standard
from attsvm.probe.separation import Separation, separate_selected


class AttentionProbe(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """Classify token sequences by one learned query and a linear head. A fit draws nothing at random.

        a = softmax(X p),   X̄ = Σ_t a_t x_t,   score = v · X̄ + b

        min over p, v, b of  mean log loss + prompt_ridge ‖p‖²/2 + head_ridge ‖v‖²/2

    X: array (n, T, d), list of arrays (T_i, d), pair (array, mask (n, T)), `TokenStore`, `Tokens`, or a table
        (n, d), whose rows are sequences of one token: a probe fitted on longer sequences refuses it, and
        takes one sequence x (T, d) as [x]. Arrays may be torch tensors (nested ones, too) or JAX's, and are
        left on their GPU; a list may be an object array, a column of pandas, Polars or Hugging Face. float16,
        bfloat16 and float32 are read as they are. scikit-learn's splitters cannot index pairs: give them
        `as_sequences(pair)`.
    More than two classes: one attention, a softmax head with one v per class.

    head_ridge, prompt_ridge: on tokens standardised per feature (inside, over all training tokens); "auto":
        the data choose, by cross-validated log loss on paths from mean pooling and from the tokens of largest
        norm.
    cv: folds of that choice: a number, a splitter, or pairs (train, test).
    features: "linear": the tokens; "rbf": Nyström features of a rational quadratic kernel on them (kept in
        memory, in float32); "last": the last token of each sequence, which in a decoder has read the others
        (it does not learn to attend); a list of these: the mean of their scores, as in ["linear", "last"];
        "auto": of the first two the kind of lowest held-out loss, averaged with the other if that lowers it.
    positive: p = v (two classes, one ridge for both): the attention of a token grows with its score for
        classes_[1]; tokens of low score get almost none. For bags that are positive because of an instance.
    class_weight: None, "balanced", or a weight per class. max_iter, tol: of L-BFGS (gradient entries), which
        starts from p = 0, mean pooling, and from attention to the tokens of largest norm: the problem is not
        convex in p.

    Fitted: classes_, n_features_in_; kinds_: the kinds of features, the best one first; features_: None, or
    their map with `transform`; prompt_ (d, h), coef_ (d, h, k) and intercept_ (k,) for tokens (or features)
    that are not standardised, with a head for each kind of features; last_ (h,): which heads read the last
    token; mean_, scale_ (d,); head_ridge_, prompt_ridge_ and path_, every candidate's held-out loss;
    objective_, n_iter_.
    With one head coef_[:, 0].T is (k, d), the shape that coef_ of scikit-learn's linear models has.
    Reference: Tarzanagh et al. 2023, "Max-Margin Token Selection in Attention Mechanism".
    """

    classes_: Values
    n_features_in_: int
    kinds_: list[str]
    features_: FeatureMap | None
    prompt_: Float
    coef_: Float
    intercept_: Float
    mean_: Float
    scale_: Float
    head_ridge_: float
    prompt_ridge_: float
    last_: Bool
    _fitted_on_sequences: bool

    def __init__(
        self,
        *,
        head_ridge: float | str = AUTO,
        prompt_ridge: float | str = AUTO,
        features: str | Sequence[str] = "linear",
        positive: bool = False,
        cv: Folding = 3,
        class_weight: ClassWeight = None,
        max_iter: int = 1000,
        tol: float = 1e-6,
    ) -> None:
        self.head_ridge = head_ridge
        self.prompt_ridge = prompt_ridge
        self.features = features
        self.positive = positive
        self.cv = cv
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.tol = tol

    # ------------------------------------------------------------------ fit

    def fit(
        self,
        X: Sequences,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> AttentionProbe:
        """Learn prompts, head and intercept. y (n,): class labels; sample_weight (n,): ≥ 0.

        groups (n,): sequences of one group, such as the turns of a conversation, stay in one fold.
        """
        self._check_parameters()
        store, labels = self._read_training(X, y)
        importance = importance_of(sample_weight, self.class_weight, labels)
        splits, kinds = folds(self.cv, labels, groups, importance), self._feature_kinds()
        weighted = importance > 0  # a sequence without weight must not even shape the standardisation
        self.classes_, index = np.unique(labels[weighted], return_inverse=True)
        if len(self.classes_) < 2:
            only = f"1 class{'' if weighted.all() else ' with weight'}, {self.classes_[0]!s}"
            raise ValueError(f"AttentionProbe needs two classes, y has {only}. Pass sequences of another.")
        if self.positive and len(self.classes_) > 2:  # the message is scikit-learn's
            binary = "Only binary classification is supported. The type of the target is multiclass"
            raise ValueError(f"{binary}: y has {len(self.classes_)} classes, positive=True needs two.")
        if not weighted.all():
            store, importance, splits = store[weighted], importance[weighted], splits[:, weighted]
        targets = np.eye(len(self.classes_))[index].T[None]
        if len(self.classes_) == 2:
            targets = targets[:, 1:]
        tied = self.positive
        search = KindSearch(
            lambda tokens: Objective.of(tokens, targets, importance, splits, tied),
            store, splits, self._fit_options(),
        )  # fmt: skip
        self.kinds_, fitted, standard, self.features_ = search.fit(kinds)
        self._set_fitted(fitted, standard)
        self._fitted_on_sequences = bool(store.lengths.max() > 1)
        searched = AUTO in (self.head_ridge, self.prompt_ridge)
        if not len(splits) and (searched or self.features == AUTO):
            warn_without_folds(len(store), groups, self.head_ridge_, self.prompt_ridge_)
        if fitted.steps >= self.max_iter and fitted.slope > 0:
            slope = f"a derivative is {fitted.slope:.1e}, raise max_iter or tol."
            message = f"no convergence in max_iter={self.max_iter} steps: {slope}"
            warnings.warn(message, ConvergenceWarning, stacklevel=2)
        return self

    def _fit_options(self) -> FitOptions:
        ridges = [None if isinstance(r, str) else float(r) for r in (self.head_ridge, self.prompt_ridge)]
        return FitOptions(ridges, self.max_iter, self.tol, compare_kinds=self.features == AUTO)

    def _set_fitted(self, fitted: ProbeFit, standard: Standard) -> None:
        # The memory order of a loaded file: products of arrays in another order round differently.
        self.prompt_, self.coef_, self.intercept_ = map(np.ascontiguousarray, fitted.weights[:3])
        self.last_ = fitted.weights.slopes > 0
        self.mean_, self.scale_ = map(np.ascontiguousarray, standard)
        self.head_ridge_, self.prompt_ridge_ = fitted.choice.head_ridge, fitted.choice.prompt_ridge
        self.path_, self.objective_, self.n_iter_ = fitted.choice.path, fitted.value, max(fitted.steps, 1)
        self._n_features_out = self.prompt_.size

    # ------------------------------------------------------------------ predictions

    def decision_function(self, X: Sequences) -> Float:
        """Scores: (n,) for two classes, positive for `classes_[1]`; else (n, classes)."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Sequences) -> Float:
        """Probabilities (n, classes)."""
        return probabilities(self._scores(X))

    def predict(self, X: Sequences) -> Values:
        """Class labels (n,)."""
        scores = self._scores(X)
        best = scores[:, 0] > 0 if scores.shape[1] == 1 else scores.argmax(1)
        return np.asarray(self.classes_[best.astype(int)])

    def transform(self, X: Sequences) -> Float:
        """Pooled vectors X̄ (n, h · d)."""
        output = self._output(self._read(X))
        store, attention = output.features, output.attention
        pooled = np.empty((len(store), attention.shape[1], store.width))
        for i, (tokens, end) in enumerate(zip(store, np.cumsum(store.lengths), strict=True)):
            pooled[i] = attention[end - len(tokens) : end].T @ tokens.astype(np.float64)
        return pooled.reshape(len(store), -1)

    def attention(self, X: Sequences) -> Float:
        """Attention (n, T), zero on padding; with several heads (h, n, T)."""
        output = self._output(self._read(X))
        of_heads = np.moveaxis(output.features.padded(output.attention), -1, 0)
        return of_heads[0] if len(of_heads) == 1 else of_heads

    def select(self, X: Sequences) -> NDArray[np.intp]:
        """Position of the most attended token (n,); with several heads (h, n)."""
        return np.asarray(self.attention(X).argmax(-1))

    def _output(self, store: TokenStore) -> ProbeOutput:
        features = mapped(store, self.features_)
        attention, scores = read_out(features, [self._weights], self.mean_)
        return ProbeOutput(features, attention[0].T, scores[0].T)

    def _scores(self, X: Sequences) -> Float:
        return self._output(self._read(X)).scores

    @property
    def _weights(self) -> Weights:
        return Weights(self.prompt_, self.coef_, self.intercept_, self.last_)

    def _mapped(self, tokens: Float) -> Float:
        """Tokens (m, d) in the space of the prompts (m, D)."""
        return tokens if self.features_ is None else self.features_.transform(tokens)

    # ------------------------------------------------------------------ the max-margin program

    def separation(self, X: Sequences) -> Separation:
        """The certified max-margin program of the tokens that the probe selects in these sequences.

        probe.separation(X).margin, .support, .certificate, .alignment      # or .reason why there is none
        """
        store = self._read(X)
        if self.kinds_ == ["last"]:
            return Separation(reason='features="last" selects nothing: it reads the last token')
        standard = Standard(self.mean_, self.scale_)
        return separate_selected(self._output(store), standard, self.prompt_ * self.scale_[:, None])

    # ------------------------------------------------------------------ streams

    def start(self) -> StreamState:
        """The state before the first token of a stream: a few numbers per head for any length."""
        check_is_fitted(self)
        return start_stream(self._weights)

    def step(self, state: StreamState, x: ArrayLike) -> tuple[StreamState, float | Float]:
        """The state after one more token x (d,), or several (m, d), and the score of all tokens so far.

            state = probe.start()
            for x in tokens:
                state, score = probe.step(state, x)     # decision_function of the tokens up to x

        A state is never changed, so one state may be continued twice. Computed in float64.
        """
        check_is_fitted(self)
        tokens = self._mapped(checked_tokens(x, self.n_features_in_))
        state, scores = extend_stream(state, tokens, self._weights, self.mean_)
        return state, float(scores[0]) if len(scores) == 1 else scores

    # ------------------------------------------------------------------ files and torch

    def save(self, file: str | os.PathLike[str]) -> Path:
        """Write the fitted probe to a .safetensors file: arrays and JSON, nothing that is executed."""
        check_is_fitted(self)
        return saved.save(self, file)

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> Self:
        """The fitted probe that `save` wrote."""
        probe: Self = saved.load(cls, file)
        return probe

    def to_torch(self, dtype: Any = None) -> Any:
        """The probe as a torch.nn.Module: scores of tokens (n, T, d), and `start` and `step` for batches.

        dtype: a type of torch, float32 unless given.
        """
        check_is_fitted(self)
        from attsvm.torch.probe import Probe, feature_module

        maps = [feature_module(**vars(features)) for features in saved.feature_maps(self)]
        weights = self._weights
        return Probe(*weights[:3], self.mean_, maps, weights.slopes, dtype)

    def export(self, file: str | os.PathLike[str], *, skip: int, layer: int = 0) -> Path:
        """Write the probe as one Python file that needs torch alone, for a server of hidden states.

            probe.export("refusal.py", skip=1, layer=1)
            python refusal.py states.safetensors          # {"request": "states", "tokens": 40, "score": 0.31}

        Its `score` takes the states (T, layers, d) of a request, as vLLM's `extract_hidden_states` writes
        them, or (T, d) of the layer; `Running` scores a request that is still generated. In float64.
        skip: first tokens to leave out, as many as in the fit: `activations` leaves out 1, and
            `TokenStore.open` what its `skip` says. layer: position on the axis of layers.
        """
        check_is_fitted(self)
        return saved.export(self, file, layer, skip)

    # ------------------------------------------------------------------ explanations and curves

    def explain(
        self,
        X: Sequences,
        texts: Texts = None,
        y: ArrayLike | None = None,
        *,
        stability: Stability | None = None,
    ) -> Explanation:
        """What every token of the sequences contributes: numbers that sum to the score, and a page.

            read = probe.explain(X, texts, y)
            read.contributions[0].sum(), read.mistakes(), read.words(), read.save("probe.html")

        texts: a list of pieces per sequence, strings with one word per token, or what `heads.activations`
            returned; without them tokens are numbered. y (n,): the true classes, where they are known.
        stability: of these sequences, from `stability`; the page then shows which selections to trust.
        """
        store = self._read(X)
        pieces = explanation.read_pieces(texts, store.lengths)
        labels = explanation.read_labels(y, self.classes_, len(store))
        same_token = None if stability is None else stability.same_token
        if same_token is not None and len(same_token) != len(store):
            raise ValueError(f"the stability is of {len(same_token)} sequences, X has {len(store)}.")
        attention, contributions = explanation.explain(store, self._mapped, self._weights, self.mean_)
        scores = np.array([of_tokens.sum(0) for of_tokens in contributions])
        return Explanation(pieces, attention, contributions, scores, self.classes_, labels, same_token)

    def stability(
        self, X: Sequences, y: ArrayLike, resamples: int = 20, groups: ArrayLike | None = None, seed: int = 0
    ) -> Stability:
        """Whether probes fitted on resamples of the sequences predict the same and select the same tokens.

        X, y: those the probe was fitted on; drawn with replacement, whole groups (n,) if there are groups.
        Every fit uses this probe's ridges, so no search is repeated. Costs `resamples` fits.
        """
        check_is_fitted(self)
        return evaluation.stability(self, X, y, resamples, groups, seed)

    def threshold_at_fpr(
        self, X: Sequences, y: ArrayLike, fpr: float = 0.01, positive: object = None
    ) -> Threshold:
        """The score above which at most a share `fpr` of the negatives is flagged, with its interval.

        X, y: sequences that the probe was not fitted on; those that are not `positive` (by default the last
        class) are the negatives. With more than two classes the score is the log odds of `positive`.
        """
        scores, truth = self._scores_and_truth(X, y, positive)
        return evaluation.threshold_at_fpr(scores, truth, fpr)

    def curves(self, X: Sequences, y: ArrayLike, positive: object = None, bins: int = 10) -> Curves:
        """ROC and calibration on sequences that the probe was not fitted on; `.plot()` draws both."""
        return evaluation.curves(*self._scores_and_truth(X, y, positive), bins)

    def _scores_and_truth(self, X: Sequences, y: ArrayLike, positive: object) -> tuple[Float, Bool]:
        """Log odds of the positive class, and whether each label is that class, (n,) each."""
        store = self._read(X)
        labels = explanation.read_labels(y, self.classes_, len(store))
        assert labels is not None
        positive = self.classes_[-1] if positive is None else positive
        if positive not in self.classes_:
            raise ValueError(f"positive is {positive!r}. Pass one of {self.classes_.tolist()}.")
        column = int(np.flatnonzero(self.classes_ == positive)[0])
        scores: Float = self.decision_function(store)
        if scores.ndim == 1:
            log_odds = scores if column else -scores
        else:
            log_odds = scores[:, column] - np.logaddexp.reduce(np.delete(scores, column, axis=1), axis=1)
        return log_odds, labels == positive

    # ------------------------------------------------------------------ checks

    def _read_training(self, X: Sequences, y: ArrayLike) -> tuple[TokenStore, Values]:
        store = read_sequences(X)
        if not isinstance(store, TokenStore):
            table, labels = validate_data(self, store, y, dtype=np.float64)
            store = from_table(table)
        else:
            if y is None:
                raise ValueError("AttentionProbe requires y to be passed, but the target y is None.")
            labels = column_or_1d(unwrapped(y), warn=True)
            check_consistent_length(store.lengths, labels)
            self.n_features_in_ = store.width
        check_classification_targets(labels)
        return store, labels

    def _read(self, X: Sequences) -> TokenStore:
        check_is_fitted(self)
        store = read_sequences(X)
        if not isinstance(store, TokenStore):
            table = validate_data(self, store, dtype=np.float64, reset=False)
            return from_table(table, self._fitted_on_sequences)
        if store.width != self.n_features_in_:
            raise ValueError(
                f"X has {store.width} features, but AttentionProbe is expecting "
                f"{self.n_features_in_} features as input."
            )
        return store

    def _check_parameters(self) -> None:
        saved.check_parameters_stored(self)
        for name in ("head_ridge", "prompt_ridge", "tol"):
            value, alternative = getattr(self, name), "" if name == "tol" else f' or "{AUTO}"'
            automatic = isinstance(value, str) and value == AUTO and alternative
            if not (automatic or (is_finite(value) and value > 0)):
                raise ValueError(f"{name} is {value!r}. Pass a positive number{alternative}.")
        if not (is_integer(self.max_iter) and self.max_iter >= 1):
            raise ValueError(f"max_iter is {self.max_iter!r}. Pass an integer ≥ 1.")
        if self.positive and self.head_ridge != self.prompt_ridge:
            both = f"head_ridge is {self.head_ridge!r}, prompt_ridge is {self.prompt_ridge!r}"
            raise ValueError(f"{both}. With positive=True they are one: pass the same.")

    def _feature_kinds(self) -> list[str]:
        if self.features == AUTO:
            return list(COMPARED)
        kinds = [self.features] if isinstance(self.features, str) else list(self.features)
        if self.positive and "last" in kinds:
            raise ValueError('features "last" have no positive=True. Pass "linear" or "rbf".')
        if not kinds or len(set(kinds)) < len(kinds) or not set(kinds) <= set(KINDS):
            accepted = f'"linear", "rbf", "last", a list of some of them, or "{AUTO}"'
            raise ValueError(f"features is {self.features!r}. Pass {accepted}.")
        return kinds

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.classifier_tags.multi_class = not self.positive
        return tags
