"""Steps of K and Q that are steps of W = K Qᵀ, to first order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from attsvm.norms import Norm
from attsvm.training.directions import decomposed, direction
from attsvm.training.lanes import each
from attsvm.training.rule import Count, Number, Rate, Tree, after, begin, decayed, numbers, rate_at, times


@numbers("lr", "ridge", "decay")
@dataclass(frozen=True)
class Compositional:
    norm: Norm
    lr: Rate
    ridge: Number
    decay: Number = 0.0

    def init(self, params: Tree) -> Count:
        return Count(begin(self.lr))

    def update(
        self, grads: Tree, state: Count, params: Tree = None, *, log_scale: Any = 0.0, **_: Any
    ) -> tuple[Tree, Count]:
        last = jnp.ndim(log_scale) == 1
        own = params if isinstance(params, dict) else {}
        whole = own.keys() == {"K", "Q"} and getattr(own["K"], "ndim", 0) == 2 + last
        if not whole:
            raise ValueError(
                "compositional steps need K and Q of one head together. Train KeyQuery(), not separate; of "
                'several heads Heads(count, KeyQuery(), norm="apart").'
            )
        rate = rate_at(self.lr, state.updates)
        steps = each(self._steps, last)(grads, params, jnp.broadcast_to(self.ridge, jnp.shape(log_scale)))
        moved = times(-rate / 2, steps)
        return decayed(self.decay, moved, rate, params), Count(after(state.updates))

    def _steps(self, grads: Tree, params: Tree, ridge: Any) -> Tree:
        K, Q = params["K"], params["Q"]
        return {"K": self._step(grads["K"], Q, ridge), "Q": self._step(grads["Q"], K, ridge)}

    def _step(self, grad: Array, other: Array, ridge: Any) -> Array:
        """steepest(∇ C⁻¹) C⁻¹ with C = (other'other + ridge)^½."""
        _, sigma, Vt = decomposed([other])[0]
        outside = 1 / jnp.sqrt(ridge)  # where no singular vector points
        inverse = outside * jnp.eye(Vt.shape[1]) + (Vt.T * (1 / jnp.sqrt(sigma**2 + ridge) - outside)) @ Vt
        return direction(self.norm, grad @ inverse, False) @ inverse
