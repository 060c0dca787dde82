"""Softmax attention, its gradient and its excess loss, all relative to the winning token.

The usual formulas cancel to zero once softmax saturates. Here every number that tends to zero is a
sum of terms that each carry the factor s_t of a losing token, kept as (mantissa, log scale).
All functions act on one run; the training loop maps them over runs.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attsvm.tokens import Tokens
from attsvm.training.heads import Head, Linear
from attsvm.training.losses import Loss


class Data(NamedTuple):
    """The arrays of Tokens as JAX arrays; values is None where they are the keys."""

    keys: Array  # (n, T, d)
    queries: Array  # (n, e)
    labels: Array  # (n,)
    mask: Array  # (n, T)
    values: Array | None  # (n, T, c)


class Scaled(NamedTuple):
    """The array mantissa · e^log_scale, which float64 may be unable to hold."""

    mantissa: Array
    log_scale: Array


class Attention(NamedTuple):
    """Attention of n queries: log s_t = relative_t − log_total."""

    relative: Array  # (n, T) logit minus the winner's, −∞ where masked
    log_total: Array  # (n,) log Σ_t e^relative_t, between 0 and log T
    winner: Array  # (n, T) bool, the first largest logit of each row
    losing: Array  # (n, T) s_t of the losing tokens, zero for the winner

    @property
    def log_weights(self) -> Array:
        return self.relative - self.log_total[:, None]


class Reading(NamedTuple):
    """What the head reads: the margin f = Y h(r) (n,) and the scores γ_t = Y ∇h(r)ᵀ value_t (n, T)."""

    margin: Array
    scores: Array


def as_data(tokens: Tokens) -> Data:
    """The tokens on JAX's default device. Call it inside the scope that sets the precision."""
    values = None if tokens.values is tokens.keys else tokens.values
    # jnp.asarray would compile a program for every shape.
    return Data(*jax.device_put((tokens.keys, tokens.queries, tokens.labels, tokens.mask, values)))


def attend(data: Data, W: Array, radius: Array | float = 1.0) -> Attention:
    """Attention s = softmax(a) of the logits a_t = radius · x_tᵀ W z, for W (d, e)."""
    logits = radius * jnp.einsum("ntd,nd->nt", data.keys, data.queries @ W.T)
    logits = jnp.where(data.mask, logits, -jnp.inf)
    relative = logits - logits.max(-1, keepdims=True)
    position = jnp.arange(relative.shape[-1])
    first = jnp.where(relative == 0, position, position.size).min(-1, keepdims=True)
    winner = position == first
    losing = jnp.where(winner, 0, jnp.exp(relative))
    total = losing.sum(-1)
    return Attention(relative, jnp.log1p(total), winner, losing / (1 + total[:, None]))


def pooled(data: Data, look: Attention) -> Array:
    """The attended value r = value_a + Σ_t s_t (value_t − value_a), (n, c)."""
    values = data.keys if data.values is None else data.values
    # The winner's weight is 1 − Σ losing: exact, while the softmax weights need not sum to one.
    weights = jnp.where(look.winner, 1 - look.losing.sum(-1, keepdims=True), look.losing)
    return jnp.einsum("nt,ntc->nc", weights, values)


def fixed_scores(data: Data, v: Array) -> Array:
    """Scores of a linear head, γ_t = Y vᵀ value_t (n, T); zero where masked."""
    values = data.keys if data.values is None else data.values
    return data.labels[:, None] * (values @ v)


def read(data: Data, look: Attention, head: Head, scores: Array | None = None) -> Reading:
    """Margin and token scores of a head; `scores` saves a linear head the pass over the values."""
    if isinstance(head, Linear):
        scores = fixed_scores(data, head.v) if scores is None else scores
        best = _of_winner(look, scores)
        drop = (look.losing * (scores - best[:, None])).sum(-1)
        return Reading(best + drop, scores)
    values = data.keys if data.values is None else data.values
    r = pooled(data, look)
    scores = jnp.einsum("ntc,nc->nt", values, head.gradient(r)) * data.labels[:, None]
    return Reading(data.labels * head.value(r), scores)


def gradient(data: Data, look: Attention, reading: Reading, loss: Loss) -> Scaled:
    """Gradient of the mean loss in W, relative to the winning token a of each example.

        g_t = γ_t − γ_a,   ḡ = Σ_{t≠a} s_t g_t
        ∂L/∂W = 1/n Σ_i ℓ'(f_i) Σ_{t≠a} s_t (g_t − ḡ)(x_t − x_a) z_iᵀ

    Nothing is subtracted that could cancel, and s_t ℓ' enters as e^(log s_t + log|ℓ'|) with the
    largest exponent factored out: mantissa (d, e), true gradient mantissa · e^log_scale.
    """
    n = data.labels.shape[0]
    relative_scores = reading.scores - _of_winner(look, reading.scores)[:, None]
    mean = (look.losing * relative_scores).sum(-1, keepdims=True)
    factor, log_scale = _factored(look, loss.log_slope(reading.margin) - look.log_total)
    losing = -factor * (relative_scores - mean) / n
    # Winner's coefficient = −(sum of the others): the direct formula cancels to 0 in saturation.
    coefficients = jnp.where(look.winner, -losing.sum(-1, keepdims=True), losing)
    along_query = jnp.einsum("nt,ntd->nd", coefficients, data.keys)
    return Scaled(along_query.T @ data.queries, log_scale)


def head_gradient(data: Data, look: Attention, reading: Reading, loss: Loss) -> Scaled:
    """Gradient of the mean loss in the linear head: 1/n Σ_i ℓ'(f_i) Y_i r_i, mantissa (c,)."""
    log_slope = loss.log_slope(reading.margin)
    log_scale = log_slope.max()
    weights = -jnp.exp(log_slope - log_scale) * data.labels / data.labels.shape[0]
    return Scaled(weights @ pooled(data, look), log_scale)


def mean_loss(reading: Reading, loss: Loss) -> Array:
    """L = 1/n Σ_i ℓ(f_i)."""
    return loss.value(reading.margin).mean()


def log_excess(data: Data, look: Attention, scores: Array, loss: Loss) -> Array:
    """log(L − L*) of a linear head, L* = 1/n Σ_i ℓ(γ_best) the loss of the best tokens.

        γ_best − f = Σ_t s_t (γ_best − γ_t):

    a sum of nonnegative terms, taken in logarithms, so it is exact at every scale.
    """
    best = jnp.where(data.mask, scores, -jnp.inf).max(-1)
    gap = jnp.where(data.mask, best[:, None] - scores, 0)
    log_drop = jax.nn.logsumexp(look.log_weights + jnp.log(gap), axis=-1)
    increase = loss.log_increase(best, log_drop)
    return jax.nn.logsumexp(increase) - jnp.log(data.labels.shape[0])


# ---------------------------------------------------------------------- details


def _of_winner(look: Attention, per_token: Array) -> Array:
    return jnp.where(look.winner, per_token, 0).sum(-1)


def _factored(look: Attention, log_row: Array) -> tuple[Array, Array]:
    """e^(relative_t + log_row) of the losing tokens as (n, T) factors up to 1, and the log scale.

    The scale is split into a token part and a row part and each is subtracted from its own kind:
    adding −5000.1 and −0.7 first would round away four digits of the ratio of two tokens.
    """
    relative = jnp.where(look.winner, -jnp.inf, look.relative)
    token, largest = relative.max(), (relative + log_row[:, None]).max()
    some = jnp.isfinite(largest)  # False where no example has a losing token: factors 0, scale 1
    token, log_scale = jnp.where(some, token, 0), jnp.where(some, largest, 0)
    return jnp.exp((relative - token) + (log_row - (log_scale - token))[:, None]), log_scale
