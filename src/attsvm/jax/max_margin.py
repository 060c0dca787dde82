"""Max-margin token selection as a layer of JAX: certified solutions of many programs at once, with gradients.

    min N(W)  subject to  (x_s − x_t)ᵀ W z ≥ required,  s selected, t not

The solvers of `program/` and the compiled backward pass run on the host in float64; a program that XLA
compiled calls them back. JAX has float32 alone unless `jax_enable_x64` is set: float64 numbers that only the
host reads travel as pairs of uint32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.custom_derivatives import SymbolicZero
from numpy.typing import ArrayLike, NDArray

from attsvm.data.tokens import Tokens
from attsvm.norms import Norm, frobenius
from attsvm.norms.names import as_norm
from attsvm.program.derivative.arguments import (
    Degenerate,
    Unseparable,
    check_keys,
    check_options,
    check_trailing,
    no_common_axes,
    outside,
)
from attsvm.program.derivative.batch import Batch, NotDifferentiable, restored, solve_batch
from attsvm.program.solution import Solution

__all__ = ["MaxMargin", "NotDifferentiable", "max_margin"]


AnyArray = Any
"""An array of JAX or of the host, its shape and type, or None."""


class Data(NamedTuple):
    """keys (…, n, T, d), queries (…, n, e), required (…, n); the price (…, n) of a soft margin, or None."""

    keys: AnyArray
    queries: AnyArray
    required: AnyArray
    price: AnyArray


class Choice(NamedTuple):
    """What has no derivative: booleans (…, n, T)."""

    selected: AnyArray
    mask: AnyArray


class Results(NamedTuple):
    """W (…, d, e), norm and margin (…,), multipliers (…, n, T); ξ (…, n) of a soft margin, or None."""

    W: AnyArray
    norm: AnyArray
    margin: AnyArray
    multipliers: AnyArray
    shortfall: AnyArray


class Solved(NamedTuple):
    """The solver's results in float64, as pairs of uint32 in the last axis; separable (…,)."""

    W: AnyArray
    multipliers: AnyArray
    separable: AnyArray


@partial(jax.tree_util.register_dataclass, data_fields=["data", "choice", "solved"], meta_fields=["norm"])
@dataclass(frozen=True, eq=False)
class Program:
    """Programs with their solutions: all that the host needs for the derivative and the certificate."""

    data: Data
    choice: Choice
    solved: Solved
    norm: Norm


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["W", "norm", "margin", "multipliers", "shortfall", "separable", "program"],
    meta_fields=[],
)
@dataclass(frozen=True, eq=False, repr=False)
class MaxMargin:
    """Solutions of max-margin programs as arrays of JAX, and a pytree: jit may return it.

    With gradients, and NaN where the program is not separable: W (…, d, e); norm N(W), margin 1/N(W) (…,);
    multipliers (…, n, T), those of `attsvm.Solution`, zero where there is no row; shortfall (…, n): ξ of a
    soft margin, else None.
    separable (…,); program: the data and the solver's results, from which the rest is computed when asked.
    """

    W: Array
    norm: Array
    margin: Array
    multipliers: Array
    shortfall: Array | None
    separable: Array
    program: Program

    @property
    def regular(self) -> Array:
        """Whether the solution has a derivative (…,): each row clearly active or not, and none redundant."""
        return self._measured.regular

    @property
    def strictness(self) -> Array:
        """How clearly every row is active or not (…,), relative to the program: 0 at a kink."""
        return self._measured.strictness

    @property
    def pivot(self) -> Array:
        """How clearly the active rows are independent (…,): from 1 down to 0, where one depends on others."""
        return self._measured.pivot

    @property
    def support(self) -> Array:
        """Tokens whose margin is the required one, or falls short of it: bool (…, n, T)."""
        return self._measured.support

    @property
    def solution(self) -> Solution:
        """The solver's `attsvm.Solution`, with one axis of runs; its certificate is made when asked."""
        leaves = jax.tree.leaves(self.program)
        if _traced(leaves):
            raise RuntimeError(
                "a solution has no place in a program that is traced. Return the record from jit, vmap or "
                "grad(…, has_aux=True), and ask it for its solution."
            )
        return _batch(self.program.norm, *_host_arrays(self.program)).solution

    @cached_property
    def _measured(self) -> Measured:
        return _measured(self.program)

    def __repr__(self) -> str:
        d, e = self.W.shape[-2:]
        runs = f"{self.separable.size} programs" if self.separable.ndim else "one program"
        return f"MaxMargin({runs}, W {d} × {e}, {self.W.dtype})"


def max_margin(
    keys: ArrayLike,
    selected: ArrayLike,
    queries: ArrayLike | None = None,
    *,
    norm: Norm | str = frobenius,
    required: ArrayLike = 1.0,
    slack: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    unseparable: Unseparable = "raise",
    degenerate: Degenerate = "flag",
) -> MaxMargin:
    """Smallest W that separates the selected tokens from the others, for every program of a batch.

        min N(W)  subject to  (x_s − x_t)ᵀ W z ≥ required,  s selected, t not

    keys (…, n, T, d); queries (…, n, e), or None: z is the constant 1, and W (d, 1) the prompt.
    selected: bool (…, n, T), or indices (…, n); several selected tokens of an example are tied.
    mask (…, n, T): True for a token, False for padding. The batch axes (…) broadcast.
    required, slack: one number, or (…, n); slack is the price C of a soft margin, see `attsvm.max_margin`.
    unseparable: "raise" NotSeparable, which names the runs, or "nan": NaN for their results and gradients.
    degenerate: what to do where the solution has no derivative: "flag" in `regular` alone, "warn", or "raise"
        NotDifferentiable.

    Gradients of keys, queries, required and slack, by one backward pass; under jit, vmap and scan. The
    results have the type of the keys; the solver computes on the host in float64. Under jit an error of the
    solver is a jax.errors.JaxRuntimeError with its message; a GPU raises it where the result is read. The
    certificate covers W and its gap, not the gradient.
    """
    norm = norm if norm is frobenius else as_norm(norm)
    check_options(unseparable, degenerate)
    data, choice = _prepared(keys, selected, queries, required, slack, mask)
    results, solved = _solve(Options(norm, unseparable, degenerate), data, choice)
    program = Program(*jax.lax.stop_gradient((data, choice, solved)), norm)
    return MaxMargin(*results, solved.separable, program)


# ---------------------------------------------------------------------- arguments


def _prepared(
    keys: Any, selected: Any, queries: Any, required: Any, slack: Any, mask: Any
) -> tuple[Data, Choice]:
    """The arguments with the same batch axes, numbers in the type of the keys, the rest as booleans."""
    if not hasattr(keys, "shape") or not jnp.issubdtype(getattr(keys, "dtype", object), jnp.floating):
        raise TypeError(f"keys are {_described(keys)}. Pass an array (…, n, T, d) of real numbers.")
    keys = jnp.asarray(keys)
    check_keys(keys.shape, _described(keys))
    *batch, n, T, _ = keys.shape
    chosen = _as_selected(selected, n, T)
    queries = jnp.ones((n, 1), keys.dtype) if queries is None else _as_real("queries", queries, keys)
    check_trailing("queries", queries.shape, _described(queries), "(…, n, e)", (n, None))
    if 0 in queries.shape:
        raise ValueError(f"queries is {_described(queries)}. Pass (…, n, e), at least one of each.")
    tokens = jnp.ones((n, T), bool) if mask is None else jnp.asarray(mask)
    fits = tokens.shape if tokens.dtype == bool else None
    check_trailing("mask", fits, _described(tokens), "(…, n, T) of booleans", (n, T))
    margins = _per_example("required", required, keys, n)
    price = None if slack is None else _per_example("slack", slack, keys, n)
    shapes = [tuple(batch), queries.shape[:-2], chosen.shape[:-2], tokens.shape[:-2]]
    shapes += [x.shape[:-1] for x in (margins, price) if x is not None]
    try:
        axes = np.broadcast_shapes(*shapes)
    except ValueError:
        raise no_common_axes(shapes) from None

    def over_axes(x: Array, axes_of_one: int) -> Array:
        return jnp.broadcast_to(x, (*axes, *x.shape[x.ndim - axes_of_one :]))

    data = Data(
        over_axes(keys, 3),
        over_axes(queries, 2),
        over_axes(margins, 1),
        None if price is None else over_axes(price, 1),
    )
    return data, Choice(over_axes(chosen, 2), over_axes(tokens, 2))


def _described(x: Any) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if hasattr(x, "shape") else f"a {type(x).__name__}"


def _as_real(name: str, x: Any, keys: Array) -> Array:
    """Numbers in the type of the keys."""
    array = jnp.asarray(x)
    if not (jnp.issubdtype(array.dtype, jnp.floating) or jnp.issubdtype(array.dtype, jnp.integer)):
        raise TypeError(f"{name} is {_described(array)}. Pass real numbers.")
    return array.astype(keys.dtype)


def _as_selected(selected: Any, n: int, T: int) -> Array:
    """The selection as booleans (…, n, T)."""
    array = jnp.asarray(selected)
    if array.dtype == bool:
        check_trailing("selected", array.shape, _described(array), "(…, n, T)", (n, T))
        return array
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"selected is {_described(array)}. Pass booleans (…, n, T) or indices (…, n).")
    check_trailing("selected", array.shape, _described(array), "booleans (…, n, T) or indices (…, n)", (n,))
    if not _traced([array]):
        index = np.asarray(array)  # operations of JAX would be traced under jit
        if ((index < 0) | (index >= T)).any():
            raise outside(int(index.min()), int(index.max()), T)
    return array[..., None] == jnp.arange(T)


def _per_example(name: str, x: Any, keys: Array, n: int) -> Array:
    """One number, or (…, n), as an array (…, n)."""
    numbers = _as_real(name, x, keys)
    if numbers.ndim == 0:
        return jnp.broadcast_to(numbers, (n,))
    check_trailing(name, numbers.shape, _described(numbers), "one number, or (…, n)", (n,))
    return numbers


# ---------------------------------------------------------------------- one backward pass


class Options(NamedTuple):
    norm: Norm
    unseparable: Unseparable
    degenerate: Degenerate


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _solve(options: Options, data: Data, choice: Choice) -> tuple[Results, Solved]:
    (*axes, n, T, d), e, kind = data.keys.shape, data.queries.shape[-1], data.keys.dtype

    def shape(*of_one: int, dtype: Any = kind) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((*axes, *of_one), dtype)

    shortfall = None if data.price is None else shape(n)
    results = Results(shape(d, e), shape(), shape(), shape(n, T), shortfall)
    pairs = shape(d, 2 * e, dtype=np.uint32), shape(n, 2 * T, dtype=np.uint32)
    return _on_host(
        partial(_solved_on_host, options), (results, Solved(*pairs, shape(dtype=bool))), data, choice
    )


def _solve_forward(options: Options, data: Any, choice: Any) -> Any:
    data, choice = jax.tree.map(lambda x: x.value, (data, choice), is_leaf=lambda x: hasattr(x, "perturbed"))
    results, solved = _solve(options, data, choice)
    return (results, solved), Program(data, choice, solved, options.norm)


def _solve_backward(options: Options, program: Program, bars: tuple[Results, Solved]) -> Any:
    """Cotangents of the data; results that nothing depends on have none, and norms may be without theirs."""
    present = Results(*(None if isinstance(bar, SymbolicZero) else bar for bar in bars[0]))
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), program.data)
    function = partial(_pulled_back_on_host, options.norm)
    return _on_host(function, shapes, program.data, program.choice, program.solved, present), None


_solve.defvjp(_solve_forward, _solve_backward, symbolic_zeros=True)


class Measured(NamedTuple):
    """regular, strictness, pivot (…,), support (…, n, T); see `MaxMargin`."""

    regular: AnyArray
    strictness: AnyArray
    pivot: AnyArray
    support: AnyArray


def _measured(program: Program) -> Measured:
    like, dtype = program.solved.separable, program.data.keys.dtype
    one = jax.ShapeDtypeStruct(like.shape, dtype)
    yes = jax.ShapeDtypeStruct(like.shape, np.bool_)
    shapes = Measured(yes, one, one, jax.ShapeDtypeStruct(program.choice.selected.shape, np.bool_))
    function = partial(_measured_on_host, program.norm)
    return _on_host(function, shapes, program.data, program.choice, program.solved)


# ---------------------------------------------------------------------- on the host


def _traced(arrays: Sequence[Any]) -> bool:
    return any(isinstance(x, jax.core.Tracer) for x in arrays)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _on_host(function: Callable[..., Any], shapes: Any, *trees: Any) -> Any:
    """What a function of NumPy arrays returns, called now or by the program that is being traced."""
    if _traced(jax.tree.leaves(trees)):
        _check_host()
        return jax.pure_callback(function, shapes, *trees, vmap_method="broadcast_all")
    out = function(*trees)
    return jax.tree.map(jnp.asarray, out)


def _check_host() -> None:
    try:
        jax.local_devices(backend="cpu")
    except RuntimeError:
        platforms = jax.config.jax_platforms
        raise RuntimeError(
            f"the solver runs on the CPU, and JAX_PLATFORMS={platforms} leaves JAX without one. Set "
            f"JAX_PLATFORMS={platforms},cpu before JAX is imported."
        ) from None


@_on_host.defjvp
def _refuse(function: Any, shapes: Any, *_: Any) -> Any:
    raise NotImplementedError(
        "JAX has one backward pass of max_margin, and no derivative of it. For second derivatives use "
        "attsvm.torch.max_margin."
    )


def _host_arrays(program: Program) -> tuple[Data, Choice, Solved]:
    return program.data, program.choice, program.solved


def _flat(x: Any, axes: int, dtype: Any) -> NDArray[Any]:
    """An array of the host with one axis of runs before the last axes of one program."""
    array = np.asarray(x).astype(dtype)
    return array.reshape(-1, *array.shape[array.ndim - axes :])


def _numbers(data: Data, choice: Choice) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """The batch axes; keys, queries, mask, selected, required, price with one axis of runs."""
    axes = tuple(np.shape(data.keys)[:-3])
    keys, queries, required = (_flat(x, k, np.float64) for x, k in zip(data[:3], (3, 2, 1), strict=True))
    selected, mask = (_flat(x, 2, bool) for x in choice)
    price = None if data.price is None else _flat(data.price, 1, np.float64)
    return axes, (keys, queries, mask, selected, required, price)


def _solved_on_host(options: Options, data: Data, choice: Choice) -> tuple[Results, Solved]:
    axes, (keys, queries, mask, selected, required, price) = _numbers(data, choice)
    batch = solve_batch(keys, queries, mask, selected, required, price, options.norm, axes)
    batch.check(options.unseparable, options.degenerate)

    def shaped(x: NDArray[Any], dtype: Any) -> Any:
        return x.reshape((*axes, *x.shape[1:])).astype(dtype)

    def pairs(x: NDArray[Any]) -> Any:
        return shaped(np.ascontiguousarray(x, np.float64).view(np.uint32), np.uint32)

    results = Results(*(None if x is None else shaped(x, data.keys.dtype) for x in batch.results))
    return results, Solved(pairs(batch.solution.W), pairs(batch.multipliers), shaped(batch.separable, bool))


def _batch(norm: Norm, data: Data, choice: Choice, solved: Solved) -> Batch:
    """The batch that the host solved before."""
    axes, (keys, queries, mask, selected, required, price) = _numbers(data, choice)
    W, multipliers = (_flat(x, 2, np.uint32).view(np.float64) for x in solved[:2])
    separable = np.asarray(solved.separable).reshape(-1)
    tokens = Tokens(keys, queries, mask=mask)
    return restored(tokens, selected, required, price, norm, W, multipliers, separable, axes)


def _pulled_back_on_host(norm: Norm, data: Data, choice: Choice, solved: Solved, bars: Results) -> Data:
    batch = _batch(norm, data, choice, solved)
    axes = 2, 0, 0, 2, 1
    given = (None if x is None else _flat(x, k, np.float64) for x, k in zip(bars, axes, strict=True))
    # A loop of JAX makes zeros where nothing depends on a result. They must not ask for the derivative of W
    # in a norm that has none.
    out = batch.pull_back(*(x if x is not None and x.any() else None for x in given))
    pairs = zip(data, out, strict=True)
    return Data(*(None if x is None else bar.reshape(x.shape).astype(x.dtype) for x, bar in pairs))


def _measured_on_host(norm: Norm, data: Data, choice: Choice, solved: Solved) -> Measured:
    batch = _batch(norm, data, choice, solved)
    derivative, axes, dtype = batch.derivative, batch.axes, data.keys.dtype
    strictness, pivot = (
        np.array(x).reshape(axes).astype(dtype) for x in (derivative.strictness, derivative.pivot)
    )
    support = batch.support.reshape((*axes, *batch.support.shape[1:]))
    return Measured(batch.regular.reshape(axes), strictness, pivot, support)
