"""A program of JAX in which each use of a number is rounded anew, as by a compiler that computes it again."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal


def rounded_anew(function: Callable[..., Any], seed: int) -> Callable[..., Any]:
    """The function, of which every operation reads its numbers with another last digit.

    XLA may compute a number once for a maximum and once more for its derivative, in two kernels that round
    differently. A choice that hangs on such a number is then made twice, and not alike.
    """

    def evaluated(*arguments: Any) -> Any:
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
        leaves = _evaluated(closed, jax.tree.leaves(arguments), np.random.default_rng(seed))
        return jax.tree.unflatten(jax.tree.structure(shape), leaves)

    return evaluated


def _evaluated(closed: ClosedJaxpr, arguments: list[Any], rng: np.random.Generator) -> list[Any]:
    values = dict(zip(closed.jaxpr.invars, arguments, strict=True))
    values |= dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))

    def read(atom: Any) -> Any:
        if isinstance(atom, Literal):
            return atom.val
        value = values[atom]
        if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            return value
        value = jnp.asarray(value)
        return value * (1 + jnp.finfo(value.dtype).eps * rng.choice([-1, 0, 1], value.shape))

    for equation in closed.jaxpr.eqns:
        inputs = [read(atom) for atom in equation.invars]
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        if inner is not None:
            outputs = _evaluated(inner, inputs, rng)
        else:
            outputs = equation.primitive.bind(*inputs, **equation.params)
            outputs = outputs if equation.primitive.multiple_results else [outputs]
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]
