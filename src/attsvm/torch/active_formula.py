"""A max-margin solution as a formula of its active rows, in torch operations alone.

With the active rows A known, W = F + Aᵀ μ with (A Aᵀ) μ = b − A F; F = Σ C_i A_i of the examples that fall
short. Autograd differentiates this formula any number of times, in both modes, under vmap and torch.compile.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Found(NamedTuple):
    """What a solver found out about r programs, all of it without a derivative.

    active, basis (r, n, T): the active inequalities, and the active rows that do not depend on others.
    reference (r, n): of an example that falls short, the active token that gets what the others leave of C;
        else −1.
    separable, strictness, pivot (r,).
    """

    active: Tensor
    basis: Tensor
    reference: Tensor
    separable: Tensor
    strictness: Tensor
    pivot: Tensor


class Data(NamedTuple):
    """keys (r, n, T, d), queries (r, n, e), required (r, n); the price (r, n) of a soft margin, or None."""

    keys: Tensor
    queries: Tensor
    required: Tensor
    price: Tensor | None


class Results(NamedTuple):
    """W (r, d, e), norm and margin (r,), multipliers (r, n, T); ξ (r, n) of a soft margin, or None."""

    W: Tensor
    norm: Tensor
    margin: Tensor
    multipliers: Tensor
    shortfall: Tensor | None


def by_formula(data: Data, selected: Tensor, found: Found) -> Results:
    """The solutions of the active rows; selected (r, n, T)."""
    keys, queries, required, price = data
    runs, n, T, d = keys.shape
    anchor, short = selected.int().argmax(-1), found.reference >= 0
    losing = found.basis & ~selected
    reference = torch.where(short, found.reference, anchor)
    base = torch.where(losing, reference[..., None], anchor[..., None])
    bound = torch.where(losing & ~short[..., None], required[..., None], 0.0)

    # No more rows are independent than W has entries.
    k = min(n * T, d * queries.shape[-1])
    place = torch.argsort(found.basis.flatten(1).int(), dim=1, descending=True, stable=True)[:, :k]
    used = found.basis.flatten(1).gather(1, place)
    example = torch.div(place, T, rounding_mode="floor")
    keys_flat = keys.flatten(1, 2)
    first = example * T + base.flatten(1).gather(1, place)
    delta = _rows_of(keys_flat, first) - _rows_of(keys_flat, place)
    query = _rows_of(queries, example)
    # Rows at length one: the lengths are constants, and cancel.
    length = (delta.detach().norm(dim=-1) * query.detach().norm(dim=-1)).clamp_min(1e-300)
    delta = torch.where(used[..., None], delta / length[..., None], 0.0)
    right = torch.where(used, bound.flatten(1).gather(1, place) / length, 0.0)

    fixed, paid, at_reference, shortfall = None, None, None, None
    if price is not None:
        paid = torch.where(short, price, 0.0)
        start = torch.arange(n, device=keys.device) * T
        at_reference = _rows_of(keys_flat, start + anchor) - _rows_of(keys_flat, start + reference)
        fixed = (paid[..., None] * at_reference).mT @ queries
        right = right - ((delta @ fixed) * query).sum(-1)
    gram = (delta @ delta.mT) * (query @ query.mT) + torch.diag_embed((~used).to(delta.dtype))
    scaled = torch.cholesky_solve(right[..., None], torch.linalg.cholesky(gram))[..., 0]
    W = (scaled[..., None] * delta).mT @ query
    pull = keys.new_zeros((runs, n * T)).scatter_add(1, place, torch.where(used, scaled / length, 0.0))
    pull = pull.unflatten(1, (n, T))
    if fixed is not None and paid is not None and at_reference is not None:
        W = W + fixed
        margin_there = ((at_reference @ W) * queries).sum(-1)
        shortfall = torch.where(short, required - margin_there, 0.0)
        left = torch.where(short, paid - torch.where(losing, pull, 0.0).sum(-1), 0.0)
        at = torch.arange(T, device=keys.device) == found.reference[..., None]
        pull = torch.where(at, left[..., None], pull)
    positive = W.detach().abs().amax((-2, -1)) > 0
    norm = torch.where(positive[:, None, None], W, 1.0).flatten(1).norm(dim=-1)
    norm = torch.where(positive, norm, 0.0)
    safe = torch.where(positive, norm, 1.0)
    margin = torch.where(positive, 1 / safe, torch.inf)
    return Results(W, norm, margin, pull / safe[:, None, None] if price is None else pull, shortfall)


def _rows_of(array: Tensor, index: Tensor) -> Tensor:
    """array (r, m, c) at index (r, k) → (r, k, c)."""
    return array.gather(1, index[..., None].expand(*index.shape, array.shape[-1]))
