"""The formula of a probe, for many of them at once: attention, scores, log loss and their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import expit, softmax

from attsvm.numbers import Array, Float
from attsvm.probe.data.arithmetic import Arithmetic, Library, Segmented, arithmetic
from attsvm.probe.data.standard import name_the_bad, quiet
from attsvm.probe.data.store import TokenStore


class Weights(NamedTuple):
    """prompts (d, h), head (d, h, k) and intercept (k,): h attention heads, k scores.

        score_k = Σ_h Σ_t a_th (v_hk · x_t) + b_k,   a_h = softmax(X p_h)

    k = 1 for two classes (the score of the second), else one score per class.
    """

    prompts: Float
    head: Float
    intercept: Float

    def about(self, centre: Float) -> Weights:
        """The same for tokens from which a centre (d,) was subtracted, which changes no attention."""
        return self._replace(intercept=self.intercept + np.einsum("d,dhk->k", centre, self.head))

    def on(self, x: Float) -> tuple[Float, Float]:
        """Logits (T, h) and token scores (T, h, k) of tokens (T, d)."""
        d, h, k = self.head.shape
        return x @ self.prompts, (x @ self.head.reshape(d, h * k)).reshape(-1, h, k)


class Attended(NamedTuple):
    """What a fitted probe sees: the features of all tokens, their attention (N, h), and scores (n, k)."""

    features: TokenStore
    attention: Float
    scores: Float


class Reading(NamedTuple):
    """Of K probes on a block: attention (K, h, m), token_scores (K, h, k, m), scores (K, k, b)."""

    attention: Array
    token_scores: Array
    scores: Array


def read_products(
    where: Arithmetic, segments: Segmented, products: Array, intercept: Array, h: int
) -> Reading:
    """Attention and scores from the products (m, K·c) of a block. Pooled vectors are never formed.

    v · Σ a_t x_t = Σ a_t (v · x_t)
    """
    xp, (K, k) = where.xp, intercept.shape
    products = where.widened(products.T).reshape(K, h * (1 + k), -1)
    logits, token_scores = products[:, :h], products[:, h:].reshape(K, h, k, -1)
    relative = xp.exp(logits - segments.spread(segments.top(logits)))
    attention = relative / segments.spread(segments.total(relative))
    scores = segments.total((attention[:, :, None] * token_scores).sum(1)) + intercept[:, :, None]
    return Reading(attention, token_scores, scores)


def on_tokens(xp: Library, segments: Segmented, seen: Reading, pull: Array) -> Array:
    """Coefficients of every token in the gradients of prompts (K, h, m) and heads (K, h·k, m), joined."""
    K, _, m = seen.attention.shape
    pull = segments.spread(pull)
    worth = (seen.token_scores * pull[:, None]).sum(2)
    on_prompts = _through_softmax(xp, segments, seen.attention, worth)
    on_heads = (seen.attention[:, :, None] * pull[:, None]).reshape(K, -1, m)
    return xp.concatenate([on_prompts, on_heads], 1)


def _through_softmax(xp: Library, segments: Segmented, attention: Array, worth: Array) -> Array:
    """Coefficient of every token in the prompts' gradient: a_t (g_t − Σ a g), (K, h, m)."""
    coefficient = attention * (worth - segments.spread(segments.total(attention * worth)))
    # Winner's coefficient = −(sum of the others): the direct formula cancels to 0 in saturation.
    winner = attention == segments.spread(segments.top(attention))
    losing = coefficient * ~winner
    alone = segments.spread(segments.total(winner * 1.0)) == 1
    return xp.where(winner & alone, -segments.spread(segments.total(losing)), coefficient)


def log_loss(xp: Library, scores: Array, targets: Array) -> tuple[Array, Array]:
    """Log losses (K, b) and their derivatives by the scores (K, k, b)."""
    if scores.shape[1] == 1:  # both tails exactly: no difference of nearly equal numbers
        small = xp.exp(-abs(scores))
        up, one = scores > 0, xp.ones_like(small)
        yes, no = xp.where(up, one, small) / (1 + small), xp.where(up, small, one) / (1 + small)
        rise, tail = xp.where(up, scores, 0 * one), xp.log1p(small)
        losses = (1 - targets) * (rise + tail) + targets * (rise - scores + tail)
        return losses[:, 0], (1 - targets) * yes - targets * no
    relative = scores - xp.amax(scores, 1)[:, None]
    total = xp.exp(relative).sum(1)[:, None]
    losses = (targets * (xp.log(total) - relative)).sum(1)
    return losses, xp.exp(relative) / total - targets


def read_out(store: TokenStore, weights: Sequence[Weights], centre: Float) -> tuple[Float, Float]:
    """Attention of all tokens (K, h, N) and scores (K, k, n) of K fitted probes, in one read.

    weights are for the tokens as given; centre (d,): subtracted before products, to keep their digits.
    """
    where = arithmetic(store.rows)
    d, h, k = weights[0].head.shape
    columns = np.concatenate([np.hstack([w.prompts, w.head.reshape(d, h * k)]) for w in weights], 1)
    intercepts = np.stack([w.about(centre).intercept for w in weights])
    attention, scores = [], []
    with where.scope(), quiet():
        across, middle = map(where.factor, (columns, centre))
        intercept = where.put(intercepts)
        for span in store.spans(where.part):
            _, products = where.through(store.read(span), middle, across)
            seen = read_products(where, where.segments(store.lengths[span]), products, intercept, h)
            attention.append(where.numpy(seen.attention))
            scores.append(where.numpy(seen.scores))
            if not np.isfinite(scores[-1]).all():
                name_the_bad(store, span)
    return np.concatenate(attention, -1), np.concatenate(scores, -1)


def probabilities(scores: Float) -> Float:
    """Class probabilities (n, classes) from scores (n, k)."""
    if scores.shape[1] == 1:
        return np.hstack([expit(-scores), expit(scores)])
    return np.asarray(softmax(scores, axis=1))
