"""The steepest direction of a tree of parameters, which may carry runs behind their own axes (lanes.py)."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.flatten_util import ravel_pytree

from attsvm.norms import Entrywise, Norm, Schatten
from attsvm.training.lanes import each

Tree = Any


def direction(norm: Norm, tree: Tree, last: bool) -> Tree:
    """argmax ⟨tree, Δ⟩ over N(Δ) ≤ 1: one vector, or one block matrix for a Schatten norm."""
    leaves, shape = jax.tree.flatten(tree)
    if isinstance(norm, Entrywise) or (isinstance(norm, Schatten) and norm.p == 2):
        unit = Entrywise(norm.p).steepest_along(vector(tree, last))
        ends = np.cumsum([_own_size(leaf, last) for leaf in leaves])[:-1]
        parts = [part.reshape(leaf.shape) for part, leaf in zip(jnp.split(unit, ends), leaves, strict=True)]
        return jax.tree.unflatten(shape, parts)
    return jax.tree.unflatten(shape, each(lambda leaves: _of_matrices(norm, leaves), last)(leaves))


def vector(tree: Tree, last: bool) -> Array:
    """All entries of a tree along the first axis, runs behind them."""
    leaves = jax.tree.leaves(tree)
    flat = [leaf.reshape(_own_size(leaf, last), *leaf.shape[leaf.ndim - last :]) for leaf in leaves]
    return flat[0] if len(flat) == 1 else jnp.concatenate(flat)


def _own_size(leaf: Array, last: bool) -> int:
    return math.prod(leaf.shape[: leaf.ndim - last])


def _of_matrices(norm: Norm, leaves: list[Array]) -> list[Array]:
    if len(leaves) == 1 and leaves[0].ndim in (1, 2):
        return [norm.steepest(leaves[0])]
    if isinstance(norm, Schatten):
        return _block_steepest(norm, leaves)
    vector, restore = ravel_pytree(leaves)
    return restore(norm.steepest(vector))


def _block_steepest(norm: Schatten, leaves: list[Array]) -> list[Array]:
    if any(leaf.ndim not in (1, 2) for leaf in leaves):
        raise ValueError(f"steepest in the {norm} norm needs matrices or vectors.")
    blocks = [leaf[:, None] if leaf.ndim == 1 else leaf for leaf in leaves]
    joint = norm.steepest(jax.scipy.linalg.block_diag(*blocks))
    out, row, column = [], 0, 0
    for leaf, block in zip(leaves, blocks, strict=True):
        rows, columns = block.shape
        out.append(joint[row : row + rows, column : column + columns].reshape(leaf.shape))
        row, column = row + rows, column + columns
    return out
