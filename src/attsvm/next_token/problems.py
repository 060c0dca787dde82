"""A corpus as `Tokens`, for programs and training."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data.tokens import Tokens
from attsvm.next_token.corpus import Corpus
from attsvm.numbers import Float


def as_embeddings(corpus: Corpus, embeddings: ArrayLike | None) -> Float:
    """One vector per token (V, d); by default the unit vectors, orthonormal tokens with d = V."""
    if embeddings is None:
        return np.eye(corpus.V)
    E = np.asarray(embeddings, dtype=np.float64)
    if E.ndim != 2 or len(E) != corpus.V:
        raise ValueError(f"embeddings has shape {E.shape} but V={corpus.V}. Pass one row per token.")
    if not np.isfinite(E).all():
        raise ValueError("embeddings has a NaN or infinite entry.")
    return E


def sentence_tokens(corpus: Corpus, embeddings: ArrayLike | None = None) -> Tokens:
    """The sentences for the attention programs: each token of a sentence once.

        keys x_t (n, T, d),  query = embedding of the query token (n, d)

    Copies of a token have equal logits, and so equal constraints. Therefore all but the first are masked.
    """
    E = as_embeddings(corpus, embeddings)
    return Tokens(E[corpus.ids], E[corpus.queries], mask=corpus.mask & ~corpus.repeats)


def choice_tokens(corpus: Corpus, embeddings: ArrayLike | None = None) -> Tokens:
    """The sentences for training the choice of the winner by log-loss.

    Values (n, T, 1) are 1 at the copies of the winner, so that the output of `Linear([1.0])` is the winner's
    attention, and `log_loss` is −log of it. This is the loss of a model with tied weights, in which attention
    is the probability of a token.
    """
    E = as_embeddings(corpus, embeddings)
    values = (corpus.ids == corpus.winners[:, None])[..., None].astype(float)
    return Tokens(E[corpus.ids], E[corpus.queries], mask=corpus.mask, values=values)


def prediction_tokens(corpus: Corpus, W_ov: ArrayLike, embeddings: ArrayLike | None = None) -> Tokens:
    """The sentences for training attention behind a frozen output layer W_ov (V, d).

    Values (n, T, V − 1): output logits of every other token minus those of the next token p,

        value_t = ((W_ov x_t)_v − (W_ov x_t)_p)  for v ≠ p,

    so that the head `LogOdds()` with the logistic loss is the cross-entropy of the next token.
    """
    E = as_embeddings(corpus, embeddings)
    if corpus.V < 2:
        raise ValueError("the vocabulary has one token: there is nothing to predict.")
    outputs = E @ as_output(W_ov, E).T
    logits = outputs[corpus.ids]
    label = corpus.following[:, None, None]
    wrong_tokens = np.arange(corpus.V - 1) + (np.arange(corpus.V - 1) >= label)
    odds = np.take_along_axis(logits, wrong_tokens, -1) - np.take_along_axis(logits, label, -1)
    return Tokens(E[corpus.ids], E[corpus.queries], mask=corpus.mask, values=odds)


def collocation_tokens(corpus: Corpus, embeddings: ArrayLike | None = None) -> Tokens:
    """The collocations as attention of a token x over the vocabulary: W is the output layer W_ov.

        keys e_v (V, V, V),  query x (V, d),  logits e_vᵀ W_ov x = (W_ov x)_v

    One example per token that announces another. Values (n, V, 1) are 1 at n(x): `Linear([1.0])` and
    `log_loss` give −Σ_x log softmax(W_ov x)_{n(x)}.
    """
    E = as_embeddings(corpus, embeddings)
    announcing = np.flatnonzero(corpus.collocation >= 0)
    V = corpus.V
    keys = np.broadcast_to(np.eye(V), (len(announcing), V, V))
    announced = np.arange(V) == corpus.collocation[announcing, None]
    return Tokens(keys, E[announcing], values=announced[..., None].astype(float))


def as_output(W_ov: ArrayLike, embeddings: Float) -> Float:
    """Check an output layer (V, d)."""
    W = np.asarray(W_ov, dtype=np.float64)
    if W.shape != embeddings.shape or not np.isfinite(W).all():
        raise ValueError(f"W_ov has shape {W.shape}. Pass finite numbers of shape {embeddings.shape}.")
    return W
