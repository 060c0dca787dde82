"""Rules: what an optimizer does to a gradient that is given as (mantissa, log scale).

    update(grads, state, params, log_scale=Λ, log_excess=log(L − L*)),   true gradient = grads · e^Λ

A rule is a frozen record with init and update, whose numbers are arguments of one compiled loop. Arrays may
carry runs behind their own axes (runs.py); then Λ carries them too. optimizers.py has the functions that make
rules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from attsvm.norms import Entrywise, Norm, frobenius
from attsvm.norms.layouts import HeadLayout
from attsvm.training.directions import decomposed, direction, vector
from attsvm.training.programs import where
from attsvm.training.runs import each
from attsvm.training.types import AnyArray, Options, Scalar, Tree

Number = Any
"""A number of a rule: a float for all runs, or a tuple with one per run."""
Rate = Number | Callable[[Any], Any]


class Rule(Protocol):
    """What an optimizer does: a frozen record, registered with `numbers`."""

    def init(self, params: Tree) -> Tree: ...
    def update(self, grads: Tree, state: Tree, params: Tree = None, **extra: Any) -> tuple[Tree, Tree]: ...


class Optimizer(optax.GradientTransformationExtraArgs):  # type: ignore[misc]
    """An optax transformation that remembers its rule; equal rules make equal optimizers."""

    rule: Rule

    def __new__(cls, rule: Rule) -> Optimizer:
        self: Optimizer = super().__new__(cls, rule.init, rule.update)
        self.rule = rule
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Optimizer) and self.rule == other.rule

    def __ne__(self, other: object) -> bool:  # tuple has its own
        return not self == other

    def __hash__(self) -> int:
        return hash(self.rule)

    def __repr__(self) -> str:
        return repr(self.rule)


def numbers(*names: str) -> Callable[[type[Any]], type[Any]]:
    """Register a rule whose named numbers are arguments of the compiled loop; other fields are compiled in.

    Therefore one program serves every lr, and a number may differ between runs. Zero is compiled in, because
    it changes what is computed; so is a schedule, unless its rates are computed before (schedules.py).
    """

    def register(rule_type: type[Any]) -> type[Any]:
        def flatten(rule: Any) -> tuple[list[Any], Any]:
            fields = vars(rule)
            free = [n for n in names if not callable(fields[n]) and not is_zero(fields[n])]
            fixed = {n: value for n, value in fields.items() if n not in free}
            return [_as_leaf(fields[n]) for n in free], (tuple(free), tuple(fixed.items()))

        def restore(structure: Tree, values: AnyArray) -> Rule:
            free, fixed = structure
            return rule_type(**dict(zip(free, values, strict=True)), **dict(fixed))

        jax.tree_util.register_pytree_node(rule_type, flatten, restore)
        return rule_type

    return register


class Count(NamedTuple):
    """Number of updates made; None where no schedule needs it."""

    updates: Array | None


# ---------------------------------------------------------------------- what rules are made of


def begin(lr: Rate) -> Array | None:
    """The count of updates before the first."""
    return jnp.zeros((), jnp.int32) if callable(lr) else None


LAST = np.iinfo(np.int32).max
"""The largest count, which stays, as in optax: the next one would be negative."""


def one_more(updates: Array) -> Array:
    """The count plus one, at most LAST."""
    return updates + (updates < LAST)


def next_count(updates: Array | None) -> Array | None:
    """The count after one more update, where a schedule needs it."""
    return None if updates is None else one_more(updates)


def rate_at(lr: Rate, updates: Array | None) -> Scalar:
    """The rate: the number, or the value of the schedule after so many updates."""
    return lr(updates) if callable(lr) else lr


def times(number: Scalar, tree: Tree) -> Tree:
    return jax.tree.map(lambda leaf: (number * leaf).astype(leaf.dtype), tree)  # a schedule may be wider


def decayed(decay: Scalar, updates: Tree, rate: Scalar, params: Tree) -> Tree:
    """The updates minus rate · decay of every parameter: decay does not change the direction of the step."""
    if is_zero(decay):
        return updates
    if params is None:
        raise ValueError("decay needs the parameters: call update(grads, state, params).")
    return jax.tree.map(jnp.subtract, updates, times(rate * decay, params))


def is_zero(value: object) -> bool:
    return isinstance(value, float) and value == 0  # False for a traced number


def _as_leaf(value: Any) -> Any:
    return np.array(value) if type(value) is tuple else value


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
    norm: Norm | tuple[Norm, ...]
    lr: Rate
    momentum: Number = 0.0
    decay: Number = 0.0

    def init(self, params: Tree) -> Count | Averaged:
        if is_zero(self.momentum):
            return Count(begin(self.lr))
        return _nothing(begin(self.lr), params)

    def update(
        self, grads: Tree, state: Tree, params: Tree = None, *, log_scale: Scalar = 0.0, **_: Any
    ) -> tuple[Tree, Count | Averaged]:
        rate, last = rate_at(self.lr, state.updates), jnp.ndim(log_scale) == 1
        if is_zero(self.momentum):
            along, state = grads, Count(next_count(state.updates))
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
        self, grads: Tree, state: Moments, params: Tree = None, *, log_scale: Scalar = 0.0, **_: Any
    ) -> tuple[Tree, Moments]:
        rate, t = rate_at(self.lr, state.updates), one_more(state.updates)
        mean = _average(state.mean, grads, log_scale, self.b1)
        root = _average(state.root, grads, log_scale, self.b2, squares=True)
        log_mean = mean.log_scale - jnp.log(-jnp.expm1(t * jnp.log(self.b1)))
        log_root = root.log_scale - jnp.log(-jnp.expm1(t * jnp.log(self.b2))) / 2
        # Both are divided by e^log_root, which may underflow; before the first gradient, 0/0 is 0.
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
        self, grads: Tree, state: Count, params: Tree = None, *, log_scale: Scalar = 0.0, **_: Any
    ) -> tuple[Tree, Count]:
        rate = rate_at(self.lr, state.updates) * jnp.exp(log_scale)
        return times(-rate, grads), Count(next_count(state.updates))


@numbers("lr")
@dataclass(frozen=True)
class Mirror:
    p: float
    lr: Rate
    normalised: bool = True

    def init(self, params: Tree) -> Dual:
        return Dual(begin(self.lr), jax.tree.map(lambda w: _signed_power(w, self.p - 1), params))

    def update(
        self, grads: Tree, state: Dual, params: Tree = None, *, log_scale: Scalar = 0.0, **_: Any
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
        return updates, Dual(next_count(state.updates), U)


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
        log_scale: Scalar = 0.0,
        log_excess: Scalar = None,
        **_: Any,
    ) -> tuple[Tree, Count]:
        if log_excess is None:
            raise ValueError("polyak needs the excess loss: call update(…, log_excess=log(L − L*)).")
        size = frobenius.value_along(vector(grads, jnp.ndim(log_scale) == 1))
        safe = where(size > 0, size, 1)
        # Divide twice: size² overflows or underflows where size does not.
        length = self.factor * jnp.exp(log_excess - log_scale) / safe / safe
        return times(-where(size > 0, length, 0), grads), state


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
        self, grads: Tree, state: Count, params: Tree = None, *, log_scale: Scalar = 0.0, **_: Any
    ) -> tuple[Tree, Count]:
        last = jnp.ndim(log_scale) == 1
        factors = params if isinstance(params, dict) else {}
        is_pair = factors.keys() == {"K", "Q"} and getattr(factors["K"], "ndim", 0) == 2 + last
        if not is_pair:
            raise ValueError(
                "compositional steps need K and Q of one head together. Train KeyQuery(), not separate; of "
                'several heads MultiHead(count, KeyQuery(), norm="apart").'
            )
        rate = rate_at(self.lr, state.updates)
        steps = each(self._steps, last)(grads, params, jnp.broadcast_to(self.ridge, jnp.shape(log_scale)))
        moved = times(-rate / 2, steps)
        return decayed(self.decay, moved, rate, params), Count(next_count(state.updates))

    def _steps(self, grads: Tree, params: Tree, ridge: Scalar) -> Tree:
        K, Q = params["K"], params["Q"]
        return {"K": self._step(grads["K"], Q, ridge), "Q": self._step(grads["Q"], K, ridge)}

    def _step(self, grad: Array, factor: Array, ridge: Scalar) -> Array:
        """steepest(∇ C⁻¹) C⁻¹ with C = (other'other + ridge)^½."""
        _, sigma, Vt = decomposed([factor])[0]
        outside = 1 / jnp.sqrt(ridge)  # across all singular vectors
        inverse = outside * jnp.eye(Vt.shape[1]) + (Vt.T * (1 / jnp.sqrt(sigma**2 + ridge) - outside)) @ Vt
        return direction(self.norm, grad @ inverse, False) @ inverse


# ---------------------------------------------------------------------- details


def _nothing(updates: Array | None, params: Tree) -> Averaged:
    """The average before the first gradient."""
    mantissa = jax.tree.map(jnp.zeros_like, params)
    return Averaged(updates, mantissa, jnp.asarray(-jnp.inf, jax.tree.leaves(mantissa)[0].dtype))


def _average(
    state: Averaged, grads: Tree, log_scale: Scalar, momentum: Scalar, squares: bool = False
) -> Averaged:
    """momentum · M + (1 − momentum) · g with both in log scale: a raw sum would underflow.

    squares: the root of the averaged squares instead. The log scale of a zero gradient is ignored: it is
        arbitrary, and a mini-batch may have a zero gradient.
    """
    degree = 2 if squares else 1
    # A maximum, because kernels (fused.py) have no "any".
    entries = vector(grads, jnp.ndim(log_scale) == 1)
    nonzero = where(entries == 0, jnp.zeros_like(entries), 1).max(0) > 0
    old = state.log_scale + jnp.log(momentum) / degree
    new = where(nonzero, log_scale + jnp.log1p(-momentum) / degree, -jnp.inf)
    top = jnp.maximum(old, new)
    safe = where(top > -jnp.inf, top, 0)
    old_share, new_share = jnp.exp(old - safe), jnp.exp(new - safe)

    def both(m: Array, g: Array) -> Array:
        return jnp.hypot(old_share * m, new_share * g) if squares else old_share * m + new_share * g

    return Averaged(next_count(state.updates), jax.tree.map(both, state.mantissa, grads), top)


def _signed_power(x: Array, power: float) -> Array:
    return x if power == 1 else jnp.sign(x) * jnp.abs(x) ** power


# ---------------------------------------------------------------------- rules that hold another


@numbers()
@dataclass(frozen=True, repr=False)
class Foreign:
    """A rule of optax's, given the gradient at its true scale or its mantissa alone."""

    optimizer: optax.GradientTransformationExtraArgs
    scaled: bool

    def __repr__(self) -> str:  # functions are at another address in every process
        return f"Foreign({type(self.optimizer).__name__}, scaled={self.scaled})"

    def init(self, params: Tree) -> Tree:
        return self.optimizer.init(params)

    def update(
        self, grads: Tree, state: Tree, params: Tree = None, *, log_scale: Scalar = 0.0, **extra: Any
    ) -> tuple[Tree, Tree]:
        if self.scaled:
            return self.optimizer.update(times(jnp.exp(log_scale), grads), state, params, **extra)
        # log_scale is passed on, because our rules inside a chain may use it.
        return self.optimizer.update(grads, state, params, log_scale=log_scale, **extra)


@numbers("rule")
@dataclass(frozen=True)
class PerBlock:
    rule: Any

    def init(self, params: Tree) -> Tree:
        return [self.rule.init(leaf) for leaf in jax.tree.leaves(params)]

    def update(self, grads: Tree, state: Tree, params: Tree = None, **extra: Any) -> tuple[Tree, Tree]:
        leaves, shape = jax.tree.flatten(grads)
        owners = [None] * len(leaves) if params is None else jax.tree.leaves(params)
        each = [self.rule.update(g, s, w, **extra) for g, s, w in zip(leaves, state, owners, strict=True)]
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
        self, grads: Tree, state: Tree, params: Tree = None, *, log_scale: Scalar = 0.0, **extra: Any
    ) -> tuple[Tree, Tree]:
        log_scale = jnp.broadcast_to(log_scale, jax.tree.leaves(grads)[0].shape[:1])
        if self.norm == "apart":

            def of_head(grads: Tree, state: Tree, params: Tree, log_scale: Scalar) -> tuple[Tree, Tree]:
                return self.rule.update(grads, state, params, log_scale=log_scale, **extra)

            return jax.vmap(of_head)(grads, state, params, log_scale)
        nonzero = jax.vmap(lambda grads: (vector(grads, False) != 0).any())(grads)
        top = where(nonzero, log_scale, -jnp.inf).max()
        top = where(top > -jnp.inf, top, 0)
        share = where(nonzero, jnp.exp(log_scale - top), 0)
        grads = jax.tree.map(lambda x: share.reshape(-1, *[1] * (x.ndim - 1)) * x, grads)
        owners = None if params is None else self._laid(params)
        updates, state = self.rule.update(self._laid(grads), state, owners, log_scale=top, **extra)
        return self._back(updates, grads), state

    def _laid(self, tree: Tree) -> Tree:
        """The heads as separate arrays, or side by side in one array."""
        if self.norm == "joint":
            return jax.tree.map(list, tree)
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -2).reshape(*x.shape[1:-1], -1), tree)

    def _back(self, laid: Tree, like: Tree) -> Tree:
        leaves, tree = jax.tree.flatten(like)
        shape: Tree = tree
        pieces = shape.flatten_up_to(laid)
        if self.norm == "joint":
            return jax.tree.unflatten(shape, [jnp.stack(piece) for piece in pieces])
        arrays = [
            jnp.moveaxis(piece.reshape(*x.shape[1:-1], len(x), x.shape[-1]), -2, 0)
            for piece, x in zip(pieces, leaves, strict=True)
        ]
        return jax.tree.unflatten(shape, arrays)


@numbers("rule")
@dataclass(frozen=True)
class OverMatrices:
    """A rule for every matrix of a layout of heads (norms/layouts.py), each normalised by itself.

    Arrays have the heads first. Gradients of heads that share keys are added, at one scale.
    """

    rule: Any
    layout: HeadLayout

    def init(self, params: Tree) -> Tree:
        return [self.rule.init(matrix) for matrix in self._matrices(params)]

    def update(
        self, grads: Tree, state: Tree, params: Tree = None, *, log_scale: Scalar = 0.0, **extra: Any
    ) -> tuple[Tree, Tree]:
        log_scale = jnp.broadcast_to(log_scale, jax.tree.leaves(grads)[0].shape[:1])
        owners = None if params is None else self._matrices(params)
        updates: dict[str, Array] = {}
        states = []
        for k, matrix in enumerate(self.layout.matrices):
            blocks = {name: self._readers(name) for row in matrix for name in row}
            heads = np.unique(np.concatenate([*blocks.values()]))
            nonzero = jnp.stack(
                [(grads[name[0]][h] != 0).any() for name, readers in blocks.items() for h in readers]
            )
            scales = jnp.stack([log_scale[h] for readers in blocks.values() for h in readers])
            top = where(nonzero, scales, -jnp.inf).max()
            top = where(top > -jnp.inf, top, 0)
            share = {h: jnp.exp(jnp.minimum(log_scale[h] - top, 0.0)) for h in heads.tolist()}
            summed = {
                name: sum(share[h] * grads[name[0]][h] for h in readers) for name, readers in blocks.items()
            }
            update, new = self.rule.update(
                _laid_out(matrix, summed),
                state[k],
                None if owners is None else owners[k],
                log_scale=top,
                **extra,
            )
            updates |= _taken_apart(matrix, update, summed)
            states.append(new)
        by_head = {
            kind: jnp.stack([updates[self._name(kind, h)] for h in range(self.layout.heads)])
            for kind in grads
        }
        return by_head, states

    def _readers(self, name: str) -> list[int]:
        kind, number = name[0], int(name[1:])
        return [h for h, g in enumerate(self.layout.key_of) if g == number] if kind == "K" else [number]

    def _name(self, kind: str, head: int) -> str:
        return f"{kind}{self.layout.key_of[head] if kind == 'K' else head}"

    def _matrices(self, params: Tree) -> list[Array]:
        arrays = {
            self._name(kind, h): array[h] for kind, array in params.items() for h in range(self.layout.heads)
        }
        return [_laid_out(matrix, arrays) for matrix in self.layout.matrices]


def _laid_out(matrix: tuple[tuple[str, ...], ...], blocks: dict[str, Array]) -> Array:
    """The matrix of a layout."""
    return jnp.concatenate([jnp.concatenate([blocks[name] for name in row], 1) for row in matrix])


def _taken_apart(
    matrix: tuple[tuple[str, ...], ...], whole: Array, like: dict[str, Array]
) -> dict[str, Array]:
    """The blocks of the matrix of a layout."""
    blocks, top = {}, 0
    for row in matrix:
        height, left = like[row[0]].shape[0], 0
        for name in row:
            width = like[name].shape[1]
            blocks[name] = whole[top : top + height, left : left + width]
            left += width
        top += height
    return blocks


AROUND = (PerBlock, OverHeads, OverMatrices)
"""Rules that hold another."""


# ---------------------------------------------------------------------- rules in the training loop


def update(
    rule: Rule, grads: Tree, memory: Tree, params: Tree, last: bool, extra: Options
) -> tuple[Tree, Tree]:
    """One update; last: whether the arrays carry runs behind their own axes, over which optax is mapped."""

    def of_one(grads: Tree, memory: Tree, params: Tree, extra: Options) -> tuple[Tree, Tree]:
        return rule.update(grads, memory, params, **extra)

    updates, memory = each(of_one, last and is_foreign(rule))(grads, memory, params, extra)
    for new, old in zip(jax.tree.leaves(updates), jax.tree.leaves(params), strict=True):
        if new.shape != old.shape:  # jnp.add would broadcast it
            raise ValueError(
                f"the optimizer's update has shape {new.shape} where what it trains has {old.shape}. "
                "Return an update for every entry."
            )
    return updates, memory


def per_run(rule: Any) -> dict[str, int]:
    """The number of runs of every number of a rule that is given per run, by name."""
    if isinstance(rule, AROUND):
        return per_run(rule.rule)
    fields = {} if rule is None or is_foreign(rule) else vars(rule)
    several = {name: value for name, value in fields.items() if isinstance(value, tuple) and name != "norm"}
    return {name: len(value) for name, value in several.items()}


def is_foreign(rule: Any) -> bool:
    """Whether a rule is one of optax's, which may use any of the extra arguments."""
    return is_foreign(rule.rule) if isinstance(rule, AROUND) else isinstance(rule, Foreign)
