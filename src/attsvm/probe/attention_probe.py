"""AttentionProbe: the prompt-and-head model as a scikit-learn classifier on token sequences."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    check_array,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from attsvm.probe.objective import Found, Objective, Weights, attend, probabilities, read_out
from attsvm.probe.separation import Separation, separate_selected
from attsvm.probe.sequences import Sequences, is_nested, plain, read
from attsvm.tokens import Float


class AttentionProbe(ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator):
    """Classify token sequences by one learned query (or several) and a linear head.

        a = softmax(X p),   X̄ = Σ_t a_t x_t,   score = v · X̄ + b

        min over p, v, b of  mean log loss + prompt_ridge ‖p‖²/2 + head_ridge ‖v‖²/2

    X: array (n, T, d), list of arrays (T_i, d), pair (array, mask (n, T)), `Tokens`, or a table (n, d),
        whose rows are sequences of one token. Arrays may be torch tensors; a list may be an object array or
        a pandas column. scikit-learn's splitters cannot index pairs: give them `as_sequences(pair)`.
    More than two classes: one attention, a softmax head with one v per class.

    head_ridge, prompt_ridge: on tokens standardised per feature (inside, over all training tokens).
    n_heads: number of prompts p, each with its own head; their scores add.
    n_starts: the problem is not convex in p. The first start is p = 0 (mean pooling); further ones, and all
        with several heads, are random. The lowest objective wins.
    class_weight: None, "balanced", or a weight per class. max_iter, tol: of L-BFGS (gradient entries).
    certify: solve the max-margin program of the selected tokens at fit.

    Fitted: classes_, n_features_in_; prompt_ (d, n_heads), coef_ (d, n_heads, k) and intercept_ (k,) for the
    tokens as given; objective_, n_iter_; separation_ with margin_, support_tokens_, certificate_.
    Reference: Tarzanagh et al. 2023, "Max-Margin Token Selection in Attention Mechanism".
    """

    def __init__(
        self,
        *,
        head_ridge: float = 1e-2,
        prompt_ridge: float = 1e-2,
        n_heads: int = 1,
        n_starts: int = 1,
        class_weight: Any = None,
        max_iter: int = 1000,
        tol: float = 1e-6,
        certify: bool = True,
        random_state: Any = None,
    ) -> None:
        self.head_ridge = head_ridge
        self.prompt_ridge = prompt_ridge
        self.n_heads = n_heads
        self.n_starts = n_starts
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.tol = tol
        self.certify = certify
        self.random_state = random_state

    # ------------------------------------------------------------------ fit

    def fit(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None = None) -> AttentionProbe:
        """Learn prompts, head and intercept. y (n,): class labels; sample_weight (n,): ≥ 0."""
        self._check_parameters()
        sequences, labels = self._read_training(X, y)
        importance = _importance(sample_weight, sequences.n)
        if self.class_weight is not None:
            importance = importance * compute_sample_weight(self.class_weight, labels)
        kept = importance > 0  # an example without weight must not even shape the standardisation
        sequences, labels, importance = sequences.take(kept), labels[kept], importance[kept]
        self.classes_, index = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"AttentionProbe needs at least two classes, y has {len(self.classes_)} class.")
        importance = importance / importance.sum()
        standard, mean, scale = _standardised(sequences, importance)
        targets = np.eye(len(self.classes_))[index]
        if len(self.classes_) == 2:
            targets = targets[:, 1:]
        objective = Objective(standard, targets, importance, self.prompt_ridge, self.head_ridge)
        found = self._best_of_starts(objective)
        self._keep(found, mean, scale)
        self.separation_ = Separation()
        if self.certify:
            self.separation_ = separate_selected(standard, found.weights.prompts, np.flatnonzero(kept))
        return self

    def _best_of_starts(self, objective: Objective) -> Found:
        rng = check_random_state(self.random_state)
        d, k = objective.sequences.flat.shape[1], objective.targets.shape[1]
        head, intercept = np.zeros((d, self.n_heads, k)), np.zeros(k)
        found = []
        for start in range(self.n_starts):
            prompts = np.zeros((d, self.n_heads))
            if start > 0 or self.n_heads > 1:  # logits of variance one
                prompts = rng.standard_normal(prompts.shape) / np.sqrt(d)
            weights = Weights(prompts, head, intercept)
            found.append(objective.minimise(weights, steps=self.max_iter, tolerance=self.tol))
        best = min(found, key=lambda each: each.value)
        if best.steps >= self.max_iter:
            message = f"no convergence in max_iter={self.max_iter} steps: a derivative is {best.slope:.1e}, "
            warnings.warn(message + "raise max_iter or tol.", ConvergenceWarning, stacklevel=3)
        return best

    def _keep(self, found: Found, mean: Float, scale: Float) -> None:
        weights = found.weights
        self.prompt_ = weights.prompts / scale[:, None]
        self.coef_ = weights.head / scale[:, None, None]
        self.intercept_ = weights.intercept - np.einsum("d,dhk->k", mean, self.coef_)
        self.objective_, self.n_iter_ = found.value, found.steps
        self._n_features_out = self.n_features_in_ * self.n_heads

    # ------------------------------------------------------------------ use

    def decision_function(self, X: Any) -> Float:
        """Scores: (n,) for two classes, positive for `classes_[1]`; else (n, classes)."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> Float:
        """Probabilities (n, classes)."""
        return probabilities(self._scores(X))

    def predict(self, X: Any) -> NDArray[Any]:
        """Class labels (n,)."""
        scores = self._scores(X)
        best = scores[:, 0] > 0 if scores.shape[1] == 1 else scores.argmax(1)
        return np.asarray(self.classes_[best.astype(int)])

    def transform(self, X: Any) -> Float:
        """Pooled vectors X̄ (n, n_heads · d)."""
        sequences = self._read(X)
        attention = attend(sequences, self.prompt_)
        pooled = [sequences.sums(a[:, None] * sequences.flat) for a in attention.T]
        return np.concatenate(pooled, axis=1)

    def attention(self, X: Any) -> Float:
        """Attention (n, T), zero on padding; with several heads (n_heads, n, T)."""
        sequences = self._read(X)
        attention = np.moveaxis(sequences.padded(attend(sequences, self.prompt_)), -1, 0)
        return attention[0] if self.n_heads == 1 else attention

    def select(self, X: Any) -> NDArray[np.intp]:
        """Position of the most attended token (n,); with several heads (n_heads, n)."""
        return np.asarray(self.attention(X).argmax(-1))

    def _scores(self, X: Any) -> Float:
        sequences = self._read(X)
        return read_out(sequences, Weights(self.prompt_, self.coef_, self.intercept_)).scores

    # ------------------------------------------------------------------ what the program says

    @property
    def margin_(self) -> float | None:
        """Best margin of the selected tokens over the others, for a prompt of norm one (standardised)."""
        return self.separation_.margin

    @property
    def support_tokens_(self) -> NDArray[np.intp] | None:
        """(example, token) of every active constraint (s, 2)."""
        return self.separation_.support

    @property
    def certificate_(self) -> Any:
        """The program's certificate, or None; then `separation_.reason` says why."""
        return self.separation_.certificate

    # ------------------------------------------------------------------ at the door

    def _read_training(self, X: Any, y: Any) -> tuple[Sequences, NDArray[Any]]:
        X = plain(X)
        if not is_nested(X):
            X, labels = validate_data(self, X, y, dtype=np.float64)
            sequences = Sequences(X, np.ones(len(X), int))
        else:
            if y is None:
                raise ValueError("AttentionProbe requires y to be passed, but the target y is None.")
            sequences, labels = read(X), column_or_1d(y, warn=True)
            check_consistent_length(sequences.lengths, labels)
            self.n_features_in_ = sequences.flat.shape[1]
        check_classification_targets(labels)
        return sequences, labels

    def _read(self, X: Any) -> Sequences:
        check_is_fitted(self)
        X = plain(X)
        if not is_nested(X):
            X = validate_data(self, X, dtype=np.float64, reset=False)
            return Sequences(X, np.ones(len(X), int))
        sequences = read(X)
        if sequences.flat.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {sequences.flat.shape[1]} features, but AttentionProbe is expecting "
                f"{self.n_features_in_} features as input."
            )
        return sequences

    def _check_parameters(self) -> None:
        for name in ("head_ridge", "prompt_ridge", "tol"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name} is {getattr(self, name)!r}. Pass a positive number.")
        for name in ("n_heads", "n_starts", "max_iter"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}. Pass an integer ≥ 1.")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _importance(sample_weight: Any, n: int) -> Float:
    """One weight per sequence (n,), by default ones."""
    if sample_weight is None:
        return np.ones(n)
    weight = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if weight.shape != (n,) or (weight < 0).any():
        raise ValueError(f"sample_weight has shape {weight.shape}. Pass one number ≥ 0 per sequence: ({n},).")
    if not weight.any():
        raise ValueError("Sample weights must contain at least one non-zero number: all are zero.")
    return np.asarray(weight)


def _standardised(sequences: Sequences, importance: Float) -> tuple[Sequences, Float, Float]:
    """Tokens of mean 0 and standard deviation 1 per feature, every token weighted as its sequence."""
    weight = importance[sequences.example]
    weight = weight / weight.sum()
    size = np.abs(sequences.flat).max(0)
    size = np.where(size > 0, size, 1.0)  # squares of the tokens themselves may overflow
    unit = sequences.flat / size
    mean = weight @ unit
    unit -= mean
    spread = np.sqrt(weight @ unit**2)
    spread = np.where(spread > 1e-12, spread, 1.0)  # a constant feature carries nothing
    standard = Sequences(unit / spread, sequences.lengths, sequences.given_mask)
    return standard, mean * size, spread * size
