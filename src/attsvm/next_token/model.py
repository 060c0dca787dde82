"""The one-layer transformer that predicts the next token."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import softmax

from attsvm.next_token.corpus import Corpus
from attsvm.next_token.ids import Ids, as_queries, as_sentences
from attsvm.next_token.priorities import Priorities, Role
from attsvm.numbers import Float

TIE = 1e-9
"""Of the largest logit of a query: what a certified solution does not tell apart."""


@dataclass(frozen=True, eq=False)
class OneLayer:
    """Next-token probabilities  softmax(W_ov X softmax(Xᵀ W_kq q)),  q the last token of X.

    embeddings (V, d), W_ov (V, d), W_kq (d, d). Methods take sentences (n, T), −1 beyond their end, and the
    tokens that ask (n,), by default the last of each.
    """

    embeddings: Float
    W_ov: Float
    W_kq: Float

    def attention(self, ids: ArrayLike, queries: ArrayLike | None = None) -> Float:
        """Attention over the tokens of sentences ids (n, T), −1 beyond their end: (n, T)."""
        rows = as_sentences(ids, len(self.embeddings))
        asking = as_queries(queries, rows, len(self.embeddings))
        logits = token_logits(self.W_kq, self.embeddings)[rows, asking[:, None]]
        return np.asarray(softmax(np.where(rows >= 0, logits, -np.inf), axis=-1))

    def probabilities(self, ids: ArrayLike, queries: ArrayLike | None = None) -> Float:
        """Next-token probabilities of sentences ids (n, T): (n, V)."""
        rows = as_sentences(ids, len(self.embeddings))
        pooled = np.einsum("nt,ntd->nd", self.attention(rows, queries), self.embeddings[rows])
        return np.asarray(softmax(pooled @ self.W_ov.T, axis=-1))

    def predict(self, ids: ArrayLike, queries: ArrayLike | None = None) -> Ids:
        """The most probable next token of each sentence (n,)."""
        return self.probabilities(ids, queries).argmax(-1)


def token_logits(W: ArrayLike, embeddings: ArrayLike) -> Float:
    """Logits xᵀ W q of every token under every query: (V tokens, V queries)."""
    E = np.asarray(embeddings)
    return np.asarray(E @ np.asarray(W) @ E.T)


def extended_order(corpus: Corpus, logits: Float) -> Float:
    """Share of token pairs, per query (V,), that logits rank as the extended order does; NaN without pairs.

        optimal > non-comparable > non-optimal

    logits (V tokens, V queries). Most of these pairs never met in a sentence: the order is what the
    trained model adds to the corpus.
    Reference: Huang, Liang, Yang 2024, generalisation under dataset shift.
    """
    counts = extended_pairs(corpus, logits)
    with np.errstate(invalid="ignore"):
        return np.asarray(counts[0] / counts[1])


def extended_pairs(corpus: Corpus, logits: Float) -> Ids:
    """Pairs of the extended order that logits rank rightly, and all of them, per query: (2, V).

    Logits closer than TIE times the largest of their query are equal, and rank nothing: a program's are known
    up to rounding only.
    """
    roles = Priorities.of(corpus).roles
    optimal, neither, non_optimal = Role.optimal, Role.non_comparable, Role.non_optimal
    order = ((optimal, neither), (neither, non_optimal), (optimal, non_optimal))
    counts = np.zeros((2, corpus.V), np.intp)
    for q in np.flatnonzero(roles.any(-1)):
        for high, low in order:
            above, below = logits[roles[q] == high, q], np.sort(logits[roles[q] == low, q])
            below = below + TIE * np.abs(logits[:, q]).max()
            counts[0, q] += np.searchsorted(below, above, side="left").sum()
            counts[1, q] += above.size * below.size
    return counts
