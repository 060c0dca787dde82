"""Compiled programs: a bounded number of them is kept, and `where` keeps them small."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from functools import partial
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attsvm.training.types import AnyArray, Function, Tree

MOST = 16
"""The number of compiled programs that a function keeps; a program takes about ten megabytes."""


class Program:
    """A function, compiled once for every form of its arguments: jax.jit with a bounded number of programs.

    jax.jit alone keeps all that it ever compiled. Here every form has a jit of its own: dropping it frees its
    program and all that JAX stores about it. A later call compiles it again, or reads it from the disk
    (compilation.py).

    static: so many of the first arguments are compiled in; the others are arrays, or trees of arrays.
    """

    def __init__(self, function: Function, static: int = 0, **options: Any) -> None:
        self.function, self.static, self.options = function, static, options
        self.__doc__ = function.__doc__
        self._held: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = Lock()

    def __call__(self, *arguments: Tree) -> Tree:
        return self.of(*arguments)(*arguments[self.static :])

    def __len__(self) -> int:
        """Forms for which it is compiled."""
        return len(self._held)

    def of(self, *arguments: Tree) -> Function:
        """The jit that serves these arguments, and takes those that are not static."""
        fixed = arguments[: self.static]
        leaves, tree = jax.tree.flatten(arguments[self.static :])
        form = (fixed, tree, tuple(map(_form, leaves)))
        with self._lock:  # parts of the runs are computed by threads
            if form not in self._held:
                self._held[form] = jax.jit(partial(self.function, *fixed), **self.options)
            self._held.move_to_end(form)
            while len(self._held) > MOST:
                self._held.popitem(last=False)
            return self._held[form]


def _form(leaf: AnyArray) -> Hashable:
    return getattr(leaf, "shape", ()), getattr(leaf, "dtype", type(leaf))


def where(test: AnyArray, yes: AnyArray, no: AnyArray) -> Array:
    """jnp.where, as operations of the program that calls it.

    jnp.where adds a function to every program. A training step has twenty of them, so that tracing and
    compiling the first training would take a tenth longer. Outside of programs jnp.where itself is called: it
    is one program instead of three.

    test: bool; yes, no: arrays or numbers. All three broadcast together.
    """
    if not any(isinstance(x, jax.core.Tracer) for x in (test, yes, no)):
        return jnp.where(test, yes, no)
    dtype = jnp.result_type(yes, no)
    shape = np.broadcast_shapes(np.shape(test), np.shape(yes), np.shape(no))
    return lax.select(_wide(test, np.dtype(bool), shape), _wide(yes, dtype, shape), _wide(no, dtype, shape))


def _wide(x: AnyArray, dtype: Any, shape: tuple[int, ...]) -> AnyArray:
    if not isinstance(x, Array):
        x = np.asarray(x, dtype)
    if x.dtype != dtype:
        x = lax.convert_element_type(x, dtype)
    return x if x.shape == shape else lax.broadcast_in_dim(x, shape, range(len(shape) - x.ndim, len(shape)))
