"""What each optimizer does to a gradient given as (mantissa, log scale); optimizers.py has the verbs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from attsvm.norms import Entrywise, Norm, frobenius
from attsvm.training.choosing import where
from attsvm.training.directions import direction, vector
from attsvm.training.rule import (
    Count,
    Number,
    Rate,
    Tree,
    after,
    begin,
    decayed,
    is_zero,
    numbers,
    one_more,
    rate_at,
    times,
)

# ---------------------------------------------------------------------- what a rule remembers


class Averaged(NamedTuple):
    """Count, and the averaged gradient as mantissa and log scale."""

    updates: Array | None
    mantissa: Tree
    log_scale: Array


class Moments(NamedTuple):
    """Number of updates, the averaged gradient, and the root of the averaged squares, each in log scale."""

    updates: Array
    mean: Averaged
    root: Averaged


class Dual(NamedTuple):
    """Count, and the dual variable U = ∇ψ(W)."""

    updates: Array | None
    U: Tree


# ---------------------------------------------------------------------- the rules


@numbers("lr", "momentum", "decay")
@dataclass(frozen=True)
class Steepest:
    norm: Norm
    lr: Rate
    momentum: Number = 0.0
    decay: Number = 0.0

    def init(self, params: Tree) -> Count | Averaged:
        if is_zero(self.momentum):
            return Count(begin(self.lr))
        return _nothing(begin(self.lr), params)

    def update(
        self, grads: Tree, state: Any, params: Tree = None, *, log_scale: Any = 0.0, **_: Any
    ) -> tuple[Tree, Count | Averaged]:
        rate, last = rate_at(self.lr, state.updates), jnp.ndim(log_scale) == 1
        if is_zero(self.momentum):
            along, state = grads, Count(after(state.updates))
        else:
            state = _average(state, grads, log_scale, self.momentum)
            along = state.mantissa
        return decayed(self.decay, times(-rate, direction(self.norm, along, last)), rate, params), state


@numbers("lr", "b1", "b2", "eps", "decay")
@dataclass(frozen=True)
class Adam:
    lr: Rate
    b1: Number = 0.9
    b2: Number = 0.999
    eps: Number = 1e-8
    decay: Number = 0.0

    def init(self, params: Tree) -> Moments:
        return Moments(jnp.zeros((), jnp.int32), *(_nothing(None, params) for _ in range(2)))

    def update(
        self, grads: Tree, state: Moments, params: Tree = None, *, log_scale: Any = 0.0, **_: Any
    ) -> tuple[Tree, Moments]:
        rate, t = rate_at(self.lr, state.updates), one_more(state.updates)
        mean = _average(state.mean, grads, log_scale, self.b1)
        root = _average(state.root, grads, log_scale, self.b2, squares=True)
        log_mean = mean.log_scale - jnp.log(-jnp.expm1(t * jnp.log(self.b1)))
        log_root = root.log_scale - jnp.log(-jnp.expm1(t * jnp.log(self.b2))) / 2
        # Both over e^log_root, which may be too small for a number; where nothing was seen yet, 0/0 is 0.
        seen = log_root > -jnp.inf
        size = where(seen, jnp.exp(where(seen, log_mean - log_root, 0)), 0)
        least = 0.0 if is_zero(self.eps) else jnp.exp(jnp.log(self.eps) - where(seen, log_root, 0))

        def along(m: Array, r: Array) -> Array:
            return where(r > 0, m / (where(r > 0, r, 1) + least), 0) * size

        updates = times(-rate, jax.tree.map(along, mean.mantissa, root.mantissa))
        return decayed(self.decay, updates, rate, params), Moments(t, mean, root)


@numbers("lr")
@dataclass(frozen=True)
class GradientDescent:
    lr: Rate

    def init(self, params: Tree) -> Count:
        return Count(begin(self.lr))

    def update(
        self, grads: Tree, state: Count, params: Tree = None, *, log_scale: Any = 0.0, **_: Any
    ) -> tuple[Tree, Count]:
        rate = rate_at(self.lr, state.updates) * jnp.exp(log_scale)
        return times(-rate, grads), Count(after(state.updates))


@numbers("lr")
@dataclass(frozen=True)
class Mirror:
    p: float
    lr: Rate
    normalised: bool = True

    def init(self, params: Tree) -> Dual:
        return Dual(begin(self.lr), jax.tree.map(lambda w: _signed_power(w, self.p - 1), params))

    def update(
        self, grads: Tree, state: Dual, params: Tree = None, *, log_scale: Any = 0.0, **_: Any
    ) -> tuple[Tree, Dual]:
        if params is None:
            raise ValueError("mirror needs the parameters: call update(grads, state, params).")
        rate = rate_at(self.lr, state.updates)
        if self.normalised:
            size = Entrywise(self.p).dual.value_along(vector(grads, jnp.ndim(log_scale) == 1))
            rate = rate / where(size > 0, size, 1)
        else:
            rate = rate * jnp.exp(log_scale)
        U = jax.tree.map(jnp.subtract, state.U, times(rate, grads))
        updates = jax.tree.map(lambda u, w: _signed_power(u, 1 / (self.p - 1)) - w, U, params)
        return updates, Dual(after(state.updates), U)


@numbers("factor")
@dataclass(frozen=True)
class Polyak:
    factor: Number = 1.0

    def init(self, params: Tree) -> Count:
        return Count(None)

    def update(
        self,
        grads: Tree,
        state: Count,
        params: Tree = None,
        *,
        log_scale: Any = 0.0,
        log_excess: Any = None,
        **_: Any,
    ) -> tuple[Tree, Count]:
        if log_excess is None:
            raise ValueError("polyak needs the excess loss: call update(…, log_excess=log(L − L*)).")
        size = frobenius.value_along(vector(grads, jnp.ndim(log_scale) == 1))
        safe = where(size > 0, size, 1)
        # Divide twice: size² overflows or underflows where size does not.
        length = self.factor * jnp.exp(log_excess - log_scale) / safe / safe
        return times(-where(size > 0, length, 0), grads), state


# ---------------------------------------------------------------------- details


def _nothing(updates: Array | None, params: Tree) -> Averaged:
    """The average of no gradient."""
    mantissa = jax.tree.map(jnp.zeros_like, params)
    return Averaged(updates, mantissa, jnp.asarray(-jnp.inf, jax.tree.leaves(mantissa)[0].dtype))


def _average(state: Averaged, grads: Tree, log_scale: Any, momentum: Any, squares: bool = False) -> Averaged:
    """momentum · M + (1 − momentum) · g with both in log scale: a raw sum would underflow.

    squares: the root of the averaged squares instead. The scale of a gradient of zeros does not count: that
    of a mini-batch may be one, and larger than all others.
    """
    part = 2 if squares else 1
    # A maximum, because a kernel (fused.py) knows no "any".
    entries = vector(grads, jnp.ndim(log_scale) == 1)
    some = where(entries == 0, jnp.zeros_like(entries), 1).max(0) > 0
    old = state.log_scale + jnp.log(momentum) / part
    new = where(some, log_scale + jnp.log1p(-momentum) / part, -jnp.inf)
    top = jnp.maximum(old, new)
    safe = where(top > -jnp.inf, top, 0)
    before, now = jnp.exp(old - safe), jnp.exp(new - safe)

    def both(m: Array, g: Array) -> Array:
        return jnp.hypot(before * m, now * g) if squares else before * m + now * g

    return Averaged(after(state.updates), jax.tree.map(both, state.mantissa, grads), top)


def _signed_power(x: Array, power: float) -> Array:
    return x if power == 1 else jnp.sign(x) * jnp.abs(x) ** power
