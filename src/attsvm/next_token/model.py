"""The one-layer transformer that predicts the next token, its order of tokens, and its loss gap."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax

from attsvm.data.path import Path
from attsvm.next_token.corpus import Corpus, Ids, as_queries, as_sentences
from attsvm.next_token.priorities import Priorities, Role
from attsvm.numbers import Float

TIE = 1e-9
"""Logits that differ by less than this share of their query's largest logit count as equal."""

LINEAR = 1e-8
"""Below it, (e^x − 1)/x and log(1 + x)/x are 1 + x/2 and 1 − x/2 to the last bit."""

FAR = 40.0
"""Above it, e^x − 1 is e^x to the last bit."""


@dataclass(frozen=True, eq=False)
class OneLayer:
    """Next-token probabilities  softmax(W_ov X softmax(Xᵀ W_kq q)),  q the last token of X.

    embeddings (V, d), W_ov (V, d), W_kq (d, d). Methods take sentences (n, T), −1 beyond their end, and query
    tokens (n,), by default the last token of each sentence.
    """

    embeddings: Float
    W_ov: Float
    W_kq: Float

    def attention(self, ids: ArrayLike, queries: ArrayLike | None = None) -> Float:
        """Attention over the tokens of sentences ids (n, T), −1 beyond their end: (n, T)."""
        rows = as_sentences(ids, len(self.embeddings))
        query_ids = as_queries(queries, rows, len(self.embeddings))
        logits = token_logits(self.W_kq, self.embeddings)[rows, query_ids[:, None]]
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


def extended_pairs(corpus: Corpus, logits: Float) -> Ids:
    """Pairs of the extended order that logits rank correctly, and all pairs, counted per query: (2, V).

        optimal > non-comparable > non-optimal

    logits (V tokens, V queries). Most of these pairs occur in no sentence together: the corpus does not order
    them, the trained model does.
    Logits closer than TIE times the largest logit of their query count as equal, and so as not ranked.
    Reference: Huang, Liang, Yang 2024, generalisation under dataset shift.
    """
    roles = Priorities.of(corpus).roles
    order = [
        (Role.optimal, Role.non_comparable),
        (Role.non_comparable, Role.non_optimal),
        (Role.optimal, Role.non_optimal),
    ]
    counts = np.zeros((2, corpus.V), np.intp)
    for q in np.flatnonzero(roles.any(-1)):
        for high, low in order:
            above, below = logits[roles[q] == high, q], np.sort(logits[roles[q] == low, q])
            below = below + TIE * np.abs(logits[:, q]).max()
            counts[0, q] += np.searchsorted(below, above, side="left").sum()
            counts[1, q] += above.size * below.size
    return counts


# ---------------------------------------------------------------------- the loss gap


def log_excess(path: Path, corpus: Corpus) -> Float:
    """log(L − L*) of the second stage at every record (k,), long after L − L* has underflowed.

    L* is the loss with all attention on the winners of the corpus on which the path was trained. Of one
    sentence, r* is the value of the winner, p = softmax(r*) the probabilities of the wrong tokens among
    themselves, P their probability among all tokens, and Δ = Σ_t s_t (value_t − r*). Then

        L − L* = log(1 + P Σ_v p_v (e^{Δ_v} − 1)).

    Every term of Δ has the attention s_t of a losing token as a factor; the largest of them stays a
    logarithm.
    """
    values = path.tokens.values
    if values.shape != (*corpus.ids.shape, corpus.V - 1) or (path.tokens.mask != corpus.mask).any():
        raise ValueError(
            f"the path was trained on {path.tokens} and the corpus has n={corpus.n}, V={corpus.V}. "
            "Pass train_two_stages(corpus, …).attention and the same corpus."
        )
    winner = np.argmax(corpus.ids == corpus.winners[:, None], axis=-1)
    best = values[np.arange(len(winner)), winner]
    gap = np.where(path.tokens.mask[..., None], values - best[:, None], 0.0)
    losing = path.tokens.mask & (corpus.ids != corpus.winners[:, None])
    log_s = np.where(losing, path.log_attention, -np.inf)
    largest = log_s.max(-1)
    has_rival = np.isfinite(largest)  # the gap of a sentence of one token is zero
    log_scale = np.where(has_rival, largest, 0.0)
    delta = np.einsum("knt,ntv->knv", np.exp(log_s - log_scale[..., None]), gap)
    log_p, log_wrong, log_correct = _wrong(best)
    unscaled = np.exp(log_scale)[..., None] * delta  # Δ
    rise = (np.exp(log_p) * delta * _growth(np.minimum(unscaled, FAR))).sum(-1)
    scale = np.where(has_rival, log_scale + log_wrong, -np.inf)
    gaps = rise * _shrinkage(np.exp(scale) * rise)
    # A large e^Δ may overflow. There L − L* = log(1 − P + Σ_v P p_v e^{Δ_v}) has no cancellation.
    far = unscaled.max(-1) > FAR
    plain = np.logaddexp(log_correct, log_wrong + logsumexp(log_p + unscaled, axis=-1))
    return _log_mean(np.where(far, 0.0, scale), np.where(far, plain, gaps))


def _wrong(odds: Float) -> tuple[Float, Float, Float]:
    """log p, the shares of the wrong tokens among themselves (n, V − 1), log P and log(1 − P) (n,)."""
    total = logsumexp(odds, axis=-1)
    return odds - total[:, None], -np.logaddexp(0.0, -total), -np.logaddexp(0.0, total)


def _growth(x: NDArray[np.float64]) -> Float:
    """(e^x − 1)/x."""
    small = np.abs(x) < LINEAR
    return np.where(small, 1 + x / 2, np.expm1(x) / np.where(small, 1.0, x))


def _shrinkage(x: NDArray[np.float64]) -> Float:
    """log(1 + x)/x."""
    small = np.abs(x) < LINEAR
    return np.where(small, 1 - x / 2, np.log1p(x) / np.where(small, 1.0, x))


def _log_mean(scale: Float, mantissa: Float) -> Float:
    """log of the mean over sentences of mantissa · e^scale, (k, n) → (k,)."""
    top = scale.max(-1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    mean = (np.exp(scale - top) * mantissa).mean(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(top[:, 0] + np.log(mean))
