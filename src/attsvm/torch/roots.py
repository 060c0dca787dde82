"""Steps of the Schatten norms ∞ and 4 by products of matrices alone, which a GPU does best.

Of G = U Σ Vᵀ the steepest direction in Schatten(p) is U Σ^{1/(p−1)} Vᵀ, scaled to length one: for p = ∞ the
polar factor (G Gᵀ)^{−1/2} G, for p = 4 the matrix (G Gᵀ)^{−1/3} G.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

SERVED = (math.inf, 4)
"""The p for which there is an iteration."""

POLAR, POLAR_STEPS = (3.4445, -4.7750, 2.0315), 5
"""Keller Jordan's quintic for Muon: brings σ in [0.01, 1] into [0.68, 1.13], and not to 1."""

ROOT_STEPS = 12
"""Newton's for the third root: from σ in [0.01, 1] all powers come within 5 %, from [0.1, 1] to rounding."""


def directions(stack: Tensor, p: float) -> Tensor:
    """The steepest directions of matrices (k, rows, columns) in Schatten(p), p = ∞ or 4; of zero zero."""
    tall = stack.shape[-2] > stack.shape[-1]
    G = stack.mT if tall else stack
    if p == math.inf and G.is_cuda and G.dtype == torch.float32:
        G = G.to(torch.bfloat16)
    G = G / or_one(torch.linalg.matrix_norm(G, keepdim=True))
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
    M = G @ G.mT
    G = rooted(M / or_one(torch.linalg.matrix_norm(M, keepdim=True)), G, 3, ROOT_STEPS)
    return G / or_one(torch.linalg.matrix_norm(G @ G.mT, keepdim=True).sqrt())  # of Schatten norm 4 one


def rooted(M: Tensor, G: Tensor, r: int, steps: int) -> Tensor:
    """M^(−1/r) G of symmetric M with eigenvalues in [0, 1], by Newton's coupled iteration.

    G ← h G, M ← M hʳ, h = ((r + 1) I − M)/r: a round leaves M^(−1/r) G as it is, and M tends to I.
    """
    eye = torch.eye(M.shape[-1], dtype=M.dtype, device=M.device)
    for _ in range(steps):
        h = ((r + 1) * eye - M) / r
        G, M = h @ G, M @ torch.linalg.matrix_power(h, r)
    return G


def or_one(size: Tensor) -> Tensor:
    """What may be divided by: one where a size is zero. What is NaN stays so."""
    return torch.where(size == 0, torch.ones_like(size), size)


def finite(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices (…, m, n) that can be factored, and what to add to their spectra (…, 1): 0, or NaN for NaN."""
    return torch.where(torch.isfinite(matrix), matrix, 0), (matrix - matrix).sum(-1).sum(-1, keepdim=True)
