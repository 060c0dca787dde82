"""The steepest direction of a tree of parameters, which may carry runs behind their own axes (runs.py)."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from attsvm.norms import Entrywise, Norm, capabilities_of
from attsvm.training.compilation import backend
from attsvm.training.programs import where
from attsvm.training.runs import each
from attsvm.training.types import Tree


def direction(norm: Norm | tuple[Norm, ...], tree: Tree, last: bool) -> Tree:
    """argmax ⟨tree, Δ⟩ over N(Δ) ≤ 1: one vector, or one matrix for norms of rows and singular values.

    A tuple has one norm for each array, which has a length of its own.
    """
    leaves, shape = jax.tree.flatten(tree)
    if isinstance(norm, tuple):
        if len(norm) != len(leaves):
            raise ValueError(
                f"steepest has {len(norm)} norms, one for each factor, and the weight has {len(leaves)} "
                f"array{'s' * (len(leaves) > 1)}. Pass a weight with as many factors, such as KeyQuery(), "
                "or one norm."
            )
        return jax.tree.unflatten(
            shape, [direction(one, leaf, last) for one, leaf in zip(norm, leaves, strict=True)]
        )
    traits = capabilities_of(norm)
    if traits.acts_on == "entries" or traits.euclidean:
        unit = Entrywise(norm.p).steepest_along(vector(tree, last))
        ends = np.cumsum([_own_size(leaf, last) for leaf in leaves])[:-1]
        blocks = [
            block.reshape(leaf.shape) for block, leaf in zip(jnp.split(unit, ends), leaves, strict=True)
        ]
        return jax.tree.unflatten(shape, blocks)
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
    """The direction of all rows in one matrix, which takes half the time of one array after the other.

    Padding rows with zeros does not change their lengths.
    """
    blocks = [leaf[:, None] if leaf.ndim == 1 else leaf for leaf in leaves]
    width = max(block.shape[1] for block in blocks)
    rows = jnp.concatenate([jnp.pad(block, ((0, 0), (0, width - block.shape[1]))) for block in blocks])
    units = jnp.split(norm.steepest(rows), np.cumsum([len(block) for block in blocks])[:-1])
    triples = zip(units, blocks, leaves, strict=True)
    return [unit[:, : block.shape[1]].reshape(leaf.shape) for unit, block, leaf in triples]


def _block_steepest(norm: Norm, leaves: list[Array]) -> list[Array]:
    """The direction of a block matrix, whose singular values are those of all blocks, as one vector."""
    blocks = [leaf[:, None] if leaf.ndim == 1 else leaf for leaf in leaves]
    largest = jnp.stack([jnp.abs(block).max() for block in blocks]).max()
    scale = 1 / where(largest > 0, largest, 1)  # powers of 1e±150 would over- or underflow
    U, values, Vt = zip(*decomposed([block * scale for block in blocks]), strict=True)
    sigma = jnp.concatenate(values)
    # As norms.Schatten: noise would be blown up to full size.
    size = max(sum(block.shape[0] for block in blocks), sum(block.shape[1] for block in blocks))
    sigma = where(sigma > size * np.finfo(sigma.dtype).eps * sigma.max(), sigma, 0)
    unit = jnp.split(
        Entrywise(norm.p).steepest_along(sigma),
        np.cumsum([len(sigma_of_block) for sigma_of_block in values])[:-1],
    )
    return [
        ((u * unit_values) @ vt).reshape(leaf.shape)
        for u, unit_values, vt, leaf in zip(U, unit, Vt, leaves, strict=True)
    ]


def decomposed(blocks: list[Array]) -> list[Any]:
    """U, σ, Vᵀ of each: on a GPU by rotations of all at once, blocks of one shape together."""
    if backend() == "cpu" or max(min(block.shape) for block in blocks) > LARGEST:
        return [jnp.linalg.svd(block, full_matrices=False) for block in blocks]
    if len({block.shape for block in blocks}) > 1:
        return [small_svd(block) for block in blocks]
    factors = jax.vmap(small_svd)(jnp.stack(blocks))
    return [tuple(factor[k] for factor in factors) for k in range(len(blocks))]


# ---------------------------------------------------------------------- singular values on a GPU

# A GPU's library factors small matrices one after the other, which takes longer than all else of a step.
# One-sided Jacobi rotations of neighbouring columns are elementwise: thousands of runs turn theirs at once.

LARGEST = 16
"""Columns of `small_svd`, at most: the rounds grow with them."""


def small_svd(M: Array) -> tuple[Array, Array, Array]:
    """U (d, r), σ (r,) and Vᵀ (r, m) of a matrix (d, m), r = min(d, m); σ in no order, U zero where σ is.

    Reference: Hestenes 1958, "Inversion of matrices by biorthogonalization and related results"; the order of
    the pairs is that of a tournament, in which a round has every column once.
    """
    if M.shape[0] < M.shape[1]:
        V, sigma, Ut = small_svd(M.T)
        return Ut.T, sigma, V.T
    m = M.shape[1]
    wide = m + m % 2
    A = jnp.pad(M, [(0, 0), (0, wide - m)])
    V = jnp.eye(wide, dtype=M.dtype)
    order = _next_round(wide)
    sweeps = 4 + (wide - 1).bit_length()  # 5, 6, 7 reach rounding for 4, 8, 16 columns

    def turned(_: int, both: Array) -> Array:
        even, odd = both[:, 0::2], both[:, 1::2]
        a, b = even[: len(A)], odd[: len(A)]
        c, s = _rotation((a * a).sum(0), (b * b).sum(0), (a * b).sum(0))
        pairs = jnp.stack([c * even - s * odd, s * even + c * odd], 2)
        return pairs.reshape(both.shape)[:, order]

    both = lax.fori_loop(0, sweeps * (wide - 1), turned, jnp.concatenate([A, V]))
    A, V = both[: len(A)], both[len(A) :]
    sigma = jnp.sqrt((A * A).sum(0))
    U = A / where(sigma > 0, sigma, 1)
    if wide > m:  # the added column is still zero; the tournament may have moved it
        columns = jnp.argsort(jnp.abs(V[m]) > 0.5, stable=True)[:m]
        return U[:, columns], sigma[columns], V[:m, columns].T
    return U, sigma, V.T


def _rotation(alpha: Array, beta: Array, gamma: Array) -> tuple[Array, Array]:
    """Cosine and sine that make columns of squared lengths α, β and product γ orthogonal."""
    orthogonal = gamma == 0
    zeta = (beta - alpha) / (2 * where(orthogonal, 1, gamma))
    sign = where(zeta >= 0, 1, -1)
    t = where(orthogonal, 0, sign / (jnp.abs(zeta) + jnp.sqrt(1 + zeta * zeta)))
    c = 1 / jnp.sqrt(1 + t * t)
    return c, c * t


def _next_round(wide: int) -> Array:
    """The place in this round of each column of the next: the first stays, the others move along a ring."""
    upper, lower = list(range(0, wide, 2)), list(range(1, wide, 2))
    ring = [*upper[1:], *lower[::-1]]
    moved = [ring[-1], *ring[:-1]] if ring else ring
    place = {column: moved[k] for k, column in enumerate(ring)} | {0: 0}
    return jnp.array([place[column] for column in range(wide)])
