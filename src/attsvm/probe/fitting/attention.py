"""The formula of a probe, for many of them at once: attention, scores, log loss and their derivatives.

For one fitted probe there is also the running form: the scores of a sequence while it grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import expit, softmax

from attsvm.numbers import Array, Bool, Float
from attsvm.probe.data.backends import Backend, Library, SegmentSums, backend_of
from attsvm.probe.data.store import TokenStore, raise_not_finite

LATER = 1000.0
"""Added to the logits from one token to the next by a head that reads the last token: e^(−1000) is 0."""


class Weights(NamedTuple):
    """prompts (d, h), head (d, h, k) and intercept (k,): h attention heads, k scores.

        score_k = Σ_h Σ_t a_th (v_hk · x_t) + b_k,   a_h = softmax(X p_h)

    k = 1 for two classes (the score of the second), else one score per class. last (h,): which heads read the
    last token (their prompts are 0); None: no head does.
    """

    prompts: Float
    head: Float
    intercept: Float
    last: Bool | None = None

    @property
    def slopes(self) -> Float:
        """What is added to the logits of each head from one token to the next (h,)."""
        heads = self.prompts.shape[1]
        return np.zeros(heads) if self.last is None else np.where(self.last, LATER, 0.0)

    def about(self, centre: Float) -> Weights:
        """The same for tokens from which a centre (d,) was subtracted, which changes no attention."""
        return self._replace(intercept=self.intercept + np.einsum("d,dhk->k", centre, self.head))

    def on(self, x: Float) -> tuple[Float, Float]:
        """Logits (T, h) and token scores (T, h, k) of tokens (T, d). The place of the next token is 0."""
        d, h, k = self.head.shape
        logits = x @ self.prompts + np.multiply.outer(np.arange(-len(x), 0), self.slopes)
        return logits, (x @ self.head.reshape(d, h * k)).reshape(-1, h, k)


class ProbeOutput(NamedTuple):
    """Of a fitted probe: the features of all tokens, their attention (N, h), and scores (n, k)."""

    features: TokenStore
    attention: Float
    scores: Float


class BlockOutput(NamedTuple):
    """Of K probes on a block: attention (K, h, m), token_scores (K, h, k, m), scores (K, k, b)."""

    attention: Array
    token_scores: Array
    scores: Array


def attend(
    backend: Backend,
    segments: SegmentSums,
    products: Array,
    intercept: Array,
    h: int,
    by_place: Array | None = None,
) -> BlockOutput:
    """Attention and scores from the products (m, K·c) of a block. Pooled vectors are never formed.

    v · Σ a_t x_t = Σ a_t (v · x_t)

    by_place (K, h, m): what the logits get by the places of the tokens.
    """
    xp, (K, k) = backend.xp, intercept.shape
    products = backend.widened(products.T).reshape(K, h * (1 + k), -1)
    logits, token_scores = products[:, :h], products[:, h:].reshape(K, h, k, -1)
    if by_place is not None:
        logits = logits + by_place
    relative = xp.exp(logits - segments.spread(segments.top(logits)))
    attention = relative / segments.spread(segments.total(relative))
    scores = segments.total((attention[:, :, None] * token_scores).sum(1)) + intercept[:, :, None]
    return BlockOutput(attention, token_scores, scores)


def token_coefficients(
    xp: Library, segments: SegmentSums, output: BlockOutput, score_gradient: Array
) -> Array:
    """Coefficients of every token in the gradients of prompts (K, h, m) and heads (K, h·k, m), joined."""
    K, _, m = output.attention.shape
    score_gradient = segments.spread(score_gradient)
    attention_gradient = (output.token_scores * score_gradient[:, None]).sum(2)
    of_prompts = softmax_gradient(xp, segments, output.attention, attention_gradient)
    of_heads = (output.attention[:, :, None] * score_gradient[:, None]).reshape(K, -1, m)
    return xp.concatenate([of_prompts, of_heads], 1)


def softmax_gradient(xp: Library, segments: SegmentSums, attention: Array, gradient: Array) -> Array:
    """Gradient by the logits, a_t (g_t − Σ a g) (K, h, m), from the gradient g by the attention a."""
    coefficient = attention * (gradient - segments.spread(segments.total(attention * gradient)))
    # Winner's coefficient = −(sum of the others): the direct formula cancels to 0 in saturation.
    winner = attention == segments.spread(segments.top(attention))
    losing = coefficient * ~winner
    unique = segments.spread(segments.total(winner * 1.0)) == 1
    return xp.where(winner & unique, -segments.spread(segments.total(losing)), coefficient)


def log_loss(xp: Library, scores: Array, targets: Array) -> tuple[Array, Array]:
    """Log losses (K, b) and their derivatives by the scores (K, k, b)."""
    if scores.shape[1] == 1:  # both tails exactly: no difference of nearly equal numbers
        small = xp.exp(-abs(scores))
        up, ones = scores > 0, xp.ones_like(small)
        yes, no = xp.where(up, ones, small) / (1 + small), xp.where(up, small, ones) / (1 + small)
        rise, tail = xp.where(up, scores, 0 * ones), xp.log1p(small)
        losses = (1 - targets) * (rise + tail) + targets * (rise - scores + tail)
        return losses[:, 0], (1 - targets) * yes - targets * no
    relative = scores - xp.amax(scores, 1)[:, None]
    total = xp.exp(relative).sum(1)[:, None]
    losses = (targets * (xp.log(total) - relative)).sum(1)
    return losses, xp.exp(relative) / total - targets


def read_out(store: TokenStore, weights: Sequence[Weights], centre: Float) -> tuple[Float, Float]:
    """Attention of all tokens (K, h, N) and scores (K, k, n) of K fitted probes, in one read.

    weights are for tokens as they come; centre (d,) is subtracted before products, which keeps their digits.
    """
    backend = backend_of(store.rows)
    d, h, k = weights[0].head.shape
    joined = np.concatenate([np.hstack([w.prompts, w.head.reshape(d, h * k)]) for w in weights], 1)
    slopes = [w.slopes for w in weights]
    attention, scores = [], []
    with backend.scope(), np.errstate(invalid="ignore", over="ignore"):
        matrix, middle = map(backend.operand, (joined, centre))
        subtracted = np.asarray(backend.numpy(middle), np.float64)  # the centre, rounded as the tokens are
        intercepts = np.stack([w.about(subtracted).intercept for w in weights])
        intercept = backend.put(intercepts)
        for span in store.spans(backend.block):
            _, products = backend.products(store.read(span), middle, matrix)
            lengths, by_place = store.lengths[span], None
            if np.any(slopes):
                places = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths), lengths)
                by_place = backend.put(np.multiply.outer(slopes, places))
            output = attend(backend, backend.segments(lengths), products, intercept, h, by_place)
            attention.append(backend.numpy(output.attention))
            scores.append(backend.numpy(output.scores))
            if not np.isfinite(scores[-1]).all():
                raise_not_finite(store, span)
    return np.concatenate(attention, -1), np.concatenate(scores, -1)


def probabilities(scores: Float) -> Float:
    """Class probabilities (n, classes) from scores (n, k)."""
    if scores.shape[1] == 1:
        return np.hstack([expit(-scores), expit(scores)])
    return np.asarray(softmax(scores, axis=1))


# ---------------------------------------------------------------------- streams


class StreamState(NamedTuple):
    """The softmax over the tokens so far, per head, in memory that does not grow with the sequence.

        top = max_t l_t,   total = Σ_t e^(l_t − top),   sums = Σ_t e^(l_t − top) (v · x_t)

    seen: tokens so far; top, total (h,); sums (h, k). Logits of heads that read the last token are relative
    to the place of the next token.
    """

    seen: int
    top: Float
    total: Float
    sums: Float


def start_stream(weights: Weights) -> StreamState:
    """The state before the first token."""
    _, h, k = weights.head.shape
    return StreamState(0, np.full(h, -np.inf), np.zeros(h), np.zeros((h, k)))


def extend_stream(
    state: StreamState, tokens: Float, weights: Weights, centre: Float
) -> tuple[StreamState, Float]:
    """The state after more tokens (m, d), and the scores (k,) of all tokens so far.

    The sums are rescaled to the new largest logit, so nothing overflows and the score is that of the softmax
    over all tokens. weights are for tokens as they come; centre (d,) as in `read_out`.
    Reference: Milakov, Gimelshein 2018, "Online normalizer calculation for softmax".
    """
    logits, values = weights.on(tokens - centre)
    before = state.top - len(tokens) * weights.slopes
    top = np.maximum(before, logits.max(0))
    rescaling, relative = np.exp(before - top), np.exp(logits - top)
    total = rescaling * state.total + relative.sum(0)
    sums = rescaling[:, None] * state.sums + np.einsum("th,thk->hk", relative, values)
    scores = (sums / total[:, None]).sum(0) + weights.about(centre).intercept
    return StreamState(state.seen + len(tokens), top, total, sums), scores


def checked_tokens(x: Array, width: int) -> Float:
    """One token (d,) or several (m, d), as float64 (m, d)."""
    if hasattr(x, "detach"):  # NumPy cannot convert torch's bfloat16
        x = x.detach().cpu().double().numpy()
    tokens = np.atleast_2d(np.asarray(x, dtype=np.float64))
    if tokens.ndim != 2 or tokens.shape[1] != width or not len(tokens):
        raise ValueError(f"x has shape {np.shape(x)}. Pass one token ({width},), or some (m, {width}).")
    if not np.isfinite(tokens).all():
        raise ValueError("x has an entry that is NaN or infinite. Leave the token out.")
    return tokens
