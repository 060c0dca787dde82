"""Max-margin token selection as a layer of JAX: certified solutions of many programs at once, with gradients.

    min N(W)  subject to  (x_s − x_t)ᵀ W z ≥ required,  s selected, t not

The solvers of `program/` and the compiled backward pass run on the host in float64; a program that XLA
compiled calls them back. JAX has float32 alone unless `jax_enable_x64` is set: float64 numbers that only the
host reads travel as pairs of uint32.
"""

from __future__ import annotations

import os
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

from attsvm.norms import Norm, frobenius
from attsvm.norms.names import as_norm
from attsvm.program.derivative.arguments import Choice, Data, Degenerate, Unseparable, check_options, prepared
from attsvm.program.derivative.batch import Batch, Measured, NotDifferentiable, Results, restored, solve_batch
from attsvm.program.solution import Solution

__all__ = ["MaxMargin", "NotDifferentiable", "max_margin"]


class Solved(NamedTuple):
    """The solver's results in float64, as pairs of uint32 in the last axis; separable (…,)."""

    W: Any
    multipliers: Any
    separable: Any


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
        return _batch(self.program).solution

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
    if not isinstance(keys, Array | np.ndarray):
        raise TypeError(f"keys are a {type(keys).__name__}. Pass an array (…, n, T, d) of real numbers.")
    keys = jnp.asarray(keys)
    data, choice = prepared(Arrays(keys.dtype), keys, selected, queries, required, slack, mask)
    results, solved = _solve(Options(norm, unseparable, degenerate), data, choice)
    program = Program(*jax.lax.stop_gradient((data, choice, solved)), norm)
    return MaxMargin(*results, solved.separable, program)


class Arrays(NamedTuple):
    """Arrays of JAX, numbers in the type of the keys."""

    dtype: Any
    namespace: Any = jnp

    def array(self, name: str, x: Any) -> Array:
        return jnp.asarray(x)

    def numbers(self, x: Array) -> Array:
        return x.astype(self.dtype)

    def ones(self, *shape: int) -> Array:
        return jnp.ones(shape, self.dtype)

    def arange(self, stop: int) -> Array:
        return jnp.arange(stop)

    def on_host(self, x: Array) -> NDArray[Any] | None:
        return None if _traced([x]) else np.asarray(x)


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
    return _on_host(_pulled_back_on_host, shapes, program, present), None


_solve.defvjp(_solve_forward, _solve_backward, symbolic_zeros=True)


def _measured(program: Program) -> Measured:
    like, dtype = program.solved.separable, program.data.keys.dtype
    one = jax.ShapeDtypeStruct(like.shape, dtype)
    yes = jax.ShapeDtypeStruct(like.shape, np.bool_)
    shapes = Measured(yes, one, one, jax.ShapeDtypeStruct(program.choice.selected.shape, np.bool_))
    return _on_host(_measured_on_host, shapes, program)


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
        platforms = os.environ.get("JAX_PLATFORMS", "cuda")
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


def _solved_on_host(options: Options, data: Data, choice: Choice) -> tuple[Results, Solved]:
    batch = solve_batch(data, choice, options.norm)
    batch.check(options.unseparable, options.degenerate)
    pairs = (batch.over_axes(x).view(np.uint32) for x in (batch.solution.W, batch.multipliers))
    solved = Solved._make((*pairs, batch.over_axes(batch.separable)))
    return _as_type(data.keys.dtype, batch.results), solved


def _batch(program: Program) -> Batch:
    """The batch that the host solved before."""
    W, multipliers, separable = map(np.asarray, program.solved)
    numbers = W.view(np.float64), multipliers.view(np.float64)
    return restored(program.data, program.choice, program.norm, *numbers, separable)


def _pulled_back_on_host(program: Program, bars: Results) -> Data:
    # A loop of JAX makes zeros where nothing depends on a result. They must not ask for the derivative of W
    # in a norm that has none.
    present = Results(*(x if x is not None and np.any(x) else None for x in bars))
    out, data = _batch(program).pull_back(present), program.data
    return _as_type(data.keys.dtype, out if data.price is not None else out._replace(price=None))


def _measured_on_host(program: Program) -> Measured:
    return _as_type(program.data.keys.dtype, _batch(program).measured)


def _as_type(dtype: Any, tree: Any) -> Any:
    """Real numbers in a type of JAX."""
    return jax.tree.map(lambda x: x if x.dtype == bool else x.astype(dtype), tree)
