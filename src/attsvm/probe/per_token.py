"""PerToken: a transformer of tables, applied to the tokens of sequences."""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from attsvm.numbers import Float
from attsvm.probe.data.sequences import Sequences, as_store
from attsvm.probe.data.store import TokenStore


class PerToken(TransformerMixin, BaseEstimator):
    """Fit a transformer on all tokens as rows, and map every sequence (T_i, d) to (T_i, c).

    With a kernel approximation in front, `AttentionProbe` attends and scores in the feature space:

        make_pipeline(PerToken(StandardScaler()), PerToken(Nystroem()), AttentionProbe())

    X: array (n, T, d), list of (T_i, d), pair (array, mask), Tokens or TokenStore; the result is a list.
    """

    def __init__(self, transformer: BaseEstimator) -> None:
        self.transformer = transformer

    def fit(self, X: Sequences, y: object = None) -> PerToken:
        """Fit a clone of the transformer on the tokens (N, d). Labels belong to sequences, not to tokens."""
        self.transformer_ = clone(self.transformer).fit(all_tokens(as_store(X)))
        return self

    def transform(self, X: Sequences) -> list[Float]:
        """Every sequence with its tokens transformed."""
        check_is_fitted(self)
        store = as_store(X)
        flat = self.transformer_.transform(all_tokens(store))
        # One-hot encoders and discretisers give sparse matrices unless they are told otherwise.
        dense = np.asarray(flat.toarray() if hasattr(flat, "toarray") else flat)
        return np.split(dense, np.cumsum(store.lengths)[:-1])


def all_tokens(store: TokenStore) -> Float:
    """All tokens in memory as float64 (N, d)."""
    return np.asarray(store.numpy(slice(0, len(store))), np.float64)
