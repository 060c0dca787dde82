"""A max-margin solution as a formula of its active rows, in torch operations alone.

With the active rows A known, W = F + Aᵀ μ with (A Aᵀ) μ = b − A F; F = Σ C_i A_i of the examples that fall
short. Autograd differentiates this formula any number of times, in both modes, under vmap and torch.compile.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from attsvm.program.derivative.arguments import Data
from attsvm.program.derivative.batch import Batch, Results


class Found(NamedTuple):
    """What a solver found out about programs, all of it without a derivative.

    active, basis (…, n, T): the active inequalities, and the active rows that do not depend on others.
    reference (…, n): of an example that falls short, the active token that gets what the others leave of C;
        else −1.
    separable, regular, strictness, pivot (…,); positive (…,): whether W is not zero.
    units (…, 3): powers of two that bring keys, queries and required margins near one.
    """

    active: Tensor
    basis: Tensor
    reference: Tensor
    separable: Tensor
    regular: Tensor
    strictness: Tensor
    pivot: Tensor
    positive: Tensor
    units: Tensor

    @classmethod
    def of(cls, batch: Batch, device: torch.device) -> Found:
        """That of a batch; an inseparable run has no rows."""
        regular, strictness, pivot, active = batch.measured
        separable, units = batch.separable, np.stack(batch.derivative.optimum.units, -1)
        rows, (basis, _) = batch.derivative.rows, batch.derivative.basis
        reference = np.where(separable[:, None], rows.reference, -1)
        flags = separable, batch.size > 0, np.ldexp(1.0, -units)
        basis, reference, separable, positive, powers = map(
            batch.over_axes, (basis & separable[:, None, None], reference, *flags)
        )
        arrays = active, basis, reference, separable, regular, strictness, pivot, positive, powers
        return cls(*(torch.from_numpy(x).to(device) for x in arrays))


def by_formula(data: Data, selected: Tensor, found: Found) -> Results:
    """The solutions of the active rows; selected (…, n, T)."""
    of_keys, of_queries, of_required = found.units.unbind(-1)
    keys, queries = data.keys * of_keys[..., None, None, None], data.queries * of_queries[..., None, None]
    required, of_rows = data.required * of_required[..., None], of_keys * of_queries
    weight = of_rows / of_required
    n, T, d = keys.shape[-3:]
    anchor, short = selected.int().argmax(-1), found.reference >= 0
    losing = found.basis & ~selected
    reference = torch.where(short, found.reference, anchor)
    base = torch.where(losing, reference[..., None], anchor[..., None]).flatten(-2)
    bound = torch.where(losing & ~short[..., None], required[..., None], 0.0).flatten(-2)

    # No more rows are independent than W has entries.
    k = min(n * T, d * queries.shape[-1])
    place = torch.argsort(found.basis.flatten(-2).int(), descending=True, stable=True)[..., :k]
    used = found.basis.flatten(-2).gather(-1, place)
    example = torch.div(place, T, rounding_mode="floor")
    keys_flat = keys.flatten(-3, -2)
    delta = _rows_of(keys_flat, example * T + base.gather(-1, place)) - _rows_of(keys_flat, place)
    query = _rows_of(queries, example)
    # Rows at length one: the lengths are constants, and cancel.
    length = torch.where(used, delta.detach().norm(dim=-1) * query.detach().norm(dim=-1), 1.0)
    delta = torch.where(used[..., None], delta / length[..., None], 0.0)
    right = torch.where(used, bound.gather(-1, place) / length, 0.0)

    start = torch.arange(n, device=keys.device) * T
    at_reference = _rows_of(keys_flat, start + anchor) - _rows_of(keys_flat, start + reference)
    paid = torch.zeros_like(required)
    if data.price is not None:
        paid = torch.where(short, data.price / of_rows[..., None] / weight[..., None], 0.0)
    fixed = (paid[..., None] * at_reference).mT @ queries
    right = right - ((delta @ fixed) * query).sum(-1)
    gram = (delta @ delta.mT) * (query @ query.mT) + torch.diag_embed((~used).to(delta.dtype))
    scaled = torch.cholesky_solve(right[..., None], torch.linalg.cholesky(gram))[..., 0]
    W = fixed + (scaled[..., None] * delta).mT @ query
    shares = torch.where(used, scaled / length, 0.0)
    pull = torch.zeros_like(bound).scatter_add(-1, place, shares).unflatten(-1, (n, T))
    left = paid - torch.where(losing, pull, 0.0).sum(-1)
    at = torch.arange(T, device=keys.device) == found.reference[..., None]
    pull = torch.where(at, left[..., None], pull)
    size = torch.where(found.positive[..., None, None], W, 1.0).flatten(-2).norm(dim=-1)
    shortfall = None
    if data.price is None:
        pull = pull / size[..., None, None] * of_rows[..., None, None]
    else:
        pull = pull * (of_rows * weight)[..., None, None]
        shortfall = torch.where(short, required - ((at_reference @ W) * queries).sum(-1), 0.0)
        shortfall = shortfall / of_required[..., None]
    norm = torch.where(found.positive, size * weight, 0.0)
    margin = torch.where(found.positive, 1 / size / weight, torch.inf)
    return Results(W * weight[..., None, None], norm, margin, pull, shortfall)


def _rows_of(array: Tensor, index: Tensor) -> Tensor:
    """array (…, m, c) at index (…, k) → (…, k, c)."""
    return array.gather(-2, index[..., None].expand(*index.shape, array.shape[-1]))
