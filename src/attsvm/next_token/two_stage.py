"""Training on a corpus, through the one training loop: two stages, or the log-loss of the choice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from attsvm.data.path import Path
from attsvm.next_token.corpus import Corpus
from attsvm.next_token.model import OneLayer
from attsvm.next_token.problems import as_embeddings, choice_tokens, collocation_tokens, prediction_tokens
from attsvm.norms import frobenius
from attsvm.numbers import Float
from attsvm.training.losses import log_loss
from attsvm.training.optimizers import gd, steepest
from attsvm.training.prediction_heads import Linear, LogOdds
from attsvm.training.train import train


@dataclass(frozen=True, eq=False, repr=False)
class TwoStages:
    """The result of two-stage training: the path of W_ov (k, V, d), then that of W_kq (k, d, d)."""

    embeddings: Float
    feed_forward: Path
    attention: Path

    @property
    def model(self) -> OneLayer:
        """The trained model, which predicts."""
        return OneLayer(self.embeddings, self.feed_forward.final, self.attention.final)

    def __repr__(self) -> str:
        V, d = self.embeddings.shape
        stages = (
            f"{name} {path.index[-1]:,} steps to loss {path.loss[-1]:.3g}"
            for name, path in (("W_ov", self.feed_forward), ("W_kq", self.attention))
        )
        return f"TwoStages(V={V}, d={d}; {'; '.join(stages)})"


def train_two_stages(
    corpus: Corpus,
    embeddings: ArrayLike | None = None,
    *,
    steps: tuple[int, int],
    optimizers: tuple[Any, Any] | None = None,
    record: int | Sequence[int] = 50,
) -> TwoStages:
    """Normalised GD on the feed-forward layer alone, then, with that frozen, on attention.

        L_0(W_ov) = −Σ_x log softmax(W_ov x)_{n(x)}
        L(W_kq) = −1/n Σ_i log softmax(W_ov X_i softmax(X_iᵀ W_kq q_i))_{p(X_i)}

    steps, optimizers: one of each per stage; by default the paper's normalised GD with steps of length
        0.2/√d and 0.05/√d. Both stages start at zero.
    Reference: Huang, Liang, Yang 2024, "Non-asymptotic Convergence of Training Transformers for
    Next-token Prediction", Algorithm 1.
    """
    for name, pair in (("steps", steps), ("optimizers", optimizers)):
        if pair is not None and not (isinstance(pair, tuple) and len(pair) == 2):
            raise ValueError(f"{name} is {pair!r}. Pass a pair: feed-forward stage, attention stage.")
    E = as_embeddings(corpus, embeddings)
    unit = 1 / math.sqrt(E.shape[1])
    rules = optimizers or (steepest(frobenius, 0.2 * unit), steepest(frobenius, 0.05 * unit))
    tokens, head = collocation_tokens(corpus, E), Linear(np.ones(1))
    feed_forward = train(tokens, head, loss=log_loss, optimizer=rules[0], steps=steps[0], record=record)
    tokens = prediction_tokens(corpus, feed_forward.final, E)
    attention = train(tokens, LogOdds(), optimizer=rules[1], steps=steps[1], record=record)
    return TwoStages(E, feed_forward, attention)


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
    tokens, head, rule = choice_tokens(corpus, embeddings), Linear(np.ones(1)), optimizer or gd(1.0)
    return train(tokens, head, loss=log_loss, optimizer=rule, steps=steps, record=record)
