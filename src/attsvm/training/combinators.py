"""Rules that hold another: one of optax's, one for every array, one over several heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from attsvm.training.directions import vector
from attsvm.training.programs import where
from attsvm.training.rules import Rule, Tree, numbers, times
from attsvm.training.runs import each


@numbers()
@dataclass(frozen=True, repr=False)
class Foreign:
    """A rule of optax's, given the gradient at its true scale or its mantissa alone."""

    optimizer: optax.GradientTransformationExtraArgs
    scaled: bool

    def __repr__(self) -> str:  # a saved run says it, and goes on with what it said in 0.2.0
        name = "TrueScale" if self.scaled else "ScaleFree"
        return f"{name}(optimizer={type(self.optimizer).__name__})"

    def init(self, params: Tree) -> Tree:
        return self.optimizer.init(params)

    def update(
        self, grads: Tree, state: Tree, params: Tree = None, *, log_scale: Any = 0.0, **known: Any
    ) -> tuple[Tree, Tree]:
        if self.scaled:
            return self.optimizer.update(times(jnp.exp(log_scale), grads), state, params, **known)
        # log_scale stays known: members of a chain that are ours may use it.
        return self.optimizer.update(grads, state, params, log_scale=log_scale, **known)


@numbers("rule")
@dataclass(frozen=True)
class PerBlock:
    rule: Any

    def init(self, params: Tree) -> Tree:
        return [self.rule.init(leaf) for leaf in jax.tree.leaves(params)]

    def update(self, grads: Tree, state: Tree, params: Tree = None, **known: Any) -> tuple[Tree, Tree]:
        leaves, shape = jax.tree.flatten(grads)
        owners = [None] * len(leaves) if params is None else jax.tree.leaves(params)
        each = [self.rule.update(g, s, w, **known) for g, s, w in zip(leaves, state, owners, strict=True)]
        return jax.tree.unflatten(shape, [u for u, _ in each]), [s for _, s in each]


@numbers("rule")
@dataclass(frozen=True)
class OverHeads:
    """A rule of arrays with several heads first, and a log scale for each of them (weights.MultiHead)."""

    rule: Any
    norm: str = "joint"

    def init(self, params: Tree) -> Tree:
        return (
            jax.vmap(self.rule.init)(params) if self.norm == "apart" else self.rule.init(self._laid(params))
        )

    def update(
        self, grads: Tree, state: Tree, params: Tree = None, *, log_scale: Any = 0.0, **known: Any
    ) -> tuple[Tree, Tree]:
        log_scale = jnp.broadcast_to(log_scale, jax.tree.leaves(grads)[0].shape[:1])
        if self.norm == "apart":

            def one(grads: Tree, state: Tree, params: Tree, log_scale: Any) -> tuple[Tree, Tree]:
                return self.rule.update(grads, state, params, log_scale=log_scale, **known)

            return jax.vmap(one)(grads, state, params, log_scale)
        some = jax.vmap(lambda grads: (vector(grads, False) != 0).any())(grads)
        top = where(some, log_scale, -jnp.inf).max()
        top = where(top > -jnp.inf, top, 0)
        share = where(some, jnp.exp(log_scale - top), 0)
        grads = jax.tree.map(lambda x: share.reshape(-1, *[1] * (x.ndim - 1)) * x, grads)
        owners = None if params is None else self._laid(params)
        updates, state = self.rule.update(self._laid(grads), state, owners, log_scale=top, **known)
        return self._back(updates, grads), state

    def _laid(self, tree: Tree) -> Tree:
        """The heads as arrays of their own, or side by side in one."""
        if self.norm == "joint":
            return jax.tree.map(list, tree)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], -1), tree)

    def _back(self, laid: Tree, like: Tree) -> Tree:
        leaves, tree = jax.tree.flatten(like)
        shape: Any = tree
        parts = shape.flatten_up_to(laid)
        if self.norm == "joint":
            return jax.tree.unflatten(shape, [jnp.stack(part) for part in parts])
        apart = [
            jnp.moveaxis(part.reshape(*x.shape[1:-1], len(x), x.shape[-1]), -2, 0)
            for part, x in zip(parts, leaves, strict=True)
        ]
        return jax.tree.unflatten(shape, apart)


AROUND = (PerBlock, OverHeads)
"""Rules that hold another."""


# ---------------------------------------------------------------------- what the training loop asks of a rule


def update(
    rule: Rule, grads: Tree, memory: Tree, params: Tree, last: bool, known: dict[str, Any]
) -> tuple[Tree, Tree]:
    """One update; last: whether the arrays carry runs behind their own axes, over which optax is mapped."""

    def of_one(grads: Tree, memory: Tree, params: Tree, known: dict[str, Any]) -> tuple[Tree, Tree]:
        return rule.update(grads, memory, params, **known)

    updates, memory = each(of_one, last and foreign(rule))(grads, memory, params, known)
    for new, old in zip(jax.tree.leaves(updates), jax.tree.leaves(params), strict=True):
        if new.shape != old.shape:  # jnp.add would broadcast it
            raise ValueError(
                f"the optimizer's update has shape {new.shape} where what it trains has {old.shape}. "
                "Return an update for every entry."
            )
    return updates, memory


def per_run(rule: Any) -> dict[str, int]:
    """How many runs the numbers of a rule are for, by name, where they are one per run."""
    if isinstance(rule, AROUND):
        return per_run(rule.rule)
    own = {} if rule is None or foreign(rule) else vars(rule)
    return {name: len(value) for name, value in own.items() if isinstance(value, tuple)}


def foreign(rule: Any) -> bool:
    """Whether a rule is one of optax's, which may use whatever is known."""
    return foreign(rule.rule) if isinstance(rule, AROUND) else isinstance(rule, Foreign)
