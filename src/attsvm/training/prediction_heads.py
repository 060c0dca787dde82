"""Prediction heads: what is read from the pooled token. A head is a value and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attsvm.data.selection import scores
from attsvm.data.tokens import Tokens
from attsvm.numbers.stored import Stored
from attsvm.training import losses
from attsvm.training.losses import Loss, NegativeLog, correlation, logistic
from attsvm.training.programs import where
from attsvm.training.types import AnyArray, Function, Options


@runtime_checkable
class Head(Protocol):
    """A function h of the pooled token r = Σ_t s_t value_t; the margin is f = Y h(r).

    value(pooled (n, c)) → (n,);  gradient(pooled (n, c)) → (n, c).

    Register your own head as a JAX dataclass; its gradient may come from autodiff:

        @jax.tree_util.register_dataclass
        @dataclass(frozen=True)
        class Cubic:
            v: Array
            def value(self, pooled):
                return (pooled @ self.v) ** 3
            def gradient(self, pooled):
                return jax.grad(lambda r: self.value(r).sum())(pooled)
    """

    def value(self, pooled: Array) -> Array: ...
    def gradient(self, pooled: Array) -> Array: ...


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class Linear:
    """h(r) = vᵀ r with v (c,), or one head per run, v (runs, c)."""

    v: AnyArray
    axes: ClassVar[dict[str, int]] = {"v": 1}

    @property
    def width(self) -> int:
        return int(self.v.shape[-1])

    def value(self, pooled: Array) -> Array:
        return pooled @ self.v

    def gradient(self, pooled: Array) -> Array:
        return jnp.broadcast_to(self.v, pooled.shape)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LinearHeads(Linear):
    """Σ_h v_hᵀ r_h of several heads, v (H, c), with runs (runs, H, c): Linear(v) with weight=MultiHead(H)."""

    axes: ClassVar[dict[str, int]] = {"v": 2}


def over_heads(function: Function, head: Head) -> Function:
    """A function of one head as one of arrays that have the heads first, where there are several."""
    return jax.vmap(function) if isinstance(head, LinearHeads) else function


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class ReLUNetwork:
    """h(r) = uᵀ max(Vᵀ r, 0) with V (c, h), u (h,); with runs V (runs, c, h), u (runs, h).

    Reference: Tarzanagh et al. 2023, "Transformers as Support Vector Machines", nonlinear heads.
    """

    V: AnyArray
    u: AnyArray
    axes: ClassVar[dict[str, int]] = {"V": 2, "u": 1}

    @property
    def width(self) -> int:
        return int(self.V.shape[-2])

    def value(self, pooled: Array) -> Array:
        return jnp.maximum(pooled @ self.V, 0) @ self.u

    def gradient(self, pooled: Array) -> Array:
        return where(pooled @ self.V > 0, self.u, 0) @ self.V.T


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class QuadraticPenalty:
    """h(r) = vᵀ r − strength ‖r‖² with v (c,), strength a number; with runs (runs, c), (runs,).

    The penalty rewards mixing tokens, so that several of them stay selected.
    Reference: Tarzanagh et al. 2023, "Transformers as Support Vector Machines", nonlinear heads.
    """

    v: AnyArray
    strength: AnyArray
    axes: ClassVar[dict[str, int]] = {"v": 1, "strength": 0}

    @property
    def width(self) -> int:
        return int(self.v.shape[-1])

    def value(self, pooled: Array) -> Array:
        return pooled @ self.v - self.strength * (pooled**2).sum(-1)

    def gradient(self, pooled: Array) -> Array:
        return self.v - 2 * self.strength * pooled


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class LogOdds:
    """h(r) = −log Σ_v e^(r_v): the log-odds of a label against all others, given theirs against it.

    Values that hold, per token, the output logits of all other classes minus the label's make the
    logistic loss of this margin the cross-entropy of the label: log(1 + e^(−h)) = −log softmax(label).
    The label reaches the head through the values, and neither value nor gradient cancels when the
    label has almost all the probability.
    """

    axes: ClassVar[dict[str, int]] = {}

    def value(self, pooled: Array) -> Array:
        return -jax.nn.logsumexp(pooled, axis=-1)

    def gradient(self, pooled: Array) -> Array:
        return -jax.nn.softmax(pooled, axis=-1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class SquaredError:
    """h(r) = −‖r‖²/2: the squared error of the attended value, the target inside the values.

        loss = ‖Σ_t s_t value_t − y‖²/2 = ‖Σ_t s_t (value_t − y)‖²/2

    Tokens hold value_t − y as values (n, T, c); c = 1 is a scalar target. A token that is the target has
    the value zero, exactly. So nothing cancels where attention is all on it: residual and gradient are
    sums of losing tokens, kept in log scale, and log_excess = log L (NaN where an example has no such token).
    """

    axes: ClassVar[dict[str, int]] = {}

    def value(self, pooled: Array) -> Array:
        return -(pooled**2).sum(-1) / 2

    def gradient(self, pooled: Array) -> Array:
        return -pooled


# ---------------------------------------------------------------------- at the door


def checked(head: Head, tokens: Tokens, count: int | None = None) -> Head:
    """The head with NumPy arrays of the tokens' dtype, after checking its shapes and numbers.

    count: the number of heads, each with separate values.
    """
    if isinstance(head, type) or not isinstance(head, Head):
        received = f"an array {np.shape(head)}" if hasattr(head, "__array__") else repr(head)
        raise TypeError(f"{received} is not a head. Pass Linear(v), or an object with value and gradient.")
    if count is not None:
        head = _several(head, count)
    name = type(head).__name__
    head = _with_numbers(head, name, tokens.keys.dtype)
    for field, axes in getattr(head, "axes", {}).items():
        shape = getattr(head, field).shape
        if len(shape) not in (axes, axes + 1):
            raise ValueError(f"{name}.{field} has shape {shape}. Pass {axes} axes, or a runs axis more.")
    width, need = getattr(head, "width", None), tokens.values.shape[-1]
    if width is not None and width != need:
        raise ValueError(f"the head {name} is {width} wide but the values are {need} wide.")
    if isinstance(head, ReLUNetwork) and head.V.shape[-1] != head.u.shape[-1]:
        raise ValueError(f"ReLUNetwork has V {head.V.shape} and u {head.u.shape}. Pass V (c, h) and u (h,).")
    if isinstance(head, SquaredError) and not (tokens.labels == 1).all():
        raise ValueError(
            "SquaredError takes no labels: a −1 would seek the largest error. Pass Tokens without labels, "
            "and values that hold value − target."
        )
    if type(head) not in (Linear, LinearHeads, ReLUNetwork, QuadraticPenalty, LogOdds, SquaredError):
        _check_functions(head, (tokens.n, need), tokens.keys.dtype)
    return head


def loss_of(head: Head, loss: Loss | None, tokens: Tokens) -> Loss:
    """The loss, by default logistic; SquaredError is one itself, and log_loss needs attention with f > 0."""
    if isinstance(head, SquaredError):
        if loss is not None:
            raise ValueError(f"SquaredError is a loss by itself, got {type(loss).__name__} of it. Drop loss.")
        return correlation
    loss = logistic if loss is None else loss
    losses.check(loss)
    if isinstance(head, Linear) and isinstance(loss, NegativeLog):
        v, several = np.asarray(head.v), isinstance(head, LinearHeads)
        for v_of_run in v if v.ndim > head.axes["v"] and tokens.runs is None else [v]:
            of_heads = np.moveaxis(v_of_run, -2, 0) if several else [v_of_run]
            most = np.asarray(sum(scores(tokens, v_of_head).max(-1) for v_of_head in of_heads))
            if not (most > 0).all():
                place = tuple(np.argwhere(most <= 0)[0])
                raise ValueError(
                    f"log_loss is −log of a positive number, and example {place[-1]} has scores up to "
                    f"{most[place]:.3g}: no attention has a positive mean. Pass another loss."
                )
    return loss


def check_best_loss(head: Head, tokens: Tokens) -> None:
    """Refuse a step that needs the best loss L* where it is not known."""
    if isinstance(head, Linear):
        return
    if not isinstance(head, SquaredError):
        raise ValueError(
            "polyak needs the best loss L*, which is known for Linear(v) and SquaredError(), "
            f"not for {type(head).__name__}. Pass one of them, or another optimizer."
        )
    values: AnyArray = tokens.values
    largest = values.largest() if isinstance(values, Stored) else np.abs(values).max(-1)
    missed = ~((largest == 0) & tokens.mask).any(-1)
    if missed.any():
        raise ValueError(
            f"polyak needs the best loss L*, and example {np.argwhere(missed)[0][-1]} has no token on its "
            "target: its error may not come to zero. Pass values with a zero row in every example, or "
            "another optimizer."
        )


def _several(head: Head, count: int) -> LinearHeads:
    if not isinstance(head, Linear):
        raise ValueError(f"several heads are read by Linear(v), v ({count}, c), got {type(head).__name__}.")
    v = np.asarray(head.v)
    if v.ndim == 1:
        return LinearHeads(np.broadcast_to(v, (count, len(v))))
    if v.ndim not in (2, 3) or v.shape[-2] != count:
        raise ValueError(
            f"v has shape {v.shape} for {count} heads. Pass ({count}, c), or (runs, {count}, c)."
        )
    return LinearHeads(v)


def _check_functions(head: Head, shape: tuple[int, int], dtype: Any) -> None:
    """Refuse values and gradients of other shapes, which would be broadcast."""
    named, axes = arrays(head)
    of_one_run = with_arrays(
        head, {name: a[0] if a.ndim > axes[name] and len(a) else a for name, a in named.items()}
    )
    with jax.enable_x64(True):
        pooled = jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]
        for method, expected in (("value", shape[:1]), ("gradient", shape)):
            returned = getattr(jax.eval_shape(getattr(of_one_run, method), pooled), "shape", None)
            if returned != expected:
                name = f"{type(head).__name__}.{method}"
                raise ValueError(f"{name} has shape {returned} for pooled tokens {shape}. Return {expected}.")


def _with_numbers(head: Head, name: str, dtype: Any) -> Head:
    try:
        numbers = {field: np.asarray(array) for field, array in arrays(head)[0].items()}
    except (TypeError, ValueError):
        numbers = {"": np.asarray(None)}
    if any(array.dtype.kind not in "biuf" for array in numbers.values()):
        raise TypeError(
            f"{name} holds something other than arrays of numbers. Pass arrays, and decorate a head "
            "of your own with jax.tree_util.register_dataclass."
        )
    if not all(np.isfinite(array).all() for array in numbers.values()):
        raise ValueError(f"the head {name} has a NaN or infinite entry.")
    return with_arrays(head, {field: array.astype(dtype) for field, array in numbers.items()})


def arrays(head: Head) -> tuple[dict[str, Any], dict[str, int]]:
    """The arrays of a head by name, and how many axes each has without runs."""
    axes = getattr(head, "axes", None)
    if axes is not None:
        return {name: getattr(head, name) for name in axes}, dict(axes)
    leaves = {str(i): leaf for i, leaf in enumerate(jax.tree.leaves(head))}
    return leaves, {name: np.ndim(leaf) for name, leaf in leaves.items()}


def with_arrays(head: Head, named: Options) -> Head:
    """The head with other arrays, named as in `arrays`."""
    if hasattr(head, "axes"):
        return type(head)(**named)
    return jax.tree.unflatten(jax.tree.structure(head), list(named.values()))
