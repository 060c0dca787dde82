"""What one does with a fitted probe: run it on a stream, keep it, hand it on, read it, set its threshold."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils import estimator_html_repr
from sklearn.utils.validation import check_is_fitted

from attsvm.numbers import Bool, Float, Values
from attsvm.probe.data.sequences import Sequences
from attsvm.probe.data.store import TokenStore
from attsvm.probe.fitting.attention import Weights
from attsvm.probe.fitting.features import FeatureMap
from attsvm.probe.reading import curves, explanation
from attsvm.probe.reading.curves import Curves, Threshold
from attsvm.probe.reading.explanation import Explanation, Texts
from attsvm.probe.reading.stability import Probe, Stability, stability
from attsvm.probe.use import running, saved
from attsvm.probe.use.running import Running


class InUse(Probe):
    """Methods of a fitted probe: they read its weights and classes, and what they are given."""

    prompt_: Float
    coef_: Float
    intercept_: Float
    mean_: Float
    features_: FeatureMap | None
    n_features_in_: int
    classes_: Values
    head_ridge_: float
    prompt_ridge_: float
    objective_: float

    def _read(self, X: Sequences) -> TokenStore:
        raise NotImplementedError

    # ------------------------------------------------------------------ on a stream

    def start(self) -> Running:
        """The state before the first token of a stream: a few numbers per head, whatever will come."""
        check_is_fitted(self)
        return running.start(self._weights)

    def step(self, state: Running, x: ArrayLike) -> tuple[Running, float | Float]:
        """The state after one more token x (d,), or some more (m, d), and the score of all tokens so far.

            state = probe.start()
            for x in tokens:
                state, score = probe.step(state, x)     # decision_function of the tokens up to x

        States are values: one may be kept, and gone on from twice. Computed in float64.
        """
        check_is_fitted(self)
        tokens = running.as_tokens(x, self.n_features_in_)
        state, scores = running.step(state, self._mapped(tokens), self._weights, self.mean_)
        return state, float(scores[0]) if len(scores) == 1 else scores

    @property
    def _weights(self) -> Weights:
        return Weights(self.prompt_, self.coef_, self.intercept_)

    def _mapped(self, tokens: Float) -> Float:
        """Tokens (m, d) in the space of the prompts (m, D)."""
        return tokens if self.features_ is None else self.features_.transform(tokens)

    # ------------------------------------------------------------------ elsewhere

    def save(self, file: str | os.PathLike[str]) -> Path:
        """Write the fitted probe to a .safetensors file: arrays and JSON, safe to read from anyone."""
        check_is_fitted(self)
        return saved.save(self, file)

    @classmethod
    def load(cls, file: str | os.PathLike[str]) -> Self:
        """The fitted probe that `save` wrote."""
        found: Self = saved.load(cls, file)
        return found

    def to_torch(self) -> Any:
        """The probe as a torch.nn.Module: scores of tokens (n, T, d), and `start` and `step` for batches."""
        check_is_fitted(self)
        from attsvm.torch.probe import Probe, feature_module

        return Probe(*self._weights, self.mean_, [feature_module(**vars(one)) for one in saved.maps_of(self)])

    # ------------------------------------------------------------------ reading it

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
        stability: of these sequences, from `stability`; the page then says which picks to trust.
        """
        store = self._read(X)
        pieces = explanation.read_pieces(texts, store.lengths)
        labels = explanation.read_labels(y, self.classes_, len(store))
        attention, contributions = explanation.explain(store, self._mapped, self._weights, self.mean_)
        scores = np.array([each.sum(0) for each in contributions])
        stays = None if stability is None else stability.same_token
        if stays is not None and len(stays) != len(store):
            raise ValueError(f"the stability is of {len(stays)} sequences, X has {len(store)}.")
        return Explanation(
            pieces, tuple(attention), tuple(contributions), scores, self.classes_, labels, stays
        )

    def stability(
        self, X: Sequences, y: ArrayLike, resamples: int = 20, groups: ArrayLike | None = None, seed: int = 0
    ) -> Stability:
        """Whether probes fitted on resamples of the sequences say the same and look at the same tokens.

        X, y: those the probe was fitted on; drawn with replacement, whole groups (n,) where they are given.
        The ridges are this probe's, so that no search is repeated. Costs `resamples` fits.
        """
        check_is_fitted(self)
        return stability(self, X, y, resamples, groups, seed)

    def threshold_at_fpr(
        self, X: Sequences, y: ArrayLike, fpr: float = 0.01, positive: object = None
    ) -> Threshold:
        """The score above which at most a share `fpr` of the negatives is flagged, with its interval.

        X, y: sequences that the probe was not fitted on; those that are not `positive` (by default the last
        class) are the negatives. With more than two classes the score is the log odds of `positive`.
        """
        scores, truth = self._against(X, y, positive)
        return curves.threshold_at_fpr(scores, truth, fpr)

    def curves(self, X: Sequences, y: ArrayLike, positive: object = None, bins: int = 10) -> Curves:
        """ROC and calibration on sequences that the probe was not fitted on; `.plot()` draws both."""
        return curves.curves(*self._against(X, y, positive), bins)

    def _against(self, X: Sequences, y: ArrayLike, positive: object) -> tuple[Float, Bool]:
        """Scores of the positive class, which are its log odds, and the truth, (n,) each."""
        store = self._read(X)
        labels = explanation.read_labels(y, self.classes_, len(store))
        assert labels is not None
        positive = self.classes_[-1] if positive is None else positive
        if positive not in self.classes_:
            raise ValueError(f"positive is {positive!r}. Pass one of {self.classes_.tolist()}.")
        one = int(np.flatnonzero(self.classes_ == positive)[0])
        said: Float = self.decision_function(store)
        if said.ndim == 1:
            scores = said if one else -said
        else:
            others = np.delete(said, one, axis=1)
            scores = said[:, one] - np.logaddexp.reduce(others, axis=1)
        return scores, labels == positive

    def _html_repr(self) -> str:
        """For notebooks: what was fitted, above scikit-learn's own diagram."""
        diagram = str(estimator_html_repr(self))
        if not hasattr(self, "coef_"):
            return diagram
        facts = {
            "classes": ", ".join(map(str, self.classes_[:12])),
            "tokens": f"{self.n_features_in_} wide",
            "heads": self.prompt_.shape[1],
            "ridges (head, prompt)": f"{self.head_ridge_:.3g}, {self.prompt_ridge_:.3g}",
            "objective": f"{self.objective_:.5g}",
        }
        rows = (
            f"<tr><td>{escape(name)}</td><td>{escape(str(value))}</td></tr>" for name, value in facts.items()
        )
        return f"<div><table>{''.join(rows)}</table>{diagram}</div>"
