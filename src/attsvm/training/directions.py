"""The steepest direction of a tree of parameters, which may carry runs behind their own axes (runs.py)."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from attsvm.norms import Entrywise, Norm, capabilities_of
from attsvm.training.compilation import backend
from attsvm.training.programs import where
from attsvm.training.runs import each
from attsvm.training.small_svd import LARGEST, small_svd

Tree = Any


def direction(norm: Norm, tree: Tree, last: bool) -> Tree:
    """argmax ⟨tree, Δ⟩ over N(Δ) ≤ 1: one vector, or one matrix for norms of rows and singular values."""
    leaves, shape = jax.tree.flatten(tree)
    traits = capabilities_of(norm)
    if traits.acts_on == "entries" or traits.euclidean:
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
    if any(leaf.ndim not in (1, 2) for leaf in leaves):
        raise ValueError(f"steepest in the {norm} norm needs matrices or vectors.")
    acts_on = capabilities_of(norm).acts_on
    if acts_on == "singular values":
        return _block_steepest(norm, leaves)
    if len(leaves) == 1:
        return [norm.steepest(leaves[0])]
    if acts_on == "rows":
        return _stacked_steepest(norm, leaves)
    # Of (Σ N^p)^(1/p) over the arrays: each has its own direction, and they share one length.
    sizes = jnp.stack([norm.dual.value(leaf) for leaf in leaves])
    shares = Entrywise(norm.p).steepest_along(sizes)
    return [share * norm.steepest(leaf) for share, leaf in zip(shares, leaves, strict=True)]


def _stacked_steepest(norm: Norm, leaves: list[Array]) -> list[Array]:
    """That of all rows below each other, which takes half the time of one array after the other.

    Zeros beside rows leave them as long as they are.
    """
    blocks = [leaf[:, None] if leaf.ndim == 1 else leaf for leaf in leaves]
    width = max(block.shape[1] for block in blocks)
    rows = jnp.concatenate([jnp.pad(block, ((0, 0), (0, width - block.shape[1]))) for block in blocks])
    parts = jnp.split(norm.steepest(rows), np.cumsum([len(block) for block in blocks])[:-1])
    own = zip(parts, blocks, leaves, strict=True)
    return [part[:, : block.shape[1]].reshape(leaf.shape) for part, block, leaf in own]


def _block_steepest(norm: Norm, leaves: list[Array]) -> list[Array]:
    """That of one block matrix: every block has its own singular vectors, their values are one vector."""
    blocks = [leaf[:, None] if leaf.ndim == 1 else leaf for leaf in leaves]
    largest = jnp.stack([jnp.abs(block).max() for block in blocks]).max()
    scale = 1 / where(largest > 0, largest, 1)  # powers of 1e±150 would over- or underflow
    U, values, Vt = zip(*decomposed([block * scale for block in blocks]), strict=True)
    sigma = jnp.concatenate(values)
    # As norms.Schatten: noise would be blown up to full size.
    size = max(sum(block.shape[0] for block in blocks), sum(block.shape[1] for block in blocks))
    sigma = where(sigma > size * np.finfo(sigma.dtype).eps * sigma.max(), sigma, 0)
    unit = jnp.split(Entrywise(norm.p).steepest_along(sigma), np.cumsum([len(one) for one in values])[:-1])
    return [
        ((u * own) @ vt).reshape(leaf.shape) for u, own, vt, leaf in zip(U, unit, Vt, leaves, strict=True)
    ]


def decomposed(blocks: list[Array]) -> list[Any]:
    """U, σ, Vᵀ of each: on a GPU by rotations of all at once, blocks of one shape together."""
    if backend() == "cpu" or max(min(block.shape) for block in blocks) > LARGEST:
        return [jnp.linalg.svd(block, full_matrices=False) for block in blocks]
    if len({block.shape for block in blocks}) > 1:
        return [small_svd(block) for block in blocks]
    found = jax.vmap(small_svd)(jnp.stack(blocks))
    return [tuple(part[k] for part in found) for k in range(len(blocks))]
