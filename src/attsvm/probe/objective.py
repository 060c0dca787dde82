"""The ridge objective of prompts and head together, and its gradient, in two passes over the tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, log_softmax, softmax

from attsvm.probe.sequences import Sequences
from attsvm.tokens import Float


class Weights(NamedTuple):
    """prompts (d, h), head (d, h, k) and intercept (k,): h attention heads, k scores.

        score_k = Σ_h Σ_t a_th (v_hk · x_t) + b_k,   a_h = softmax(X p_h)

    k = 1 for two classes (the score of the second), else one score per class.
    """

    prompts: Float
    head: Float
    intercept: Float

    @property
    def flat(self) -> Float:
        return np.concatenate([part.ravel() for part in self])

    def like(self, flat: Float) -> Weights:
        """The weights of these shapes with the numbers of a flat vector."""
        ends = np.cumsum([part.size for part in self])
        parts = zip(np.split(flat, ends[:-1]), self, strict=True)
        return Weights(*(numbers.reshape(part.shape) for numbers, part in parts))


class Reading(NamedTuple):
    """attention (N, h), token_scores v·x (N, h, k), scores (n, k)."""

    attention: Float
    token_scores: Float
    scores: Float


def attend(sequences: Sequences, prompts: Float) -> Float:
    """Softmax attention over the tokens of each sequence, (N, h)."""
    logits = sequences.flat @ prompts
    relative = np.exp(logits - sequences.largest(logits)[sequences.example])
    return np.asarray(relative / sequences.sums(relative)[sequences.example])


def read_out(sequences: Sequences, weights: Weights) -> Reading:
    """Attention and scores. The pooled vectors are never formed: v · Σ a_t x_t = Σ a_t (v · x_t)."""
    N, (d, h, k) = len(sequences.flat), weights.head.shape
    attention = attend(sequences, weights.prompts)
    token_scores = (sequences.flat @ weights.head.reshape(d, h * k)).reshape(N, h, k)
    scores = sequences.sums(np.einsum("th,thk->tk", attention, token_scores)) + weights.intercept
    return Reading(attention, token_scores, scores)


@dataclass(frozen=True, eq=False)
class Objective:
    """Weighted log loss plus two ridges.

        Σ_i ω_i ℓ(y_i, score_i) + prompt_ridge ‖p‖²/2 + head_ridge ‖v‖²/2

    sequences; targets (n, k): one-hot classes, or the 0/1 label (n, 1); importance (n,): ω, sum one.
    """

    sequences: Sequences
    targets: Float
    importance: Float
    prompt_ridge: float
    head_ridge: float

    def value_and_gradient(self, weights: Weights) -> tuple[float, Weights]:
        """Two products with the token matrix: one for logits and token scores, one for the gradient."""
        reading = read_out(self.sequences, weights)
        loss, pull = _log_loss(reading.scores, self.targets, self.importance)
        pull_on_tokens = pull[self.sequences.example]
        worth = np.einsum("thk,tk->th", reading.token_scores, pull_on_tokens)
        on_prompts = _through_softmax(self.sequences, reading.attention, worth)
        on_head = reading.attention[:, :, None] * pull_on_tokens[:, None, :]
        both = np.concatenate([on_prompts, on_head.reshape(len(worth), -1)], axis=1)
        gradient = self.sequences.flat.T @ both
        h = weights.prompts.shape[1]
        ridge = self.prompt_ridge * weights.prompts, self.head_ridge * weights.head
        penalty = (np.sum(ridge[0] * weights.prompts) + np.sum(ridge[1] * weights.head)) / 2
        on_head = gradient[:, h:].reshape(weights.head.shape) + ridge[1]
        return loss + float(penalty), Weights(gradient[:, :h] + ridge[0], on_head, pull.sum(0))

    def minimise(self, start: Weights, *, steps: int, tolerance: float) -> Found:
        """L-BFGS from a start, until every partial derivative is below the tolerance."""

        def flat(x: Float) -> tuple[float, Float]:
            value, gradient = self.value_and_gradient(start.like(x))
            return value, gradient.flat

        options = {"maxiter": steps, "gtol": tolerance, "ftol": 0.0, "maxcor": 20, "maxls": 50}
        done = minimize(flat, start.flat, jac=True, method="L-BFGS-B", options=options)
        return Found(
            start.like(done.x), float(done.fun), max(int(done.nit), 1), float(np.abs(done.jac).max())
        )


class Found(NamedTuple):
    """A stationary point: weights, objective, steps taken, largest partial derivative."""

    weights: Weights
    value: float
    steps: int
    slope: float


def probabilities(scores: Float) -> Float:
    """Class probabilities (n, classes) from scores (n, k)."""
    if scores.shape[1] == 1:
        return np.hstack([expit(-scores), expit(scores)])
    return np.asarray(softmax(scores, axis=1))


def _log_loss(scores: Float, targets: Float, importance: Float) -> tuple[float, Float]:
    """The loss, and its derivative by every score (n, k)."""
    if scores.shape[1] == 1:
        sign = 2 * targets - 1
        losses = np.logaddexp(0.0, -sign * scores)[:, 0]
        pull = -sign * expit(-sign * scores)
    else:
        losses = -(targets * log_softmax(scores, axis=1)).sum(1)
        pull = softmax(scores, axis=1) - targets
    return float(importance @ losses), importance[:, None] * pull


def _through_softmax(sequences: Sequences, attention: Float, worth: Float) -> Float:
    """Coefficient of every token in the prompts' gradient: a_t (g_t − Σ a g), (N, h)."""
    mean = sequences.sums(attention * worth)[sequences.example]
    coefficient = attention * (worth - mean)
    # Winner's coefficient = −(sum of the others): the direct formula cancels to 0 in saturation.
    winner = attention == sequences.largest(attention)[sequences.example]
    losing = np.where(winner, 0.0, coefficient)
    winners = sequences.sums(winner.astype(np.float64))[sequences.example]
    rest = sequences.sums(losing)[sequences.example]
    return np.asarray(np.where(winner & (winners == 1), -rest, coefficient))
