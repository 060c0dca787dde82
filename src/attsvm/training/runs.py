"""The runs axis: which arrays have one, how the others are shared, and arrays that have it last.

Inside compiled programs the runs of small problems are the last axis, side by side in the lanes of vector
instructions. The formulas of training count their own axes from the front, so an array may carry runs behind
them or not. A function of one run alone (an optax optimizer, a user's head) is mapped over the last axis by
`each`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attsvm.training.types import Arrays, Floats, Function, Tree

Named = Mapping[str, Floats]


def counts(arrays: Named, axes: Mapping[str, int]) -> dict[str, int]:
    """Number of runs of every array that has one axis more than its own `axes[name]`."""
    return {name: a.shape[0] for name, a in arrays.items() if a.ndim > axes[name]}


def common(counts: Mapping[str, int | None]) -> int | None:
    """The number of runs that all agree on; None where nothing has a runs axis."""
    present = {name: count for name, count in counts.items() if count is not None}
    if len(set(present.values())) > 1:
        raise ValueError(f"the runs axes differ: {present}. Give every array the same number, or none.")
    for name, count in present.items():
        if count == 0:
            raise ValueError(f"{name} has 0 runs. Pass at least one, or an array without a runs axis.")
    return next(iter(present.values()), None)


def repeated(arrays: Named, axes: Mapping[str, int], runs: int | None) -> Arrays:
    """Every array with the runs axis, shared ones repeated; unchanged without runs."""
    return {
        name: a if runs is None or a.ndim > axes[name] else np.broadcast_to(a, (runs, *a.shape))
        for name, a in arrays.items()
    }


# ---------------------------------------------------------------------- runs as the last axis

FEWEST, LONGEST = 8, 32
"""Runs as the last axis are faster from so many runs on, if no sum of a step has more terms than the second
number: each term is a separate operation."""
FEWEST_ON_GPU, LONGEST_ON_GPU = 4096, 10
"""The same numbers for a GPU: otherwise runs as the first axis take two thirds of the time or less."""
TALL = 1 << 10
"""From so many examples on, a sum over them transposes the matrix, which halves the time of XLA for CPUs."""
IN_KERNEL: Any = object()
"""The fence of arrays that are traced into a kernel (fused.py), which has elementwise products only."""


barrier: Any = lax.optimization_barrier


def contract(names: str, a: Array, b: Array, fence: Array | None = None) -> Array:
    """Σ over the one letter that "ntd,nd->nt" leaves out, of two arrays that may both carry runs last.

    fence: a True that the compiler cannot see. Without it XLA for CPUs computes an intermediate sum again for
    every element that reads it; what a branch returns, it computes once.
    """
    (of_a, of_b), out = names[: names.index("->")].split(","), names[names.index("->") + 2 :]
    (summed,) = (set(of_a) | set(of_b)) - set(out)
    if fence is IN_KERNEL:
        return _broadcast_and_summed((a, of_a), (b, of_b), summed)
    if a.ndim == len(of_a) and b.ndim == len(of_b):
        if of_a[0] == of_b[0] == summed and len(a) >= TALL:
            a, names = barrier(a.T), f"{of_a[::-1]},{of_b}->{out}"
        return jnp.einsum(names, a, b)

    def term(x: Array, letters: str, i: int) -> Array:
        if summed in letters:
            x = lax.index_in_dim(x, i, letters.index(summed), keepdims=False)
        return jnp.expand_dims(x, [k for k, letter in enumerate(out) if letter not in letters])

    def total(a: Array, b: Array) -> Array:
        count = a.shape[of_a.index(summed)]
        partial_sum = term(a, of_a, 0) * term(b, of_b, 0)
        for i in range(1, count):
            partial_sum = partial_sum + term(a, of_a, i) * term(b, of_b, i)
        return partial_sum

    return fenced(fence, total, a, b)


def fenced(fence: Array | None, function: Function, *arguments: Tree) -> Tree:
    """The function's value, computed once and not again at every use."""
    if fence is None:
        return barrier(function(*arguments))  # XLA for CPUs removes this barrier
    shapes = jax.eval_shape(function, *arguments)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return lax.cond(fence, function, lambda *_: nothing, *arguments)


def _broadcast_and_summed(a: tuple[Array, str], b: tuple[Array, str], summed: str) -> Array:
    # In this order of the letters a kernel's threads exchange the fewest numbers: a quarter less time.
    letters = "".join(dict.fromkeys(a[1] + b[1]))

    def wide(x: Array, axes: str) -> Array:
        x = jnp.transpose(x, sorted(range(x.ndim), key=lambda i: letters.index(axes[i])))
        return jnp.expand_dims(x, [k for k, letter in enumerate(letters) if letter not in axes])

    return (wide(*a) * wide(*b)).sum(letters.index(summed))


def each(function: Function, last: bool) -> Function:
    """A function of one run as one of arrays with runs last, where they have them."""
    return jax.vmap(function, in_axes=-1, out_axes=-1) if last else function


def to_last(tree: Tree) -> Tree:
    """Runs from the first axis to the last, in all arrays of a tree."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), tree)


def to_first(tree: Tree) -> Tree:
    """Runs from the last axis to the first."""
    return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), tree)
