"""Kinds of attention: how logits become weights of tokens.

Two kinds are softmax attention on other tokens, so that all that is known of softmax holds for them:

* a learnt sink is one more token of value zero, whose logit is a number that is trained;
* a gate σ(uᵀz) on the output is softmax attention on every token twice, open and closed:

      σ(g) Σ_t s_t value_t = Σ_t (e^(a_t + g) value_t + e^(a_t) · 0) / Σ_t (e^(a_t + g) + e^(a_t)).

The others are mechanisms of their own (attsvm.training.attention.Mechanism). Each computes its weights, and
the gradient of each margin in the logits as (mantissa, log scale), which survives saturation where the kind
saturates. `train` trains all of them, `weights` gives the weights of the tokens at every record of a path.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import attsvm as att
from attsvm._support.validation import describe, is_finite
from attsvm.numbers import Float
from attsvm.training import attention
from attsvm.training.attention import SOFTMAX, Mechanism, Reading, Scaled, unmasked, values_of
from attsvm.training.data import Data
from attsvm.training.init import starting_point
from attsvm.training.losses import Loss
from attsvm.training.prediction_heads import Head
from attsvm.training.weights import Params


@runtime_checkable
class Kind(Protocol):
    """LearntSink, Gated, Sigmoid, Entmax, QueryKeyNorm.

    prepared(tokens, weight): the tokens and the weight that are trained, and by which mechanism.
    """

    def prepared(
        self, tokens: att.Tokens, weight: att.Weight
    ) -> tuple[att.Tokens, att.Weight, Mechanism]: ...


def train(
    tokens: att.Tokens,
    head: Head,
    *,
    attention: Kind | None = None,
    weight: att.Weight | None = None,
    init: Any = None,
    resume: att.Path | None = None,
    **options: Any,
) -> att.Path:
    """att.train with a kind of attention, None for softmax.

    init may leave out what the kind adds, which then starts at 0, a gain at 1.
    """
    weight = att.FullWeight() if weight is None else weight
    if attention is None:
        return att.train(tokens, head, weight=weight, init=init, resume=resume, **options)
    if isinstance(attention, type) or not isinstance(attention, Kind):
        raise TypeError(f"attention is {attention!r}. Pass LearntSink(), Gated(), Sigmoid(), Entmax() or …")
    _check_fit(attention, head, resume)
    wide, whole, mechanism = attention.prepared(tokens, weight)
    start = None if resume is not None else _start(tokens, wide, weight, whole, init)
    path = att.train(wide, head, weight=whole, attention=mechanism, init=start, resume=resume, **options)
    if isinstance(attention, QueryKeyNorm):
        return path.changed(W=_gain(path)[..., None, None] * _products(path))
    if isinstance(attention, (LearntSink, Gated)):  # W is K Qᵀ and a block more
        return path.changed(K=None, Q=None)
    return path


def weights(path: att.Path) -> Float:
    """The weights of the tokens at every record (k, n, T), zero where masked."""
    return np.asarray(np.exp(log_weights(path)))


def log_weights(path: att.Path) -> Float:
    """Their logarithms, −∞ where masked."""
    if path.function == "softmax":
        return path.log_attention
    tokens, name, mask = path.tokens, path.function, path.tokens.mask[..., None, :, :]
    keys, queries = tokens.keys[..., None, :, :, :], tokens.queries[..., None, :, :]
    logits = np.matmul(keys, np.matmul(queries, np.swapaxes(path.W, -1, -2))[..., None])[..., 0]
    if name.startswith("sigmoid"):
        offset = float(name.removeprefix("sigmoid"))
        return np.asarray(np.where(mask, -np.logaddexp(0, -(logits + offset)), -np.inf))
    if name == "normalised":
        assert path.K is not None and path.Q is not None
        of_keys, of_queries = np.matmul(keys, path.K[..., None, :, :]), np.matmul(queries, path.Q)
        lengths = np.linalg.norm(of_keys, axis=-1) * np.linalg.norm(of_queries, axis=-1)[..., None]
        logits = np.divide(logits, lengths, out=np.zeros_like(logits), where=lengths > 0)
    logits = np.where(mask, logits, -np.inf)
    relative = logits - logits.max(-1, keepdims=True)
    if name == "entmax 1.5":
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(entmax(np.maximum(relative / 2, -2.0))))
    return np.asarray(relative - np.log(np.exp(relative).sum(-1, keepdims=True)))


def entmax(halves: Float) -> Float:
    """(h − τ)₊² that add up to one, by bisection: from half logits h (…, T) whose largest is zero."""
    low, high = np.full(halves.shape[:-1], -1.0), np.zeros(halves.shape[:-1])
    for _ in range(60):
        middle = (low + high) / 2
        over = (np.maximum(halves - middle[..., None], 0) ** 2).sum(-1) > 1
        low, high = np.where(over, middle, low), np.where(over, high, middle)
    return np.asarray(np.maximum(halves - high[..., None], 0) ** 2)


def gain(path: att.Path) -> Float:
    """The gain of normalised queries and keys at every record: W = gain · K Qᵀ."""
    return np.linalg.norm(path.W, axis=(-2, -1)) / np.linalg.norm(_products(path), axis=(-2, -1))


# ---------------------------------------------------------------------- softmax on other tokens


@dataclass(frozen=True)
class LearntSink:
    """s_t = e^(a_t) / (e^b + Σ_u e^(a_u)) with a number b that is trained: softmax with one more token.

    The tokens of the path have the sink last, with value zero, and W is the block matrix [[W, 0], [0, b]]: so
    path.attention[..., -1] is the weight that the sink takes. b is a parameter of its own, "sink" (1, 1), and
    starts at 0. A max-margin program for it: `with_sink(tokens, both_signs=True)`.
    Reference: OpenAI 2025, gpt-oss; Xiao et al. 2023, arXiv 2309.17453.
    """

    def prepared(self, tokens: att.Tokens, weight: att.Weight) -> tuple[att.Tokens, att.Weight, Mechanism]:
        return with_sink(tokens), _inside(weight, "sink", WithSink), SOFTMAX


@dataclass(frozen=True)
class Gated:
    """σ(uᵀz) Σ_t s_t value_t, softmax attention with a gate on its output; u (e,) is trained along.

    The tokens of the path are all tokens open, then all tokens closed with value zero; the last row of W is
    u. So the weights of the open tokens add up to the gate. u is a parameter of its own, "gate" (1, e), and
    starts at 0. Reference: Qiu et al. 2025, arXiv 2505.06708, one gate per head.
    """

    def prepared(self, tokens: att.Tokens, weight: att.Weight) -> tuple[att.Tokens, att.Weight, Mechanism]:
        return open_and_closed(tokens), _inside(weight, "gate", WithGate), SOFTMAX


def with_sink(tokens: att.Tokens, both_signs: bool = False) -> att.Tokens:
    """Tokens with a sink of value zero as the last one: keys (x, 0), sink (0, 1), queries (z, 1).

    both_signs: every example a second time with the sign of the new entries changed. The program of such
        tokens has a block-diagonal solution [[W, 0], [0, b]], because changing these signs maps it to itself.
    """
    _check_plain(tokens, "a learnt sink")
    keys, queries = _wider(tokens.keys, 0.0), _wider(tokens.queries, 1.0)
    sink = np.zeros_like(keys[..., :1, :])
    sink[..., -1] = 1
    keys = np.concatenate([keys, sink], -2)
    values = np.concatenate([tokens.values, np.zeros_like(tokens.values[..., :1, :])], -2)
    mask = np.concatenate([tokens.mask, np.ones_like(tokens.mask[..., :1])], -1)
    labels = tokens.labels
    if both_signs:
        flip: Float = np.where(np.arange(keys.shape[-1]) == keys.shape[-1] - 1, -1.0, 1.0)
        flip_queries: Float = np.where(np.arange(queries.shape[-1]) == queries.shape[-1] - 1, -1.0, 1.0)
        axis = 0 if tokens.runs is None else 1
        keys, queries = (
            np.concatenate([x, x * sign], axis) for x, sign in ((keys, flip), (queries, flip_queries))
        )
        labels, mask, values = (np.concatenate([x, x], axis) for x in (labels, mask, values))
    return att.Tokens(keys, queries, labels, mask, values=values)


def open_and_closed(tokens: att.Tokens) -> att.Tokens:
    """Every token twice: open, with key (x, 1), and closed, with key (x, 0) and value zero."""
    _check_plain(tokens, "a gate")
    keys = np.concatenate([_wider(tokens.keys, 1.0), _wider(tokens.keys, 0.0)], -2)
    values = np.concatenate([tokens.values, np.zeros_like(tokens.values)], -2)
    mask = np.concatenate([tokens.mask, tokens.mask], -1)
    return att.Tokens(keys, tokens.queries, tokens.labels, mask, values=values)


@dataclass(frozen=True)
class WithSink:
    """[[W, 0], [0, sink]] of a weight W and a number."""

    weight: Any

    def shapes(self, d: int, e: int) -> dict[str, tuple[int, ...]]:
        return {**self.weight.shapes(d - 1, e - 1), "sink": (1, 1)}

    @property
    def separate(self) -> bool:
        return bool(getattr(self.weight, "separate", False))

    def matrix(self, params: Params) -> Array:
        W = self.weight.matrix(_without(params, "sink"))
        return jnp.pad(W, ((0, 1), (0, 1))) + jnp.pad(params["sink"], ((W.shape[0], 0), (W.shape[1], 0)))

    def pullback(self, params: Params, G: Array) -> Params:
        return {**self.weight.pullback(_without(params, "sink"), G[:-1, :-1]), "sink": G[-1:, -1:]}


@dataclass(frozen=True)
class WithGate:
    """[W; gate] of a weight W and a row that reads the query."""

    weight: Any

    def shapes(self, d: int, e: int) -> dict[str, tuple[int, ...]]:
        return {**self.weight.shapes(d - 1, e), "gate": (1, e)}

    @property
    def separate(self) -> bool:
        return bool(getattr(self.weight, "separate", False))

    def matrix(self, params: Params) -> Array:
        return jnp.concatenate([self.weight.matrix(_without(params, "gate")), params["gate"]])

    def pullback(self, params: Params, G: Array) -> Params:
        return {**self.weight.pullback(_without(params, "gate"), G[:-1]), "gate": G[-1:]}


# ---------------------------------------------------------------------- weights of their own


class TokenWeights(NamedTuple):
    """Logits and weights of all tokens (n, T), zero where masked."""

    logits: Array
    weights: Array


class _OwnWeights:
    """What kinds share whose weights are a function of the logits x_tᵀ W z, each pull ∂f/∂a_t (n, T)."""

    def prepared(self, tokens: att.Tokens, weight: att.Weight) -> tuple[att.Tokens, att.Weight, Any]:
        return tokens, weight, self

    def attend(self, data: Data, W: Array, scores: Array | None) -> TokenWeights:
        along = attention.directions(data, W)
        return self.weigh(data, jnp.einsum("ntd,nd->nt", data.keys, along))

    def weigh(self, data: Data, logits: Array) -> TokenWeights:
        raise NotImplementedError

    def of_logits(self, data: Data, weights: TokenWeights, reading: Reading) -> Scaled:
        raise NotImplementedError

    def read(self, data: Data, weights: TokenWeights, head: Head, scores: Array | None) -> Reading:
        if scores is not None:
            return Reading((weights.weights * scores).sum(1), scores)
        pooled = self.pooled(data, weights)
        scores = jnp.einsum("ntc,nc->nt", values_of(data), head.gradient(pooled)) * data.labels[:, None]
        return Reading(data.labels * head.value(pooled), scores)

    def gradient(self, data: Data, W: Array, weights: TokenWeights, reading: Reading, loss: Loss) -> Scaled:
        pulls, top = self.of_logits(data, weights, reading)
        row, log_scale = attention.slopes(data, top, reading, loss)
        along = jnp.einsum("nt,ntd->nd", row * pulls, data.keys)
        return Scaled(jnp.einsum("nd,ne->de", along, data.queries), log_scale)

    def pooled(self, data: Data, weights: TokenWeights) -> Array:
        return jnp.einsum("nt,ntc->nc", weights.weights, values_of(data))


@dataclass(frozen=True)
class Sigmoid(_OwnWeights):
    """s_t = σ(a_t + offset), each token by itself: weights need not add up to one.

    The slope σ'(a) = e^(−|a|)/(1 + e^(−|a|))² enters with its logarithm, so that no gradient underflows. With
    a linear head the best loss is that of all tokens of positive score at one and the others at zero.
    Reference: Ramapuram et al. 2024, arXiv 2409.04431, whose offset is −log T.
    """

    offset: float = 0.0

    def __post_init__(self) -> None:
        if not is_finite(self.offset):
            raise ValueError(f"offset is {describe(self.offset)}. Pass a number, such as −log T.")
        object.__setattr__(self, "offset", float(self.offset))

    @property
    def name(self) -> str:
        return f"sigmoid {self.offset!r}"

    def weigh(self, data: Data, logits: Array) -> TokenWeights:
        logits = logits + self.offset
        return TokenWeights(logits, unmasked(data, jnp.exp(-jax.nn.softplus(-logits)), 0))

    def of_logits(self, data: Data, weights: TokenWeights, reading: Reading) -> Scaled:
        exponents = -jnp.abs(weights.logits)
        pulling = unmasked(data, reading.scores != 0, False)
        top = jnp.where(pulling, exponents, -jnp.inf).max(1)
        scale = jnp.where(top > -jnp.inf, top, 0)[:, None]
        shares = jnp.exp(jnp.where(pulling, exponents - scale, -jnp.inf))
        return Scaled(shares * jnp.where(pulling, reading.scores, 0) / (1 + jnp.exp(exponents)) ** 2, top)

    def drops(self, data: Data, weights: TokenWeights, reading: Reading) -> tuple[Array, Array]:
        scores = unmasked(data, reading.scores, 0)
        missing = -jax.nn.softplus(jnp.where(scores > 0, weights.logits, -weights.logits))
        return jnp.where(scores > 0, scores, 0).sum(1), jax.nn.logsumexp(
            missing + jnp.log(jnp.abs(scores)), axis=1
        )


@dataclass(frozen=True)
class Entmax(_OwnWeights):
    """s_t = (a_t/2 − τ)₊² with τ such that they add up to one: entmax of exponent 1.5.

    A token whose logit leads all others by two has weight one, exactly: then no gradient is left, and W stays
    where it is. Reference: Peters, Niculae, Martins 2019, arXiv 1905.05702.
    """

    @property
    def name(self) -> str:
        return "entmax 1.5"

    def weigh(self, data: Data, logits: Array) -> TokenWeights:
        logits = unmasked(data, logits, -jnp.inf)
        halves = jnp.maximum(
            (logits - logits.max(1, keepdims=True)) / 2, -2.0
        )  # from −1 on there is no weight
        return TokenWeights(logits, jnp.maximum(halves - _threshold(halves), 0) ** 2)

    def of_logits(self, data: Data, weights: TokenWeights, reading: Reading) -> Scaled:
        roots, largest = jnp.sqrt(weights.weights), weights.weights.max(1, keepdims=True)
        winner = weights.weights == largest
        best = jnp.where(winner, reading.scores, -jnp.inf).max(1, keepdims=True)
        gaps = jnp.where(roots > 0, reading.scores - best, 0)
        mean = (roots * gaps).sum(1) / roots.sum(1)
        pulls = roots * (gaps - mean[:, None])
        return Scaled(pulls, jnp.where((pulls != 0).any(1), 0.0, -jnp.inf))

    def drops(self, data: Data, weights: TokenWeights, reading: Reading) -> tuple[Array, Array]:
        scores = unmasked(data, reading.scores, -jnp.inf)
        best = scores.max(1)
        gaps = jnp.where(weights.weights > 0, best[:, None] - scores, 0)
        return best, jnp.log((weights.weights * gaps).sum(1))


def _threshold(halves: Array) -> Array:
    """τ (n, 1) of half logits (n, T) whose largest is zero: from the k largest for every k, sorted."""
    ordered = -jnp.sort(-halves, axis=1)
    count = jnp.arange(1, halves.shape[1] + 1, dtype=halves.dtype).reshape(-1, *[1] * (halves.ndim - 2))
    mean = jnp.cumsum(ordered, 1) / count
    spread = jnp.cumsum(ordered**2, 1) - count * mean**2
    thresholds = mean - jnp.sqrt(jnp.maximum((1 - spread) / count, 0))
    support = (thresholds <= ordered).sum(1, keepdims=True)
    return jnp.where(count == support, thresholds, 0).sum(1, keepdims=True)


@dataclass(frozen=True)
class QueryKeyNorm:
    """Softmax of a_t = gain · cos(Kᵀx_t, Qᵀz): queries and keys are divided by their lengths.

    gain: a number, or None for one that is trained along, "gain" (1, 1), from 1 on. With a number logits stay
    below it, whatever K and Q are. Needs weight=KeyQuery(rank). path.K and path.Q are the factors, gain(path)
    is the gain, and path.W = gain · K Qᵀ, whose logits are divided by the lengths.
    Reference: Henry et al. 2020, arXiv 2010.04245.
    """

    gain: float | None = None

    def __post_init__(self) -> None:
        if self.gain is not None:
            if not (is_finite(self.gain) and self.gain > 0):
                raise ValueError(
                    f"gain is {describe(self.gain)}. Pass a positive number, or None to train it."
                )
            object.__setattr__(self, "gain", float(self.gain))

    @property
    def name(self) -> str:
        return "normalised"

    def prepared(self, tokens: att.Tokens, weight: att.Weight) -> tuple[att.Tokens, att.Weight, Mechanism]:
        if not isinstance(weight, att.KeyQuery):
            raise ValueError(
                f"QueryKeyNorm divides Kᵀx and Qᵀz by their lengths and needs both, got {weight!r}. "
                "Pass weight=KeyQuery(rank)."
            )
        return tokens, Normalised(weight, tokens.d, self.gain), self

    def attend(self, data: Data, W: Array, scores: Array | None) -> Any:
        return attention.softmax_of(data, self._logits(data, W), scores)

    def gradient(self, data: Data, W: Array, weights: Any, reading: Reading, loss: Loss) -> Scaled:
        pulls, top = attention.pulls_of_logits(data, weights, reading)
        row, log_scale = attention.slopes(data, top, reading, loss)
        _, back = jax.vjp(lambda W: self._logits(data, W), W)
        return Scaled(back(row * pulls)[0], log_scale)

    def read(self, data: Data, weights: Any, head: Head, scores: Array | None) -> Reading:
        return attention.read(data, weights, head, scores)

    def pooled(self, data: Data, weights: Any) -> Array:
        return attention.pooled(data, weights)

    def drops(self, data: Data, weights: Any, reading: Reading) -> tuple[Array, Array]:
        return attention.drops(data, weights, reading)

    def _logits(self, data: Data, stacked: Array) -> Array:
        """Logits (n, T) of [K; Q; gain …] stacked, (d + e + 1, r)."""
        d = data.keys.shape[-1]
        keys = _unit(jnp.einsum("ntd,dr->ntr", data.keys, stacked[:d]))
        queries = _unit(jnp.einsum("ne,er->nr", data.queries, stacked[d:-1]))
        return stacked[-1, 0] * jnp.einsum("ntr,nr->nt", keys, queries)


@dataclass(frozen=True)
class Normalised:
    """K, Q and the gain as one array [K; Q; gain …] (d + e + 1, r), which QueryKeyNorm reads."""

    weight: att.KeyQuery
    d: int
    gain: float | None

    @property
    def separate(self) -> bool:
        return self.weight.separate

    def shapes(self, d: int, e: int) -> dict[str, tuple[int, ...]]:
        return {**self.weight.shapes(d, e), **({"gain": (1, 1)} if self.gain is None else {})}

    def matrix(self, params: Params) -> Array:
        rank = params["K"].shape[1]
        gain = params["gain"] if self.gain is None else jnp.full((1, 1), self.gain, params["K"].dtype)
        return jnp.concatenate([params["K"], params["Q"], jnp.broadcast_to(gain, (1, rank))])

    def pullback(self, params: Params, G: Array) -> Params:
        slopes = {"K": G[: self.d], "Q": G[self.d : -1]}
        return slopes if self.gain is not None else {**slopes, "gain": G[-1:, :1]}


# ---------------------------------------------------------------------- details


def _unit(x: Array) -> Array:
    """Vectors along the last axis, divided by their lengths; zero stays zero."""
    square = (x * x).sum(-1, keepdims=True)
    return jnp.where(square > 0, x / jnp.sqrt(jnp.where(square > 0, square, 1)), 0)


def _inside(weight: att.Weight, name: str, wrapped: type[Any]) -> att.Weight:
    """The weight with one more parameter, in every head of several."""
    if isinstance(weight, att.MultiHead):
        return replace(weight, weight=_inside(weight.weight, name, wrapped))
    if isinstance(weight, att.Diagonal):
        raise ValueError(f"a {name} joins a matrix, and {weight!r} is diagonal. Pass FullWeight or KeyQuery.")
    joined: att.Weight = wrapped(weight)
    return joined


def _check_fit(kind: Kind, head: Head, resume: att.Path | None) -> None:
    """Refuse what a kind cannot be trained with."""
    if isinstance(head, att.SquaredError) and isinstance(kind, (Sigmoid, Gated, LearntSink)):
        raise ValueError(
            "SquaredError has the target inside the values, whose weights must add up to one; those of "
            f"{type(kind).__name__} need not. Pass a head of your own on the attended value."
        )
    if resume is not None and isinstance(kind, QueryKeyNorm):
        raise ValueError("a run with QueryKeyNorm cannot be resumed. Pass all its steps to one call.")


def _start(
    tokens: att.Tokens, wide: att.Tokens, weight: att.Weight, whole: att.Weight, init: Any
) -> dict[str, Any]:
    """The start of all parameters: those of the weight from init, and those that the kind adds."""
    shapes, inner = whole.shapes(wide.d, wide.e), weight.shapes(tokens.d, tokens.e)
    added = {
        name: np.full(shape, float(name == "gain")) for name, shape in shapes.items() if name not in inner
    }
    if isinstance(init, dict):
        added |= {name: init[name] for name in added.keys() & init.keys()}
        init = {name: array for name, array in init.items() if name not in added}
    return {**starting_point(weight, init, (tokens.d, tokens.e), tokens.keys.dtype), **added}


def _gain(path: att.Path) -> Float:
    """The gain of a stack [K; Q; gain …], as it was trained."""
    return np.asarray(path.W[..., -1, 0])


def _products(path: att.Path) -> Float:
    """K Qᵀ at every record."""
    assert path.K is not None and path.Q is not None
    return np.matmul(path.K, np.swapaxes(path.Q, -1, -2))


def _without(params: Params, name: str) -> Params:
    return {key: array for key, array in params.items() if key != name}


def _wider(array: Any, entry: float) -> Any:
    return np.concatenate([array, np.full_like(array[..., :1], entry)], -1)


def _check_plain(tokens: att.Tokens, name: str) -> None:
    if tokens.stored:
        raise ValueError(f"{name} adds tokens to keys that are in files. Pass tokens.in_memory().")
