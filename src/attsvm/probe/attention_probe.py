"""AttentionProbe: the prompt-and-head model as a scikit-learn classifier on token sequences."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

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
from attsvm.numbers import Float, Values
from attsvm.probe.data.importance import ClassWeight, importance_of
from attsvm.probe.data.sequences import Sequences, of_table, plain, read
from attsvm.probe.data.standard import Standard
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.attention import Attended, probabilities, read_out
from attsvm.probe.fitting.concepts import Fitted, Plan, Seed
from attsvm.probe.fitting.features import mapped
from attsvm.probe.fitting.folds import Folding, folds
from attsvm.probe.fitting.kinds import KINDS, Ways
from attsvm.probe.fitting.objective import Objective
from attsvm.probe.fitting.relu import MEMBERS
from attsvm.probe.fitting.ridge_path import AUTO
from attsvm.probe.reading.separation import Separation, separate_selected
from attsvm.probe.use.in_use import InUse
from attsvm.probe.use.saved import check_kept
from attsvm.program.certificate import Certificate


class AttentionProbe(
    InUse, ClassNamePrefixFeaturesOutMixin, TransformerMixin, ClassifierMixin, BaseEstimator
):
    """Classify token sequences by one learned query (or several) and a linear head.

        a = softmax(X p),   X̄ = Σ_t a_t x_t,   score = v · X̄ + b

        min over p, v, b of  mean log loss + prompt_ridge ‖p‖²/2 + head_ridge ‖v‖²/2

    X: array (n, T, d), list of arrays (T_i, d), pair (array, mask (n, T)), `TokenStore`, `Tokens`, or a table
        (n, d), whose rows are sequences of one token. Arrays may be torch tensors (nested ones, too) or
        JAX's, and are left on their GPU; a list may be an object array, a pandas or a Hugging Face column.
        float16, bfloat16 and float32 are read as they are. scikit-learn's splitters cannot index pairs: give
        them `as_sequences(pair)`.
    More than two classes: one attention, a softmax head with one v per class.

    head_ridge, prompt_ridge: on tokens standardised per feature (inside, over all training tokens); "auto":
        the data choose, by cross-validated log loss on paths from mean pooling and from the loudest tokens.
    cv: folds of that choice: a number, a splitter, or pairs (train, test).
    features: "linear": the tokens; "rbf": Nyström features of a rational quadratic kernel on them (kept in
        memory, in float32); "relu": a small trained map, the mean of one network per fold (at least ten; no
        ridges; a weight of two is not two copies, because they are drawn apart); a list of some of them: the
        mean of their scores; "auto": the kind that held out best, or the mean with others that held out
        better.
    n_average: at least so many networks of "relu".
    n_heads: number of prompts p, each with its own head; their scores add.
    n_starts: the problem is not convex in p. The first start is p = 0 (mean pooling; with given ridges up to
        0.1 the loudest tokens, too); others, and all of several heads, are random. The lowest objective wins.
    positive: p = v (two classes, one ridge for both): a token draws attention as far as it speaks for
        classes_[1], so that none can speak against it. For bags that are positive because of an instance.
    class_weight: None, "balanced", or a weight per class. max_iter, tol: of L-BFGS (gradient entries).
    certify: solve the max-margin program of the selected tokens at fit.
    random_state: of random starts; None is 0, so that a fit can be repeated.

    Fitted: classes_, n_features_in_; kinds_: the kinds of features, the best one first; features_: None, or
    their map with `transform`; prompt_ (d, n_heads), coef_
    (d, n_heads, k) and intercept_ (k,) for the tokens (or features) as given; mean_, scale_ (d,);
    head_ridge_, prompt_ridge_ and path_, every candidate's held-out loss; objective_, n_iter_; separation_
    with margin_, support_tokens_, certificate_.
    Reference: Tarzanagh et al. 2023, "Max-Margin Token Selection in Attention Mechanism".
    """

    def __init__(
        self,
        *,
        head_ridge: float | str = AUTO,
        prompt_ridge: float | str = AUTO,
        features: str | Sequence[str] = "linear",
        n_average: int = 1,
        n_heads: int = 1,
        n_starts: int = 1,
        positive: bool = False,
        cv: Folding = 3,
        class_weight: ClassWeight = None,
        max_iter: int = 1000,
        tol: float = 1e-6,
        certify: bool = False,
        random_state: Seed = None,
    ) -> None:
        self.head_ridge = head_ridge
        self.prompt_ridge = prompt_ridge
        self.features = features
        self.n_average = n_average
        self.n_heads = n_heads
        self.n_starts = n_starts
        self.positive = positive
        self.cv = cv
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.tol = tol
        self.certify = certify
        self.random_state = random_state

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
        cv = list(self.cv) if isinstance(self.cv, Iterable) else self.cv  # a generator gives its pairs once
        parts = folds(cv, labels, groups, importance)
        several = max(cv, MEMBERS) if is_integer(cv) else cv
        kinds, judge = self._kinds(), self.features == AUTO
        many = folds(several, labels, groups, importance) if "relu" in kinds else parts
        kept = importance > 0  # an example without weight must not even shape the standardisation
        self.classes_, index = np.unique(labels[kept], return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"AttentionProbe needs at least two classes, y has {len(self.classes_)} class.")
        if self.positive and len(self.classes_) > 2:  # in scikit-learn's words
            only = "Only binary classification is supported. The type of the target is multiclass"
            raise ValueError(f"{only}: y has {len(self.classes_)} classes, positive=True needs two.")
        if not kept.all():
            store, importance, parts, many = store[kept], importance[kept], parts[:, kept], many[:, kept]
        targets = np.eye(len(self.classes_))[index].T[None]
        if len(self.classes_) == 2:
            targets = targets[:, 1:]
        plan = Plan(self._given(), self.n_starts, self.max_iter, self.tol, self.random_state, judge)
        h, tied = self.n_heads, self.positive
        ways = Ways(
            lambda tokens, parts: Objective.of(tokens, targets, importance, parts, h, tied),
            store, parts, many, self.n_average, plan,
        )  # fmt: skip
        self.kinds_, fitted, standard, self.features_ = ways.fit(kinds)
        self._keep(fitted, standard)
        self._warn(fitted)
        if self.certify:
            prompts, names = self.prompt_ * self.scale_[:, None], np.flatnonzero(kept)
            self.separation_ = separate_selected(self._attend(store), standard, prompts, names)
        return self

    def _keep(self, fitted: Fitted, standard: Standard) -> None:
        # In the order in which a file keeps them: in another one products round differently.
        self.prompt_, self.coef_, self.intercept_ = map(np.ascontiguousarray, fitted.weights)
        self.mean_, self.scale_ = map(np.ascontiguousarray, standard)
        self.head_ridge_, self.prompt_ridge_ = fitted.choice.head_ridge, fitted.choice.prompt_ridge
        self.path_, self.objective_, self.n_iter_ = fitted.choice.path, fitted.value, max(fitted.steps, 1)
        self.separation_ = Separation()
        self._n_features_out = self.prompt_.size

    def _warn(self, fitted: Fitted) -> None:
        if fitted.steps >= self.max_iter and fitted.slope > 0:
            slope = f"a derivative is {fitted.slope:.1e}, raise max_iter or tol."
            message = f"no convergence in max_iter={self.max_iter} steps: {slope}"
            warnings.warn(message, ConvergenceWarning, stacklevel=3)

    # ------------------------------------------------------------------ use

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
        """Pooled vectors X̄ (n, n_heads · d)."""
        store, attention, _ = self._attend(self._read(X))
        pooled = np.empty((len(store), attention.shape[1], store.width))
        for i, (tokens, last) in enumerate(zip(store, np.cumsum(store.lengths), strict=True)):
            pooled[i] = attention[last - len(tokens) : last].T @ tokens.astype(np.float64)
        return pooled.reshape(len(store), -1)

    def attention(self, X: Sequences) -> Float:
        """Attention (n, T), zero on padding; with several heads (n_heads, n, T)."""
        store, attention, _ = self._attend(self._read(X))
        of_heads = np.moveaxis(store.padded(attention), -1, 0)
        return of_heads[0] if len(of_heads) == 1 else of_heads

    def select(self, X: Sequences) -> NDArray[np.intp]:
        """Position of the most attended token (n,); with several heads (n_heads, n)."""
        return np.asarray(self.attention(X).argmax(-1))

    def _attend(self, store: TokenStore) -> Attended:
        own = mapped(store, self.features_)
        attention, scores = read_out(own, [self._weights], self.mean_)
        return Attended(own, attention[0].T, scores[0].T)

    def _scores(self, X: Sequences) -> Float:
        return self._attend(self._read(X)).scores

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
    def certificate_(self) -> Certificate | None:
        """The program's certificate, or None; then `separation_.reason` says why."""
        return self.separation_.certificate

    # ------------------------------------------------------------------ at the door

    def _read_training(self, X: Sequences, y: ArrayLike) -> tuple[TokenStore, Values]:
        store = read(X)
        if not isinstance(store, TokenStore):
            table, labels = validate_data(self, store, y, dtype=np.float64)
            store = of_table(table)
        else:
            if y is None:
                raise ValueError("AttentionProbe requires y to be passed, but the target y is None.")
            labels = column_or_1d(plain(y), warn=True)
            check_consistent_length(store.lengths, labels)
            self.n_features_in_ = store.width
        check_classification_targets(labels)
        return store, labels

    def _read(self, X: Sequences) -> TokenStore:
        check_is_fitted(self)
        store = read(X)
        if not isinstance(store, TokenStore):
            return of_table(validate_data(self, store, dtype=np.float64, reset=False))
        if store.width != self.n_features_in_:
            raise ValueError(
                f"X has {store.width} features, but AttentionProbe is expecting "
                f"{self.n_features_in_} features as input."
            )
        return store

    def _given(self) -> list[float | None]:
        """Head and prompt ridge, None where the data choose."""
        ridges = self.head_ridge, self.prompt_ridge
        return [None if isinstance(ridge, str) else float(ridge) for ridge in ridges]

    def _check_parameters(self) -> None:
        check_kept(self)
        for name in ("head_ridge", "prompt_ridge", "tol"):
            value, other = getattr(self, name), "" if name == "tol" else f' or "{AUTO}"'
            chosen = isinstance(value, str) and value == AUTO and other
            if not (chosen or (is_finite(value) and value > 0)):
                raise ValueError(f"{name} is {value!r}. Pass a positive number{other}.")
        for name in ("n_average", "n_heads", "n_starts", "max_iter"):
            if not (is_integer(getattr(self, name)) and getattr(self, name) >= 1):
                raise ValueError(f"{name} is {getattr(self, name)!r}. Pass an integer ≥ 1.")
        if "relu" not in self._kinds() and self.n_average > 1:
            raise ValueError(
                f'n_average has no effect with features={self.features!r}. Pass "relu" or "{AUTO}".'
            )
        if self.positive and self.head_ridge != self.prompt_ridge:
            both = f"head_ridge is {self.head_ridge!r}, prompt_ridge is {self.prompt_ridge!r}"
            raise ValueError(f"{both}. With positive=True they are one: pass the same.")

    def _kinds(self) -> list[str]:
        """The kinds of features."""
        known = [kind for kind in KINDS if not (self.positive and kind == "relu")]
        given = [self.features] if isinstance(self.features, str) else list(self.features)
        kinds = known if self.features == AUTO else given
        if self.positive and "relu" in kinds:
            raise ValueError('features "relu" have no positive=True. Pass "linear" or "rbf".')
        if not kinds or len(set(kinds)) < len(kinds) or not set(kinds) <= set(KINDS):
            some = f'"linear", "rbf", "relu", a list of some of them, or "{AUTO}"'
            raise ValueError(f"features is {self.features!r}. Pass {some}.")
        return kinds

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.classifier_tags.multi_class = not self.positive
        return tags
