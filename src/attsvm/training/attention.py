"""Softmax attention, its gradient and its excess loss, all relative to the winning token.

The usual formulas cancel to zero once softmax saturates. Here every number that tends to zero is a
sum of terms that each carry the factor s_t of a losing token, kept as (mantissa, log scale).
The scale is that of the strongest token that pulls; one with the score of the winner does not.
A compiler may compute a number twice and round it differently, x·y − z in one rounding. Therefore no
difference is compared with zero: tokens are told apart by stored numbers or by integers (Data.alike).
Axes are counted from the front: every array may carry the runs behind its own axes (see runs.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import Array

from attsvm.training.data import Data
from attsvm.training.losses import Loss
from attsvm.training.prediction_heads import Head, Linear, SquaredError
from attsvm.training.programs import where
from attsvm.training.runs import IN_KERNEL, barrier, contract, each


class Scaled(NamedTuple):
    """The array mantissa · e^log_scale, which float64 may be unable to hold."""

    mantissa: Array
    log_scale: Array


class Pulling(NamedTuple):
    """The tokens that pull, in their own scale: those whose score is not the winner's."""

    tokens: Array  # (n, T) bool
    g: Array  # (n, T) score minus the winner's, zero for the others
    top: Array  # (n,) the largest relative logit of those that pull, −∞ where none does
    shares: Array  # (n, T) e^(relative_t − top); e^relative_t of the others

    @property
    def odds(self) -> Array:
        """e^relative_t of all tokens (n, T)."""
        return self.shares * where(self.tokens, jnp.exp(self.top)[:, None], 1)


class Attention(NamedTuple):
    """Attention of n queries: the losing tokens relative to the winner, s_t = odds_t / (1 + total)."""

    relative: Array  # (n, T) logit minus the winner's, −∞ where masked
    winner: Array  # (n, T) bool, the first largest logit of each row
    odds: Array  # (n, T) e^relative_t of the losing tokens, zero for the winner
    total: Array  # (n,) their sum
    pulling: Pulling | None = None  # where the scores were known before

    @property
    def losing(self) -> Array:
        """s_t of the losing tokens (n, T), zero for the winner."""
        return self.odds * (1 / (1 + self.total))[:, None]

    @property
    def log_weights(self) -> Array:
        return self.relative - jnp.log1p(self.total)[:, None]


class Reading(NamedTuple):
    """What the head reads: the margin f = Y h(r) (n,) and the scores γ_t = Y ∇h(r)ᵀ value_t (n, T).

    For a squared error, which vanishes with the losing tokens: the scores are divided by e^log_scale (n,),
    and log_drop (n,) is log(−f); NaN where no token is at the target.
    """

    margin: Array
    scores: Array
    log_scale: Array | None = None
    log_drop: Array | None = None


def directions(data: Data, W: Array) -> Array:
    """W z of every example (n, d), for W (d, e)."""
    return contract("ne,de->nd", data.queries, W, data.fence)


def attend(data: Data, W: Array, radius: Array | float = 1.0, scores: Array | None = None) -> Attention:
    """Attention s = softmax(a) of the logits a_t = radius · x_tᵀ W z."""
    return attend_along(data, directions(data, W), radius, scores)


def attend_along(
    data: Data, directions: Array, radius: Array | float = 1.0, scores: Array | None = None
) -> Attention:
    """The same for the directions W z; scores, where they are known, save a second exponential per token."""
    return softmax_of(data, radius * contract("ntd,nd->nt", data.keys, directions, data.fence), scores)


def softmax_of(data: Data, logits: Array, scores: Array | None = None) -> Attention:
    """The same for the logits (n, T)."""
    logits = unmasked(data, logits, -jnp.inf)
    logits = _computed_once(data, logits)
    winner, largest = _first_largest(logits)
    relative = logits - largest
    pulling = None if scores is None else _pulling(data, relative, winner, scores)
    # Zero for the winner, and NaN where its logit is not finite: the maximum in a GPU's kernel ignores NaN.
    odds = where(winner, 0 * relative, jnp.exp(relative) if pulling is None else pulling.odds)
    return Attention(relative, winner, odds, odds.sum(1), pulling)


def _computed_once(data: Data, x: Array) -> Array:
    """Compute an array once for its maximum and the comparison with it: XLA for GPUs would do so twice."""
    return x if data.fence is IN_KERNEL else barrier(x)


def _first_largest(x: Array) -> tuple[Array, Array]:
    """Which entry of each row of x (n, T) is the first largest, bool (n, T), and that entry (n, 1)."""
    largest = x.max(1, keepdims=True)
    position = jnp.arange(x.shape[1], dtype=jnp.int32).reshape(-1, *[1] * (x.ndim - 2))
    first = where(x == largest, position, position.size).min(1, keepdims=True)
    return position == first, largest


def _pulling(data: Data, relative: Array, winner: Array, scores: Array) -> Pulling:
    best = where(winner, scores, 0).sum(1, keepdims=True)
    tokens = ~_tied(data, scores, winner, best)
    top = where(tokens, relative, -jnp.inf).max(1)
    scale = where(top > -jnp.inf, top, 0)[:, None]
    exponents = where(tokens, relative - scale, relative)
    # A GPU may decide a near tie anew here and otherwise than above, where the scale was found: no overflow.
    shares = jnp.exp(where(exponents > 0, 0, exponents))
    return Pulling(tokens, where(tokens, scores - best, 0), top, shares)


def _tied(data: Data, scores: Array, token: Array, score: Array) -> Array:
    """Tokens (n, T) that score as one token of each example does; one: bool (n, T), its score (n, 1)."""
    tied = (scores == score) | token  # which a compiler may have computed twice
    if data.alike is None:
        return tied
    return tied | (data.alike == where(token, data.alike, 0).sum(1, keepdims=True))


def pooled(data: Data, softmax: Attention) -> Array:
    """The attended value r = value_a + Σ_t s_t (value_t − value_a), (n, c)."""
    # The winner's weight is 1 − Σ losing: exact, while the softmax weights need not sum to one.
    losing = softmax.losing
    weights = where(softmax.winner, 1 - losing.sum(1, keepdims=True), losing)
    return contract("nt,ntc->nc", weights, values_of(data), data.fence)


def fixed_scores(data: Data, v: Array) -> Array:
    """Scores of a linear head, γ_t = Y vᵀ value_t (n, T); zero where masked."""
    return data.labels[:, None] * contract("ntc,c->nt", values_of(data), v, data.fence)


def known_scores(data: Data, head: Head, scores: Array | None) -> Array | None:
    """Scores that do not depend on the attention: those of a linear head, which may be there already."""
    return fixed_scores(data, head.v) if scores is None and isinstance(head, Linear) else scores


def read(data: Data, softmax: Attention, head: Head, scores: Array | None = None) -> Reading:
    """Margin and token scores of a head; `scores` saves a linear head the pass over the values."""
    if isinstance(head, Linear):
        scores = fixed_scores(data, head.v) if scores is None else scores
        best = where(softmax.winner, scores, 0).sum(1)
        if (pulling := softmax.pulling) is None:
            drop = (softmax.losing * (scores - best[:, None])).sum(1)
        else:  # a sum that the gradient takes, too
            drop = jnp.exp(pulling.top) / (1 + softmax.total) * (pulling.shares * pulling.g).sum(1)
        return Reading(best + drop, scores)
    squared = isinstance(head, SquaredError)
    r, log_scale, attained = _residual(data, softmax) if squared else (pooled(data, softmax), None, None)
    last = r.ndim == 3
    value, slope = (each(method, last)(head, r) for method in (type(head).value, type(head).gradient))
    scores = contract("ntc,nc->nt", values_of(data), slope, data.fence) * data.labels[:, None]
    if log_scale is None or attained is None:
        return Reading(data.labels * value, scores)
    log_drop = where(attained, jnp.log(-value) + 2 * log_scale, jnp.nan)
    return Reading(value * jnp.exp(2 * log_scale), scores, log_scale, log_drop)


def _residual(data: Data, softmax: Attention) -> tuple[Array, Array, Array]:
    """Σ_t s_t value_t of values that are zero at a target, as a mantissa (n, c) and log scales (n,).

    The scale is that of the strongest token off the target: tokens on the target add nothing. The third
    result says which examples have a token on the target (n,).
    """
    values = values_of(data)
    off = (values != 0).any(2)
    strongest = where(unmasked(data, off, False), softmax.relative, -jnp.inf).max(1)
    log_scale = where(strongest > -jnp.inf, strongest, 0)
    weights = where(off, jnp.exp(softmax.relative - log_scale[:, None]), 0) / (1 + softmax.total)[:, None]
    return contract("nt,ntc->nc", weights, values, data.fence), log_scale, unmasked(data, ~off, False).any(1)


def pulls(data: Data, softmax: Attention, reading: Reading) -> Scaled:
    """Gradient of each margin in W z, relative to the winning token a: mantissa (n, d), log scale (n,).

        ∂f/∂(W z) = Σ_{t≠a} s_t (g_t − ḡ)(x_t − x_a),     g_t = γ_t − γ_a,   ḡ = Σ_{t≠a} s_t g_t

    The factor e^log_scale may underflow.
    """
    coefficients, top = _coefficients(data, softmax, reading)
    return Scaled(_along(data, softmax, coefficients), top)


def _coefficients(data: Data, softmax: Attention, reading: Reading) -> tuple[Array, Array]:
    """s_t (g_t − ḡ) of the losing tokens (n, T) without a factor e^top; top (n,), −∞ where none pulls."""
    pulling = softmax.pulling or _pulling(data, softmax.relative, softmax.winner, reading.scores)
    # A token that ties with the winner has a large s_t, but its g_t is zero; ḡ is small nevertheless.
    share, pull = (1 / (1 + softmax.total))[:, None], pulling.shares * pulling.g
    mean = share * pull.sum(1, keepdims=True)
    return share * (pull - softmax.odds * mean), pulling.top


def _along(data: Data, softmax: Attention, losing: Array) -> Array:
    """Σ_{t≠a} c_t (x_t − x_a) (n, d) of coefficients c of the tokens that lose (n, T)."""
    # Winner's coefficient = −(sum of the others): the direct formula cancels to 0 in saturation.
    coefficients = where(softmax.winner, -losing.sum(1, keepdims=True), losing)
    return contract("nt,ntd->nd", coefficients, data.keys, data.fence)


def gradient(
    data: Data, softmax: Attention, reading: Reading, loss: Loss, pulled: Scaled | None = None
) -> Scaled:
    """Gradient of the mean loss in W: 1/n Σ_i ℓ'(f_i) ∂f_i/∂(W z_i) z_iᵀ.

    No difference can cancel. s_t ℓ' enters as share_t · e^(top + log|ℓ'|) with the largest exponent factored
    out: mantissa (d, e), true gradient mantissa · e^log_scale.
    pulled: the pulls, if they are known. Otherwise ℓ' is multiplied into the coefficients of tokens, which
        are fewer numbers.
    """
    losing, top = _coefficients(data, softmax, reading) if pulled is None else pulled
    row, log_scale = slopes(data, top, reading, loss)
    along_query = _along(data, softmax, row * losing) if pulled is None else row * losing
    return Scaled(contract("nd,ne->de", along_query, data.queries, data.fence), log_scale)


def slopes(data: Data, top: Array, reading: Reading, loss: Loss) -> tuple[Array, Array]:
    """ℓ' of each example times e^top, over n: a factor per example (n, 1) and the log scale of all."""
    log_slope = loss.log_slope(reading.margin)
    log_slope = log_slope if reading.log_scale is None else log_slope + reading.log_scale
    row, log_scale = _factored(top, log_slope)
    return -_shared(data, row)[:, None], log_scale


def pulls_of_logits(data: Data, softmax: Attention, reading: Reading) -> Scaled:
    """Gradient of each margin in its logits, mantissa (n, T) and log scale (n,)."""
    losing, top = _coefficients(data, softmax, reading)
    return Scaled(where(softmax.winner, -losing.sum(1, keepdims=True), losing), top)


def head_gradient(
    data: Data, softmax: Attention, reading: Reading, loss: Loss, attended: Array | None = None
) -> Scaled:
    """Gradient of the mean loss in the linear head: 1/n Σ_i ℓ'(f_i) Y_i r_i, mantissa (c,).

    attended: the attended values r (n, c), where they are known.
    """
    attended = pooled(data, softmax) if attended is None else attended
    log_slope = loss.log_slope(reading.margin)
    # An example whose attended value is zero has no gradient; its slope would hide smaller ones past
    # e^(−745).
    log_slope = where((attended != 0).any(1), log_slope, -jnp.inf)
    largest = log_slope.max(0)
    log_scale = where(largest > -jnp.inf, largest, 0)
    weights = -_shared(data, jnp.exp(log_slope - log_scale) * data.labels)
    return Scaled(contract("n,nc->c", weights, attended, data.fence), log_scale)


def mean_loss(data: Data, margin: Array, loss: Loss) -> Array:
    """L = 1/n Σ_i ℓ(f_i)."""
    value = loss.value(margin)
    return value.mean(0) if data.share is None else (data.share * value).sum(0)


def drops(data: Data, softmax: Attention, reading: Reading) -> tuple[Array, Array]:
    """γ_best of each example (n,), and how far its margin is below, in logarithms (n,).

        γ_best − f = Σ_t s_t (γ_best − γ_t):

    a sum of nonnegative terms, taken in logarithms, so it is exact at every scale.
    """
    if reading.log_drop is not None:
        return jnp.zeros_like(reading.margin), reading.log_drop
    scores = _computed_once(data, reading.scores)
    first, best = _first_largest(unmasked(data, scores, -jnp.inf))
    gap = where(_tied(data, scores, first, best), 0, unmasked(data, best - scores, 0))
    return best[:, 0], jax.nn.logsumexp(softmax.log_weights + jnp.log(gap), axis=1)


def log_excess(data: Data, best: Array, log_drop: Array, loss: Loss) -> Array:
    """log(L − L*) of a head whose best tokens are known, L* = 1/n Σ_i ℓ(γ_best) their loss."""
    increase = loss.log_increase(best, log_drop)
    if data.share is not None:
        return jax.nn.logsumexp(increase + jnp.log(data.share), axis=0)
    return jax.nn.logsumexp(increase, axis=0) - math.log(
        data.labels.shape[0]
    )  # a number: no float32 in kernels


def unmasked(data: Data, per_token: Array, fill: float) -> Array:
    """Numbers (n, T) with another in the place of masked tokens."""
    return per_token if data.mask is None else where(data.mask, per_token, fill)


def added(a: Scaled, b: Scaled) -> Scaled:
    """The sum of two arrays in log scale; the scale of one that is zero does not count."""
    scales = [where((x.mantissa != 0).any(), x.log_scale, -jnp.inf) for x in (a, b)]
    top = jnp.maximum(*scales)
    top = where(top > -jnp.inf, top, 0)
    terms = (jnp.exp(scale - top) * x.mantissa for scale, x in zip(scales, (a, b), strict=True))
    return Scaled(sum(terms), top)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- for the compiled loop


@runtime_checkable
class Mechanism(Protocol):
    """From logits to weights of tokens, for `train(attention=)`: a frozen record.

    name: of the function from logits to weights, as a Path holds it.
    attend(data, W, scores): the weights of the tokens; scores (n, T), where they are known.
    read, gradient, pooled, drops: as the functions of attention.py for softmax. A gradient (mantissa, log
        scale) survives saturation.

    One run at a time, on all examples at once: `train` maps a mechanism over the runs.
    """

    @property
    def name(self) -> str: ...
    def attend(self, data: Data, W: Array, scores: Array | None) -> Any: ...
    def read(self, data: Data, weights: Any, head: Head, scores: Array | None) -> Reading: ...
    def gradient(self, data: Data, W: Array, weights: Any, reading: Reading, loss: Loss) -> Scaled: ...
    def pooled(self, data: Data, weights: Any) -> Array: ...
    def drops(self, data: Data, weights: Any, reading: Reading) -> tuple[Array, Array]: ...


@dataclass(frozen=True)
class Softmax:
    """s_t = e^(a_t) / Σ_u e^(a_u), the attention of the papers."""

    @property
    def name(self) -> str:
        return "softmax"

    def attend(self, data: Data, W: Array, scores: Array | None) -> Any:
        return attend(data, W, scores=scores)

    def read(self, data: Data, weights: Any, head: Head, scores: Array | None) -> Reading:
        return read(data, weights, head, scores)

    def gradient(self, data: Data, W: Array, weights: Any, reading: Reading, loss: Loss) -> Scaled:
        return gradient(data, weights, reading, loss)

    def pooled(self, data: Data, weights: Any) -> Array:
        return pooled(data, weights)

    def drops(self, data: Data, weights: Any, reading: Reading) -> tuple[Array, Array]:
        return drops(data, weights, reading)


SOFTMAX = Softmax()


def check(mechanism: object) -> None:
    """Refuse what is not a mechanism."""
    if isinstance(mechanism, type) or not isinstance(mechanism, Mechanism):
        raise TypeError(
            f"attention is {mechanism!r}. Pass a Mechanism of attsvm.training.attention, or nothing: softmax."
        )


# ---------------------------------------------------------------------- details


def values_of(data: Data) -> Array:
    return data.keys if data.values is None else data.values


def _shared(data: Data, per_example: Array) -> Array:
    return per_example / data.labels.shape[0] if data.share is None else per_example * data.share


def _factored(top: Array, log_slope: Array) -> tuple[Array, Array]:
    """e^(top + log_slope) as factors (n,) up to 1, and the log scale.

    The scale is split into a token part and a row part and each is subtracted from its own kind:
    adding −5000.1 and −0.7 first would round away four digits of the ratio of two tokens.
    """
    token, largest = top.max(0), (top + log_slope).max(0)
    any_pull = jnp.isfinite(largest)  # False where no token of any example pulls: factors 0, scale 1
    token, log_scale = where(any_pull, token, 0), where(any_pull, largest, 0)
    return jnp.exp((top - token) + (log_slope - (log_scale - token))), log_scale
