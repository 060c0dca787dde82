"""Choosing between two arrays, inside compiled programs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax


def where(test: Any, yes: Any, no: Any) -> Array:
    """jnp.where, as operations of the program that asks for it.

    jnp.where is a function of its own in every program, and a training step calls twenty: with them the first
    training takes a tenth longer to trace and compile. Outside of programs this is jnp.where, which is one
    program instead of three.

    test: bool; yes, no: arrays or numbers. All three broadcast together.
    """
    if not any(isinstance(x, jax.core.Tracer) for x in (test, yes, no)):
        return jnp.where(test, yes, no)
    dtype = jnp.result_type(yes, no)
    shape = np.broadcast_shapes(np.shape(test), np.shape(yes), np.shape(no))
    return lax.select(_wide(test, np.dtype(bool), shape), _wide(yes, dtype, shape), _wide(no, dtype, shape))


def _wide(x: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    if not isinstance(x, Array):
        x = np.asarray(x, dtype)
    if x.dtype != dtype:
        x = lax.convert_element_type(x, dtype)
    return x if x.shape == shape else lax.broadcast_in_dim(x, shape, range(len(shape) - x.ndim, len(shape)))
