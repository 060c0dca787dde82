"""Kinds of attention: how logits become weights of tokens.

Two kinds are softmax attention on other tokens, so that all that is known of softmax holds for them:

* a learnt sink is one more token of value zero, whose logit is a number that is trained;
* a gate σ(uᵀz) on the output is softmax attention on every token twice, open and closed:

      σ(g) Σ_t s_t value_t = Σ_t (e^(a_t + g) value_t + e^(a_t) · 0) / Σ_t (e^(a_t + g) + e^(a_t)).

The others have weights of their own. A kind computes its weights, and the gradient of each margin in the
logits as (mantissa, log scale), which survives saturation where the kind saturates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attsvm._support.validation import describe, is_finite
from attsvm.data.tokens import Tokens
from attsvm.training import attention
from attsvm.training.attention import Reading, Scaled, unmasked, values_of
from attsvm.training.data import Data
from attsvm.training.losses import Loss
from attsvm.training.prediction_heads import Head, SquaredError
from attsvm.training.programs import where
from attsvm.training.runs import contract, each
from attsvm.training.types import AnyArray, Floats
from attsvm.training.weights import Diagonal, KeyQuery, MultiHead, Params, Weight


class Mechanism(Protocol):
    """What the compiled loop needs of a kind.

    name: of the function from logits to weights, as a Path holds it.
    attend(data, W, scores), attend_along(data, W z, scores): the weights of the tokens.
    stored(weights): what is kept of them for all examples, where they are computed in blocks.
    read, pulls, gradient, pooled, drops: as the functions of attention.py for softmax.
    """

    @property
    def name(self) -> str: ...
    def attend(self, data: Data, W: Array, scores: Array | None) -> Any: ...
    def attend_along(self, data: Data, directions: Array, scores: Array | None) -> Any: ...
    def stored(self, weights: Any) -> Any: ...
    def read(self, data: Data, weights: Any, head: Head, scores: Array | None) -> Reading: ...
    def pulls(self, data: Data, weights: Any, reading: Reading) -> Scaled: ...
    def gradient(
        self, data: Data, W: Array, weights: Any, reading: Reading, loss: Loss, pulled: Scaled | None
    ) -> Scaled: ...
    def pooled(self, data: Data, weights: Any) -> Array: ...
    def drops(self, data: Data, weights: Any, reading: Reading) -> tuple[Array, Array]: ...


@runtime_checkable
class Kind(Protocol):
    """How logits become weights of tokens: Softmax, LearntSink, Gated, Sigmoid, Entmax, QueryKeyNorm.

    prepared(tokens, weight): the tokens and the weight that are trained, and by which mechanism.
    """

    def prepared(self, tokens: Tokens, weight: Weight) -> tuple[Tokens, Weight, Mechanism]: ...


@dataclass(frozen=True)
class Softmax:
    """s_t = e^(a_t) / Σ_u e^(a_u), the attention of the papers."""

    @property
    def name(self) -> str:
        return "softmax"

    def prepared(self, tokens: Tokens, weight: Weight) -> tuple[Tokens, Weight, Mechanism]:
        return tokens, weight, self

    def attend(self, data: Data, W: Array, scores: Array | None) -> Any:
        return attention.attend(data, W, scores=scores)

    def attend_along(self, data: Data, directions: Array, scores: Array | None) -> Any:
        return attention.attend_along(data, directions, scores=scores)

    def stored(self, weights: Any) -> Any:
        return weights._replace(pulling=None)

    def read(self, data: Data, weights: Any, head: Head, scores: Array | None) -> Reading:
        return attention.read(data, weights, head, scores)

    def pulls(self, data: Data, weights: Any, reading: Reading) -> Scaled:
        return attention.pulls(data, weights, reading)

    def gradient(
        self, data: Data, W: Array, weights: Any, reading: Reading, loss: Loss, pulled: Scaled | None
    ) -> Scaled:
        return attention.gradient(data, weights, reading, loss, pulled)

    def pooled(self, data: Data, weights: Any) -> Array:
        return attention.pooled(data, weights)

    def drops(self, data: Data, weights: Any, reading: Reading) -> tuple[Array, Array]:
        return attention.drops(data, weights, reading)


SOFTMAX = Softmax()


# ---------------------------------------------------------------------- softmax on other tokens


@dataclass(frozen=True)
class LearntSink:
    """s_t = e^(a_t) / (e^b + Σ_u e^(a_u)) with a number b that is trained: softmax with one more token.

    The tokens of the path have the sink last, with value zero, and W is the block matrix [[W, 0], [0, b]]: so
    path.attention[..., -1] is the weight that the sink takes. b is a parameter of its own, "sink" (1, 1), and
    starts at 0. A max-margin program for it: `with_sink(tokens, both_signs=True)`.
    Reference: OpenAI 2025, gpt-oss; Xiao et al. 2023, arXiv 2309.17453.
    """

    def prepared(self, tokens: Tokens, weight: Weight) -> tuple[Tokens, Weight, Mechanism]:
        return with_sink(tokens), _inside(weight, "sink", WithSink), SOFTMAX


@dataclass(frozen=True)
class Gated:
    """σ(uᵀz) Σ_t s_t value_t, softmax attention with a gate on its output; u (e,) is trained along.

    The tokens of the path are all tokens open, then all tokens closed with value zero; the last row of W is
    u. So the weights of the open tokens add up to the gate. u is a parameter of its own, "gate" (1, e), and
    starts at 0. Reference: Qiu et al. 2025, arXiv 2505.06708, one gate per head.
    """

    def prepared(self, tokens: Tokens, weight: Weight) -> tuple[Tokens, Weight, Mechanism]:
        return open_and_closed(tokens), _inside(weight, "gate", WithGate), SOFTMAX


def with_sink(tokens: Tokens, both_signs: bool = False) -> Tokens:
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
        flip: Floats = np.where(np.arange(keys.shape[-1]) == keys.shape[-1] - 1, -1.0, 1.0)
        flip_queries: Floats = np.where(np.arange(queries.shape[-1]) == queries.shape[-1] - 1, -1.0, 1.0)
        axis = 0 if tokens.runs is None else 1
        keys, queries = (
            np.concatenate([x, x * sign], axis) for x, sign in ((keys, flip), (queries, flip_queries))
        )
        labels, mask, values = (np.concatenate([x, x], axis) for x in (labels, mask, values))
    return Tokens(keys, queries, labels, mask, values=values)


def open_and_closed(tokens: Tokens) -> Tokens:
    """Every token twice: open, with key (x, 1), and closed, with key (x, 0) and value zero."""
    _check_plain(tokens, "a gate")
    keys = np.concatenate([_wider(tokens.keys, 1.0), _wider(tokens.keys, 0.0)], -2)
    values = np.concatenate([tokens.values, np.zeros_like(tokens.values)], -2)
    mask = np.concatenate([tokens.mask, tokens.mask], -1)
    return Tokens(keys, tokens.queries, tokens.labels, mask, values=values)


@dataclass(frozen=True)
class WithSink:
    """[[W, 0], [0, sink]] of a weight W and a number."""

    weight: Any

    def shapes(self, d: int, e: int) -> dict[str, tuple[int, ...]]:
        return {**self.weight.shapes(d - 1, e - 1), "sink": (1, 1)}

    @property
    def starts(self) -> dict[str, float]:
        """Where parameters start that an init does not name."""
        return {"sink": 0.0}

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
    def starts(self) -> dict[str, float]:
        return {"gate": 0.0}

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

    def prepared(self, tokens: Tokens, weight: Weight) -> tuple[Tokens, Weight, Any]:
        return tokens, weight, self

    def attend(self, data: Data, W: Array, scores: Array | None) -> TokenWeights:
        return self.attend_along(data, attention.directions(data, W), scores)

    def attend_along(self, data: Data, directions: Array, scores: Array | None) -> TokenWeights:
        return self.weigh(data, contract("ntd,nd->nt", data.keys, directions, data.fence))

    def stored(self, weights: TokenWeights) -> TokenWeights:
        return weights

    def weigh(self, data: Data, logits: Array) -> TokenWeights:
        raise NotImplementedError

    def of_logits(self, data: Data, weights: TokenWeights, reading: Reading) -> Scaled:
        raise NotImplementedError

    def read(self, data: Data, weights: TokenWeights, head: Head, scores: Array | None) -> Reading:
        if scores is not None:
            return Reading((weights.weights * scores).sum(1), scores)
        pooled = self.pooled(data, weights)
        last = pooled.ndim == 3
        value, slope = (
            each(method, last)(head, pooled) for method in (type(head).value, type(head).gradient)
        )
        scores = contract("ntc,nc->nt", values_of(data), slope, data.fence) * data.labels[:, None]
        return Reading(data.labels * value, scores)

    def pulls(self, data: Data, weights: TokenWeights, reading: Reading) -> Scaled:
        pulls, top = self.of_logits(data, weights, reading)
        return Scaled(contract("nt,ntd->nd", pulls, data.keys, data.fence), top)

    def gradient(
        self,
        data: Data,
        W: Array,
        weights: TokenWeights,
        reading: Reading,
        loss: Loss,
        pulled: Scaled | None,
    ) -> Scaled:
        pulls, top = self.of_logits(data, weights, reading) if pulled is None else pulled
        row, log_scale = attention.slopes(data, top, reading, loss)
        along = row * pulls
        if pulled is None:
            along = contract("nt,ntd->nd", along, data.keys, data.fence)
        return Scaled(contract("nd,ne->de", along, data.queries, data.fence), log_scale)

    def pooled(self, data: Data, weights: TokenWeights) -> Array:
        return contract("nt,ntc->nc", weights.weights, values_of(data), data.fence)


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
        top = where(pulling, exponents, -jnp.inf).max(1)
        scale = where(top > -jnp.inf, top, 0)[:, None]
        shares = jnp.exp(where(pulling, exponents - scale, -jnp.inf))
        return Scaled(shares * where(pulling, reading.scores, 0) / (1 + jnp.exp(exponents)) ** 2, top)

    def drops(self, data: Data, weights: TokenWeights, reading: Reading) -> tuple[Array, Array]:
        scores = unmasked(data, reading.scores, 0)
        missing = -jax.nn.softplus(where(scores > 0, weights.logits, -weights.logits))
        return where(scores > 0, scores, 0).sum(1), jax.nn.logsumexp(
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
        best = where(winner, reading.scores, -jnp.inf).max(1, keepdims=True)
        gaps = where(roots > 0, reading.scores - best, 0)
        mean = (roots * gaps).sum(1) / roots.sum(1)
        pulls = roots * (gaps - mean[:, None])
        return Scaled(pulls, where((pulls != 0).any(1), 0.0, -jnp.inf))

    def drops(self, data: Data, weights: TokenWeights, reading: Reading) -> tuple[Array, Array]:
        scores = unmasked(data, reading.scores, -jnp.inf)
        best = scores.max(1)
        gaps = where(weights.weights > 0, best[:, None] - scores, 0)
        return best, jnp.log((weights.weights * gaps).sum(1))


def _threshold(halves: Array) -> Array:
    """τ (n, 1) of half logits (n, T) whose largest is zero: from the k largest for every k, sorted."""
    ordered = -jnp.sort(-halves, axis=1)
    count = jnp.arange(1, halves.shape[1] + 1, dtype=halves.dtype).reshape(-1, *[1] * (halves.ndim - 2))
    mean = jnp.cumsum(ordered, 1) / count
    spread = jnp.cumsum(ordered**2, 1) - count * mean**2
    thresholds = mean - jnp.sqrt(jnp.maximum((1 - spread) / count, 0))
    support = (thresholds <= ordered).sum(1, keepdims=True)
    return where(count == support, thresholds, 0).sum(1, keepdims=True)


@dataclass(frozen=True)
class QueryKeyNorm(_OwnWeights):
    """Softmax of a_t = gain · cos(Kᵀx_t, Qᵀz): queries and keys are divided by their lengths.

    gain: a number, or None for one that is trained along, "gain" (1, 1), from 1 on. With a number logits stay
    below it, whatever K and Q are. Needs weight=KeyQuery(rank). path.K and path.Q are the factors, path.gain
    the gain, and path.W = gain · K Qᵀ, whose logits are divided by the lengths.
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

    def prepared(self, tokens: Tokens, weight: Weight) -> tuple[Tokens, Weight, Mechanism]:
        if not isinstance(weight, KeyQuery):
            raise ValueError(
                f"QueryKeyNorm divides Kᵀx and Qᵀz by their lengths and needs both, got {weight!r}. "
                "Pass weight=KeyQuery(rank)."
            )
        return tokens, Normalised(weight, tokens.d, self.gain), self

    def attend(self, data: Data, W: Array, scores: Array | None) -> Any:
        return attention.softmax_of(data, self._logits(data, W), scores)

    def attend_along(self, data: Data, directions: Array, scores: Array | None) -> Any:
        raise NotImplementedError("QueryKeyNorm is not computed in blocks of examples.")

    def gradient(
        self, data: Data, W: Array, weights: Any, reading: Reading, loss: Loss, pulled: Scaled | None
    ) -> Scaled:
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
        keys = _unit(contract("ntd,dr->ntr", data.keys, stacked[:d]))
        queries = _unit(contract("ne,er->nr", data.queries, stacked[d:-1]))
        return stacked[-1, 0] * contract("ntr,nr->nt", keys, queries)


@dataclass(frozen=True)
class Normalised:
    """K, Q and the gain as one array [K; Q; gain …] (d + e + 1, r), which QueryKeyNorm reads."""

    weight: KeyQuery
    d: int
    gain: float | None

    @property
    def separate(self) -> bool:
        return self.weight.separate

    def shapes(self, d: int, e: int) -> dict[str, tuple[int, ...]]:
        return {**self.weight.shapes(d, e), **({"gain": (1, 1)} if self.gain is None else {})}

    @property
    def starts(self) -> dict[str, float]:
        return {"gain": 1.0} if self.gain is None else {}

    def matrix(self, params: Params) -> Array:
        rank = params["K"].shape[1]
        gain = params["gain"] if self.gain is None else jnp.full((1, 1), self.gain, params["K"].dtype)
        return jnp.concatenate([params["K"], params["Q"], jnp.broadcast_to(gain, (1, rank))])

    def pullback(self, params: Params, G: Array) -> Params:
        slopes = {"K": G[: self.d], "Q": G[self.d : -1]}
        return slopes if self.gain is not None else {**slopes, "gain": G[-1:, :1]}

    def records(self, arrays: dict[str, Floats]) -> dict[str, Floats]:
        """The arrays of a path: W = gain · K Qᵀ in place of the stack, and the gain."""
        stacked = arrays["W"]
        gain = stacked[..., -1, 0]
        W = gain[..., None, None] * np.matmul(arrays["K"], np.swapaxes(arrays["Q"], -1, -2))
        return {**arrays, "W": W, "gain": gain}


def check(kind: object, head: Head, resumed: bool) -> None:
    """Refuse what is not a kind, and what a kind cannot be trained with."""
    if isinstance(kind, type) or not isinstance(kind, Kind):
        raise TypeError(
            f"attention is {kind!r}. Pass Softmax(), LearntSink(), Gated(), Sigmoid(), Entmax() or "
            "QueryKeyNorm()."
        )
    if isinstance(kind, Softmax):
        return
    name = type(kind).__name__
    if isinstance(head, SquaredError) and isinstance(kind, (Sigmoid, Gated, LearntSink)):
        raise ValueError(
            "SquaredError has the target inside the values, whose weights must add up to one; those of "
            f"{name} need not. Pass a head of your own on the attended value."
        )
    if resumed and isinstance(kind, QueryKeyNorm):
        raise ValueError("a run with QueryKeyNorm cannot be resumed. Pass all its steps to one call.")


def shift_invariant(kind: Mechanism) -> bool:
    """Whether the weights stay where all logits of an example move alike."""
    return not isinstance(kind, (Sigmoid, QueryKeyNorm))


# ---------------------------------------------------------------------- details


def _unit(x: Array) -> Array:
    """Vectors along the last axis, divided by their lengths; zero stays zero."""
    square = (x * x).sum(-1, keepdims=True)
    return where(square > 0, x / jnp.sqrt(where(square > 0, square, 1)), 0)


def _inside(weight: Weight, name: str, wrapped: type[Any]) -> Weight:
    """The weight with one more parameter, in every head of several."""
    if isinstance(weight, MultiHead):
        return replace(weight, weight=_inside(weight.weight, name, wrapped))
    if isinstance(weight, Diagonal):
        raise ValueError(f"a {name} joins a matrix, and {weight!r} is diagonal. Pass FullWeight or KeyQuery.")
    joined: Weight = wrapped(weight)
    return joined


def _without(params: Params, name: str) -> Params:
    return {key: array for key, array in params.items() if key != name}


def _wider(array: AnyArray, entry: float) -> AnyArray:
    return np.concatenate([array, np.full_like(array[..., :1], entry)], -1)


def _check_plain(tokens: Tokens, name: str) -> None:
    if tokens.stored:
        raise ValueError(f"{name} adds tokens to keys that are in files. Pass tokens.in_memory().")
