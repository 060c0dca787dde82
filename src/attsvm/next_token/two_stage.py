"""Training on a corpus, through the one training loop: two stages, or the log-loss of the choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.next_token.corpus import Corpus
from attsvm.next_token.model import OneLayer
from attsvm.next_token.problems import as_embeddings, choice_tokens, collocation_tokens, prediction_tokens
from attsvm.norms import frobenius
from attsvm.path import Path
from attsvm.tokens import Float
from attsvm.training.heads import Linear, LogOdds
from attsvm.training.losses import log_loss, logistic
from attsvm.training.optimizers import gd, steepest
from attsvm.training.train import train
from attsvm.training.weights import FullWeight


@dataclass(frozen=True, eq=False)
class TwoStages:
    """What two-stage training found: the path of W_ov (k, V, d), then that of W_kq (k, d, d)."""

    embeddings: Float
    feed_forward: Path
    attention: Path

    @property
    def model(self) -> OneLayer:
        """The trained model, which predicts."""
        return OneLayer(self.embeddings, self.feed_forward.final, self.attention.final)


def train_two_stages(
    corpus: Corpus,
    embeddings: ArrayLike | None = None,
    *,
    steps: tuple[int, int],
    lr: tuple[float, float] | None = None,
    record: int | Sequence[int] = 50,
) -> TwoStages:
    """Normalised GD on the feed-forward layer alone, then, with that frozen, on attention.

        L_0(W_ov) = −Σ_x log softmax(W_ov x)_{n(x)}
        L(W_kq) = −1/n Σ_i log softmax(W_ov X_i softmax(X_iᵀ W_kq q_i))_{p(X_i)}

    steps, lr: one of each per stage; the papers' steps are lr = (0.2/√d, 0.05/√d), the default.
    Both stages start at zero. A sentence that occurs twice counts twice.
    Reference: Huang, Liang, Yang 2024, "Non-asymptotic Convergence of Training Transformers for
    Next-token Prediction", Algorithm 1.
    """
    E = as_embeddings(corpus, embeddings)
    rates = (0.2 / math.sqrt(E.shape[1]), 0.05 / math.sqrt(E.shape[1])) if lr is None else lr
    first = train(
        collocation_tokens(corpus, E),
        Linear(np.ones(1)),
        weight=FullWeight(),
        loss=log_loss,
        optimizer=steepest(frobenius, rates[0]),
        steps=steps[0],
        record=record,
    )
    second = train(
        prediction_tokens(corpus, first.final, E),
        LogOdds(),
        weight=FullWeight(),
        loss=logistic,
        optimizer=steepest(frobenius, rates[1]),
        steps=steps[1],
        record=record,
    )
    return TwoStages(E, first, second)


def train_choice(
    corpus: Corpus,
    embeddings: ArrayLike | None = None,
    *,
    steps: int,
    optimizer: Any = None,
    record: int | Sequence[int] = 50,
) -> Path:
    """Gradient descent on the log-loss of the winner's attention; convex in W.

        L(W) = −1/n Σ_i log Σ_{t: x_t = y_i} softmax(X_i W q_i)_t

    optimizer: by default gd(1.0). Copies of a token count as often as they occur.
    Reference: Li et al. 2024, "Mechanics of Next Token Prediction with Self-Attention".
    """
    return train(
        choice_tokens(corpus, embeddings),
        Linear(np.ones(1)),
        weight=FullWeight(),
        loss=log_loss,
        optimizer=gd(1.0) if optimizer is None else optimizer,
        steps=steps,
        record=record,
    )


def log_excess(path: Path, winners: ArrayLike) -> Float:
    """log(L − L*) of the second stage at every record (k,), exact long after L − L* has underflowed.

    L* puts all attention on the winners (n,), positions in the sentences. With p = softmax(r*) over
    the other tokens at the winner, and Δ = r − r* = Σ_{t≠a} s_t (value_t − value_a),

        drop of the log-odds = log(1 + Σ_v p_v (e^{Δ_v} − 1)),

    a sum whose common factor max_t s_t is kept in logarithms.
    """
    values = path.tokens.values
    at = np.asarray(winners)
    n = len(at)
    best = values[np.arange(n), at]
    gap = np.where(path.tokens.mask[..., None], values - best[:, None], 0.0)
    odds = _logsumexp(best)
    p = np.exp(best - odds[:, None])
    copies = (gap == 0).all(-1)  # the winner and its copies, and padding
    losing = np.where(copies, -np.inf, path.log_attention)
    top = losing.max(-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    change = np.einsum("knt,ntv->knv", np.exp(losing - safe[..., None]), gap)
    scaled = np.exp(safe)[..., None] * change
    growth = np.where(np.abs(scaled) < 1e-8, 1 + scaled / 2, np.expm1(scaled) / np.where(scaled == 0, 1, scaled))
    total = (p * change * growth).sum(-1)
    # L − L* per sentence = log(1 + σ(odds) · Σ_v p_v (e^Δ_v − 1)), with σ(odds) = 1 − probability of p(X)
    share = total / (1 + np.exp(-odds))
    small = np.exp(safe) * share
    per = np.where(np.abs(small) < 1e-8, share, np.log1p(small) / np.exp(safe))
    with np.errstate(divide="ignore"):
        peak = safe.max(-1, keepdims=True)
        return np.asarray(peak[:, 0] + np.log((np.exp(safe - peak) * per).mean(-1)))


def _logsumexp(x: Float) -> Float:
    top = x.max(-1, keepdims=True)
    return np.asarray((top + np.log(np.exp(x - top).sum(-1, keepdims=True)))[..., 0])
