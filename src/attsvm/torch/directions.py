"""Dual norms and steepest directions of lists of tensors: `Norm.dual.value` and `Norm.steepest` in torch.

An entrywise norm takes each tensor as one vector, or all of them jointly as one. A Schatten norm takes
each as a matrix (a vector as one column), or all of them jointly as one block-diagonal matrix. A row-wise
norm takes its rows as vectors, or those of all of them.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attsvm.norms import Entrywise, RowWise, Schatten
from attsvm.torch.roots import directions, finite, or_one

Tensors = list[Tensor]


def signed_power(tensors: Tensors, power: float) -> Tensors:
    """sign(x) |x|^power of every tensor."""
    if not tensors:
        return []
    powers = torch._foreach_abs(tensors)
    torch._foreach_pow_(powers, power)
    torch._foreach_mul_(powers, torch._foreach_sign(tensors))
    return powers


def largest_entries(tensors: Tensors) -> Tensors:
    """max |x| of every tensor; ten times as fast on a CPU as the norm of order ∞."""
    return list(torch._foreach_max(torch._foreach_abs(tensors)))


def dual_sizes(norm: Entrywise, grads: Tensors, joint: bool) -> Tensors:
    """‖g‖_q of every gradient, 1/p + 1/q = 1, or jointly of all; 1 where it is zero."""
    q = norm.dual.p
    scales = [or_one(x) for x in _joined(largest_entries(grads), math.inf, joint)]
    # Powers of gradients of 1e±150 would over- or underflow, so the largest entry is divided out first.
    sizes = _joined(_lengths(torch._foreach_div(grads, scales), q), q, joint)
    return [or_one(size) * scale for size, scale in zip(sizes, scales, strict=True)]


def steepest(
    norm: Entrywise | RowWise | Schatten, grads: Tensors, joint: bool, polar: str = "svd"
) -> Tensors:
    """The Δ with N(Δ) ≤ 1 that maximises ⟨G, Δ⟩, for every gradient G or jointly for all."""
    if isinstance(norm, RowWise):
        return _rows(norm, grads, joint)
    if isinstance(norm, Schatten) and norm.p != 2:
        return _schatten(norm, grads, joint) if polar == "svd" else _by_products(norm, grads)
    if norm.p == math.inf:
        return _signs(grads)
    if norm.p == 1:
        return _largest_coordinate(grads, joint)
    units = torch._foreach_div(grads, dual_sizes(Entrywise(norm.p), grads, joint))
    return units if norm.p == 2 else signed_power(units, norm.dual.p - 1)


# ---------------------------------------------------------------------- details


def _lengths(tensors: Any, q: float) -> Tensors:
    """‖x‖_q of every tensor of entries up to 1; this overwrites them."""
    if q == 2:
        return list(torch._foreach_norm(tensors, 2))
    torch._foreach_abs_(tensors)
    torch._foreach_pow_(tensors, q)
    return [x.sum() ** (1 / q) for x in tensors]


def _joined(sizes: Any, q: float, joint: bool) -> Tensors:
    """The norm of each tensor, or for each the joint norm of all, on its own device."""
    if not joint:
        return list(sizes)
    home = sizes[0].device
    total = torch.linalg.vector_norm(torch.stack([size.to(home) for size in sizes]), q)
    return [total.to(size.device) for size in sizes]


def _rows(norm: RowWise, grads: Tensors, joint: bool) -> Tensors:
    """Every row at the length that an entrywise step of the rows' lengths gives it."""
    matrices = _matrices(norm, grads)
    tops = [or_one(m.abs().amax(1, keepdim=True)) for m in matrices]  # squares of 1e-200 would be zero
    units = torch._foreach_div(matrices, tops)
    sizes = [torch.linalg.vector_norm(unit, dim=1, keepdim=True) for unit in units]
    lengths = torch._foreach_mul(sizes, tops)
    steps = steepest(Entrywise(norm.p), lengths, joint)
    parts = zip(grads, units, sizes, steps, strict=True)
    return [(unit / or_one(size) * step).reshape(g.shape) for g, unit, size, step in parts]


def _signs(grads: Tensors) -> Tensors:
    """sign(g), and NaN where g is no finite number: torch calls the sign of NaN zero."""
    signs = torch._foreach_sign(grads)
    torch._foreach_add_(signs, torch._foreach_sub(grads, grads))
    return list(signs)


def _largest_coordinate(grads: Tensors, joint: bool) -> Tensors:
    """The sign of the first largest entry, zero elsewhere."""
    if any(hasattr(g, "placements") for g in grads):
        raise RuntimeError(
            "steps along one coordinate or singular pair need whole gradients, but one is a shard (FSDP). "
            "Train with DDP, or in another norm."
        )
    out = [torch.zeros_like(g, memory_format=torch.contiguous_format) for g in grads]
    places = [int(g.abs().argmax()) for g in grads]
    entries = [g.flatten()[place] for g, place in zip(grads, places, strict=True)]
    chosen = range(len(grads))
    if joint:
        best = int(torch.stack([entry.abs().cpu() for entry in entries]).argmax())  # NaN is the largest
        chosen = range(best, best + 1)
    for k in chosen:
        out[k].view(-1)[places[k]] = _signs([entries[k]])[0]
    return out


def _schatten(norm: Schatten, grads: Tensors, joint: bool) -> Tensors:
    matrices, traces = zip(*map(finite, _matrices(norm, grads)), strict=True)
    factors = [torch.linalg.svd(matrix, full_matrices=False) for matrix in matrices]
    spectra = [f.S + trace for f, trace in zip(factors, traces, strict=True)]
    steps = _spectrum_steps(norm, [(f.U.shape[0], f.Vh.shape[1]) for f in factors], spectra, joint)
    parts = zip(grads, factors, steps, strict=True)
    return [((f.U * step) @ f.Vh).reshape(g.shape) for g, f, step in parts]


def _by_products(norm: Schatten, grads: Tensors) -> Tensors:
    """The same without singular values, all matrices of one shape at once."""
    alike: dict[Any, list[int]] = {}
    matrices = _matrices(norm, grads)
    for k, matrix in enumerate(matrices):
        alike.setdefault((matrix.shape, matrix.dtype, matrix.device), []).append(k)
    steps = list(grads)
    for chosen in alike.values():
        found = directions(torch.stack([matrices[k] for k in chosen]), norm.p)
        for k, step in zip(chosen, found, strict=True):
            steps[k] = step.reshape(grads[k].shape)
    return steps


def _matrices(norm: RowWise | Schatten, grads: Tensors) -> Tensors:
    for g in grads:
        if g.ndim > 2:
            raise ValueError(
                f"steepest descent in the {norm} norm needs matrices or vectors, but a parameter has shape "
                f"{tuple(g.shape)}. Put it into a group of its own with an entrywise norm."
            )
    return [g.reshape(-1, 1) if g.ndim < 2 else g for g in grads]


def _spectrum_steps(norm: Schatten, shapes: list[Any], spectra: Tensors, joint: bool) -> Tensors:
    """The entrywise steepest direction of the singular values; those below rounding count as zero."""
    if not joint:
        return [_spectrum_step(norm, max(shape), sigma) for shape, sigma in zip(shapes, spectra, strict=True)]
    size = max(sum(rows for rows, _ in shapes), sum(columns for _, columns in shapes))
    whole = _spectrum_step(norm, size, torch.cat(spectra))
    return list(whole.split([len(sigma) for sigma in spectra]))


def _spectrum_step(norm: Schatten, size: int, sigma: Tensor) -> Tensor:
    cut = size * torch.finfo(sigma.dtype).eps * sigma.max()
    return steepest(Entrywise(norm.p), [torch.where(sigma <= cut, 0, sigma)], joint=False)[0]  # NaN stays
