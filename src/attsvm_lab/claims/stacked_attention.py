"""Several layers of softmax attention, and a gradient of all of them that survives saturation.

Training in the library has one layer. A stack needs what one layer needs, and more: every query of a layer
has its own factor, the attention that the layers above pay to its output.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import attsvm as att
from attsvm.numbers import Bool, Float
from attsvm_lab.claims.prompt_instances import log_slope


class Layer(NamedTuple):
    """What one layer did: inputs (m, n, T, d), queries (m, n, S, d), and attention relative to the winner."""

    inputs: Float
    queries: Float
    directions: Float  # (m, n, S, d): W q
    relative: Float  # (m, n, S, T): logit minus the winner's
    winner: Bool  # (m, n, S, T)
    tied: Bool  # (m, n, S, T): inputs equal to the winner, bit by bit
    log_weights: Float  # (m, n, S, T)
    outputs: Float  # (m, n, S, d)

    @property
    def attention(self) -> Float:
        return np.asarray(np.exp(self.log_weights))


class Gradient(NamedTuple):
    """A gradient in every layer's W: mantissa (m, L, d, d) · e^log_scale (m, L), −∞ where no token pulls."""

    mantissa: Float
    log_scale: Float


def forward(tokens: att.Tokens, W: Float, residual: bool = False) -> list[Layer]:
    """All layers of the weights W (m, L, d, d), for tokens with a runs axis (m, n, T, d).

    Every token is a query of every layer but the last, whose queries are those of the tokens; it reads the
    outputs of the layer before. residual: an output is added to its query, except in the last layer.
    """
    layers: list[Layer] = []
    inputs, depth = tokens.keys, W.shape[1]
    for level in range(depth):
        last = level == depth - 1
        queries = tokens.queries[:, :, None] if last else inputs
        layer = _attend(inputs, queries, W[:, level])
        layers.append(layer if last or not residual else layer._replace(outputs=queries + layer.outputs))
        inputs = layers[-1].outputs
    return layers


def _attend(inputs: Float, queries: Float, W: Float) -> Layer:
    directions = queries @ np.swapaxes(W, -1, -2)[:, None]
    logits = directions @ np.swapaxes(inputs, -1, -2)
    winner = np.arange(logits.shape[-1]) == logits.argmax(-1)[..., None]
    relative = logits - logits.max(-1, keepdims=True)
    odds = np.where(winner, 0.0, np.exp(relative))
    total = odds.sum(-1, keepdims=True)
    # Saturated queries whose winners are equal have equal outputs, bit by bit, and tie in the layer above:
    # the winner has the weight of its ties, and 1 − Σ of the others.
    winning = np.where(winner[..., None], inputs[:, :, None], 0.0).sum(-2, keepdims=True)
    tied = (inputs[:, :, None] == winning).all(-1)
    others = np.where(tied, 0.0, odds / (1 + total))
    weights = np.where(winner, 1 - others.sum(-1, keepdims=True), others)
    log_weights = relative - np.log1p(total)
    return Layer(inputs, queries, directions, relative, winner, tied, log_weights, weights @ inputs)


def gradient(tokens: att.Tokens, v: Float, W: Float, residual: bool = False) -> Gradient:
    """Minus the gradient of the mean logistic loss in the weights of all layers, for heads v (m, d).

    From the top down every query has the slope of the loss in its output, as p · e^log_scale. With
    g_t = pᵀ(x_t − x_winner), the pull on the logit of token t is s_t (g_t − ḡ), ḡ = Σ s_t g_t, as in
    training: each pull keeps the scale of its own s_t. The slope of a layer whose inputs nearly tie is known
    to the rounding of all layers together.
    """
    layers = forward(tokens, W, residual)
    labels = tokens.labels[..., None]
    margin = labels * np.einsum("mnsd,md->mns", layers[-1].outputs, v)
    slopes: Float = labels[..., None] * v[:, None, None, :]
    scale = log_slope(margin)
    pieces: list[tuple[Float, Float]] = []
    for level in range(len(layers) - 1, -1, -1):
        layer = layers[level]
        top, coefficients, gains = _pulls(layer, slopes)
        rows = coefficients @ layer.inputs
        pieces.append(_outer(rows, scale + top, layer.queries))
        if level:
            slopes, scale = _below(
                layer, slopes, scale, gains, rows, top, W[:, level], level < len(layers) - 1, residual
            )
    mantissa, log_scale = (np.stack(part, axis=1) for part in zip(*pieces[::-1], strict=True))
    return Gradient(mantissa, log_scale)


def _pulls(layer: Layer, slopes: Float) -> tuple[Float, Float, Float]:
    """Pulls (m, n, S, T) on logits without a factor e^top; top (m, n, S); and g_t − ḡ (m, n, S, T).

    The pulls of tokens that tie with the winner are added to its own: their inputs are the same.
    """
    tied, scores = layer.tied, slopes @ np.swapaxes(layer.inputs, -1, -2)
    g = np.where(tied, 0.0, scores - np.where(layer.winner, scores, 0.0).sum(-1, keepdims=True))
    top = np.where(tied, -np.inf, layer.relative).max(-1)
    finite = np.where(np.isfinite(top), top, 0.0)[..., None]
    shares = np.where(tied, 0.0, np.exp(np.minimum(layer.relative - finite, 0.0)))
    share = np.where(layer.winner, np.exp(layer.log_weights), 0.0).sum(-1, keepdims=True)
    mean = share * (shares * g).sum(-1, keepdims=True)
    losing = np.where(tied, 0.0, share * (shares * g - np.exp(layer.relative) * mean))
    coefficients = np.where(layer.winner, -losing.sum(-1, keepdims=True), losing)
    return top, coefficients, g - np.exp(finite) * mean


def _below(
    layer: Layer,
    slopes: Float,
    scale: Float,
    gains: Float,
    rows: Float,
    top: Float,
    W: Float,
    queried: bool,
    residual: bool,
) -> tuple[Float, Float]:
    """Slopes of the loss in the layer's inputs: through attended values and keys, and through queries.

    Σ_t e^scale_t s_tu (p_t + (g_tu − ḡ_t) W q_t) + Wᵀ Σ_t c_ut x_t      (the second where inputs are queries)
    """
    exponents = np.swapaxes(scale[..., None] + layer.log_weights, -1, -2)  # (m, n, T, S)
    log_scale = exponents.max(-1)
    if queried:
        log_scale = np.maximum(log_scale, scale if residual else scale + top)
    shares = np.exp(exponents - log_scale[..., None])
    below = shares @ slopes + (shares * np.swapaxes(gains, -1, -2)) @ layer.directions
    if queried:
        below = below + np.exp(scale + top - log_scale)[..., None] * (rows @ W[:, None])
        if residual:
            below = below + np.exp(scale - log_scale)[..., None] * slopes
    return below, log_scale


def _outer(rows: Float, scale: Float, queries: Float) -> tuple[Float, Float]:
    """Σ e^scale row queryᵀ over examples and queries: mantissa (m, d, d), log scale (m,)."""
    largest = scale.max((-2, -1))  # −∞ of a layer in which no token pulls
    weights = np.exp(scale - np.where(np.isfinite(largest), largest, 0.0)[:, None, None])[..., None]
    runs, d = len(rows), rows.shape[-1]
    left, right = (weights * rows).reshape(runs, -1, d), queries.reshape(runs, -1, d)
    return np.swapaxes(left, -1, -2) @ right / rows.shape[1], largest


def train(
    tokens: att.Tokens,
    v: Float,
    W: Float,
    record: Sequence[int],
    *,
    residual: bool = False,
    apart: bool = False,
) -> Float:
    """Weights (m, k, L, d, d) after the recorded numbers of normalised steps of length one.

    A step is normalised over all layers together, or in each layer apart.
    """
    weights = []
    for step in range(1, max(record) + 1):
        ascent = gradient(tokens, v, W, residual)
        largest = ascent.log_scale if apart else ascent.log_scale.max(1, keepdims=True)
        shares = np.exp(ascent.log_scale - np.where(np.isfinite(largest), largest, 0.0))
        update = shares[..., None, None] * ascent.mantissa
        length = np.sqrt((update**2).sum((-2, -1) if apart else (-3, -2, -1), keepdims=True))
        W = W + update / np.where(length > 0, length, 1.0)
        if step in record:
            weights.append(W)
    return np.stack(weights, axis=1)
