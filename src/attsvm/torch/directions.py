"""Dual norms and steepest directions of lists of tensors: `Norm.dual.value` and `Norm.steepest` in torch.

An entrywise norm takes each tensor as one vector, or all tensors jointly as one vector. A Schatten norm takes
each tensor as a matrix (a vector as one column), or all jointly as one block-diagonal matrix. A row-wise norm
takes the rows of each tensor, or of all tensors, as vectors.

Directions of the Schatten norms ∞ and 4 can be computed by products of matrices alone, which a GPU does best.
Of G = U Σ Vᵀ the steepest direction in Schatten(p) is U Σ^{1/(p−1)} Vᵀ, scaled to length one: for p = ∞ the
polar factor (G Gᵀ)^{−1/2} G, for p = 4 the matrix (G Gᵀ)^{−1/3} G.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attsvm.norms import Entrywise, Norm, capabilities_of

Tensors = list[Tensor]

ACTS_ON = ("entries", "rows", "singular values")
"""What the norms of `steepest` act on."""

ITERATED = (math.inf, 4)
"""The p of the Schatten norms that have an iteration by products."""

POLAR, POLAR_STEPS = (3.4445, -4.7750, 2.0315), 5
"""Keller Jordan's quintic for Muon: it brings σ in [0.01, 1] into [0.68, 1.13], and not to 1."""

ROOT_STEPS = 12
"""Newton's steps for the third root: powers of σ in [0.01, 1] come within 5 %, of [0.1, 1] to rounding."""


def signed_power(tensors: Tensors, power: float) -> Tensors:
    """sign(x) |x|^power of every tensor."""
    if not tensors:
        return []
    powers = torch._foreach_abs(tensors)
    torch._foreach_pow_(powers, power)
    torch._foreach_mul_(powers, _foreach_sign(tensors))
    return powers


def largest_entries(tensors: Tensors) -> Tensors:
    """max |x| of every tensor, ten times as fast on a CPU as the norm of order ∞."""
    return list(torch._foreach_max(torch._foreach_abs(tensors)))


def divisor(size: Tensor) -> Tensor:
    """The size, or one where it is zero. NaN stays NaN."""
    return torch.where(size == 0, torch.ones_like(size), size)


def finite(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices (…, m, n) with zeros for what is not finite, and numbers (…, 1) to add to their spectra.

    A decomposition refuses NaN and infinity: a number is NaN where its matrix has such an entry, else 0.
    """
    return torch.where(torch.isfinite(matrix), matrix, 0), (matrix - matrix).sum(-1).sum(-1, keepdim=True)


def dual_sizes(norm: Norm, grads: Tensors, joint: bool) -> Tensors:
    """‖g‖_q of every gradient, 1/p + 1/q = 1, or jointly of all; 1 where it is zero."""
    q = norm.dual.p
    scales = [divisor(x) for x in _joined(largest_entries(grads), math.inf, joint)]
    # Divide by the largest entry first: powers of gradients of 1e±150 would over- or underflow.
    sizes = _joined(_lengths(torch._foreach_div(grads, scales), q), q, joint)
    return [divisor(size) * scale for size, scale in zip(sizes, scales, strict=True)]


def steepest(norm: Norm, grads: Tensors, joint: bool, polar: str = "svd") -> Tensors:
    """The Δ with N(Δ) ≤ 1 that maximises ⟨G, Δ⟩, for every gradient G or jointly for all."""
    traits = capabilities_of(norm)
    if traits.acts_on == "rows":
        return _rows(norm, grads, joint)
    if traits.acts_on == "singular values" and not traits.euclidean:
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


def _rows(norm: Norm, grads: Tensors, joint: bool) -> Tensors:
    """Every row, at the length that the entrywise step of all rows' lengths gives it."""
    matrices = _matrices(norm, grads)
    scales = [divisor(m.abs().amax(1, keepdim=True)) for m in matrices]  # squares of 1e-200 would be zero
    units = torch._foreach_div(matrices, scales)
    sizes = [torch.linalg.vector_norm(unit, dim=1, keepdim=True) for unit in units]
    lengths = torch._foreach_mul(sizes, scales)
    steps = steepest(Entrywise(norm.p), lengths, joint)
    rows = zip(grads, units, sizes, steps, strict=True)
    return [(unit / divisor(size) * step).reshape(g.shape) for g, unit, size, step in rows]


def _foreach_sign(tensors: Tensors) -> Tensors:
    """sign(x) of every tensor. Shards go one by one, because PyTorch 2.11 has no foreach call for them."""
    if any(hasattr(x, "placements") for x in tensors):
        return [x.sign() for x in tensors]
    return list(torch._foreach_sign(tensors))


def _signs(grads: Tensors) -> Tensors:
    """sign(g), and NaN where g is no finite number: torch's sign of NaN is zero."""
    signs = _foreach_sign(grads)
    torch._foreach_add_(signs, torch._foreach_sub(grads, grads))
    return signs


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
    moved = range(len(grads))
    if joint:
        k = int(torch.stack([entry.abs().cpu() for entry in entries]).argmax())  # NaN is the largest
        moved = range(k, k + 1)
    for k in moved:
        out[k].view(-1)[places[k]] = _signs([entries[k]])[0]
    return out


def _schatten(norm: Norm, grads: Tensors, joint: bool) -> Tensors:
    matrices, traces = zip(*map(finite, _matrices(norm, grads)), strict=True)
    factors = [torch.linalg.svd(matrix, full_matrices=False) for matrix in matrices]
    spectra = [f.S + trace for f, trace in zip(factors, traces, strict=True)]
    steps = _spectrum_steps(norm, [(f.U.shape[0], f.Vh.shape[1]) for f in factors], spectra, joint)
    scaled = zip(grads, factors, steps, strict=True)
    return [((f.U * step) @ f.Vh).reshape(g.shape) for g, f, step in scaled]


def _by_products(norm: Norm, grads: Tensors) -> Tensors:
    """The directions of `_schatten` without singular values, all matrices of one shape at once."""
    by_shape: dict[Any, list[int]] = {}
    matrices = _matrices(norm, grads)
    for k, matrix in enumerate(matrices):
        by_shape.setdefault((matrix.shape, matrix.dtype, matrix.device), []).append(k)
    steps = list(grads)
    for indices in by_shape.values():
        stack = _stack_directions(torch.stack([matrices[k] for k in indices]), norm.p)
        for k, step in zip(indices, stack, strict=True):
            steps[k] = step.reshape(grads[k].shape)
    return steps


def _stack_directions(stack: Tensor, p: float) -> Tensor:
    """The steepest directions of matrices (k, rows, columns) in Schatten(p), p = ∞ or 4; zero for zero."""
    tall = stack.shape[-2] > stack.shape[-1]
    G = stack.mT if tall else stack
    if p == math.inf and G.is_cuda and G.dtype == torch.float32:
        G = G.to(torch.bfloat16)
    G = G / divisor(torch.linalg.matrix_norm(G, keepdim=True))
    G = _polar(G) if p == math.inf else _third_root(G)
    return (G.mT if tall else G).to(stack.dtype)


def _polar(G: Tensor) -> Tensor:
    """Newton–Schulz: σ ← a σ + b σ³ + c σ⁵, five times."""
    a, b, c = POLAR
    for _ in range(POLAR_STEPS):
        A = G @ G.mT
        G = torch.baddbmm(G, torch.baddbmm(A, A, A, beta=b, alpha=c), G, beta=a)
    return G


def _third_root(G: Tensor) -> Tensor:
    """(G Gᵀ)^{−1/3} G, at Schatten norm 4 one."""
    M = G @ G.mT
    G = rooted(M / divisor(torch.linalg.matrix_norm(M, keepdim=True)), G, 3, ROOT_STEPS)
    return G / divisor(torch.linalg.matrix_norm(G @ G.mT, keepdim=True).sqrt())


def rooted(M: Tensor, G: Tensor, r: int, steps: int) -> Tensor:
    """M^(−1/r) G of symmetric M with eigenvalues in [0, 1], by Newton's coupled iteration.

    G ← h G, M ← M hʳ, h = ((r + 1) I − M)/r: a step does not change M^(−1/r) G, and M tends to I.
    """
    eye = torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)
    for _ in range(steps):
        h = ((r + 1) * eye - M) / r
        G, M = h @ G, M @ torch.linalg.matrix_power(h, r)
    return G


def _matrices(norm: Norm, grads: Tensors) -> Tensors:
    for g in grads:
        if g.ndim > 2:
            raise ValueError(
                f"steepest descent in the {norm} norm needs matrices or vectors, but a parameter has shape "
                f"{tuple(g.shape)}. Put it into a group of its own with an entrywise norm."
            )
    return [g.reshape(-1, 1) if g.ndim < 2 else g for g in grads]


def _spectrum_steps(norm: Norm, shapes: list[Any], spectra: Tensors, joint: bool) -> Tensors:
    """The entrywise steepest direction of the singular values; those below rounding count as zero."""
    if not joint:
        return [_spectrum_step(norm, max(shape), sigma) for shape, sigma in zip(shapes, spectra, strict=True)]
    size = max(sum(rows for rows, _ in shapes), sum(columns for _, columns in shapes))
    joint_step = _spectrum_step(norm, size, torch.cat(spectra))
    return list(joint_step.split([len(sigma) for sigma in spectra]))


def _spectrum_step(norm: Norm, size: int, sigma: Tensor) -> Tensor:
    cut = size * torch.finfo(sigma.dtype).eps * sigma.max()
    return steepest(Entrywise(norm.p), [torch.where(sigma <= cut, 0, sigma)], joint=False)[0]  # NaN stays
