"""Losses of the margin f: decreasing functions, known through their logarithms.

Errors of a target, such as the squared error, are heads: prediction_heads.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attsvm.numbers import Float
from attsvm.training.programs import where

NEGLIGIBLE = 1e-30
"""Below it, (e^δ − 1)/δ and log(1 + δ)/δ are 1 to the last bit."""


@runtime_checkable
class Loss(Protocol):
    """A strictly decreasing loss ℓ, elementwise on margins f of any shape.

    value(f): ℓ(f).
    log_slope(f): log(−ℓ'(f)), which stays finite where ℓ' underflows.
    log_increase(f, log_drop): log(ℓ(f − δ) − ℓ(f)) for δ = e^log_drop ≥ 0, exact for every size of δ.
    """

    def value(self, f: Array) -> Array: ...
    def log_slope(self, f: Array) -> Array: ...
    def log_increase(self, f: Array, log_drop: Array) -> Array: ...


def log_slopes(loss: Loss, f: Any) -> Float:
    """log(−ℓ'(f)) in float64: outside of a training JAX computes in float32."""
    with jax.enable_x64(True):
        return np.asarray(loss.log_slope(jnp.asarray(f)), float)


@dataclass(frozen=True)
class Logistic:
    """ℓ(f) = log(1 + e^(−f))."""

    def value(self, f: Array) -> Array:
        return jax.nn.softplus(-f)

    def log_slope(self, f: Array) -> Array:
        return -jax.nn.softplus(f)

    def log_increase(self, f: Array, log_drop: Array) -> Array:
        # ℓ(f − δ) − ℓ(f) = log(1 + y),  y = σ(−f)(e^δ − 1): the difference itself would cancel.
        return _log_log1p(self.log_slope(f) + _log_expm1(log_drop))


@dataclass(frozen=True)
class Exponential:
    """ℓ(f) = e^(−f)."""

    def value(self, f: Array) -> Array:
        return jnp.exp(-f)

    def log_slope(self, f: Array) -> Array:
        return -f

    def log_increase(self, f: Array, log_drop: Array) -> Array:
        return -f + _log_expm1(log_drop)


@dataclass(frozen=True)
class Correlation:
    """ℓ(f) = −f, the linear loss of the papers."""

    def value(self, f: Array) -> Array:
        return -f

    def log_slope(self, f: Array) -> Array:
        return jnp.zeros_like(f)

    def log_increase(self, f: Array, log_drop: Array) -> Array:
        return log_drop


@dataclass(frozen=True)
class NegativeLog:
    """ℓ(f) = −log f of a probability f: with the head that reads the mass on the right tokens, log-loss.

    Scores may be negative as long as f is positive. A run that starts at or reaches f ≤ 0 is "diverged".
    """

    def value(self, f: Array) -> Array:
        return -jnp.log(f)

    def log_slope(self, f: Array) -> Array:
        return -jnp.log(f)

    def log_increase(self, f: Array, log_drop: Array) -> Array:
        # ℓ(f − δ) − ℓ(f) = −log(1 − y),  y = δ/f
        log_y = log_drop - jnp.log(f)
        y = jnp.clip(jnp.exp(log_y), NEGLIGIBLE, 1.0)
        return log_y + jnp.log(-jnp.log1p(-y) / y)


logistic = Logistic()
exponential = Exponential()
correlation = Correlation()
log_loss = NegativeLog()


def check(loss: object) -> None:
    """Refuse what is not a loss."""
    if isinstance(loss, type) or not isinstance(loss, Loss):
        raise TypeError(f"{loss!r} is not a loss. Pass logistic, exponential, correlation or log_loss.")


def _log_expm1(log_x: Array) -> Array:
    """log(e^x − 1) from log x: −∞ stays −∞, a large x does not overflow."""
    x = jnp.exp(log_x)
    moderate = jnp.clip(x, NEGLIGIBLE, 1.0)
    small = log_x + jnp.log(jnp.expm1(moderate) / moderate)
    large = jnp.maximum(x, 1.0)
    return where(x < 1, small, large + jnp.log1p(-jnp.exp(-large)))


def _log_log1p(log_y: Array) -> Array:
    """log(log(1 + y)) from log y."""
    y = jnp.clip(jnp.exp(log_y), NEGLIGIBLE, 1.0)
    small = log_y + jnp.log(jnp.log1p(y) / y)
    return where(log_y < 0, small, jnp.log(jax.nn.softplus(jnp.maximum(log_y, 0.0))))
