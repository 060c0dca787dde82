"""Steps of W_Q and W_K that differ in their geometry only: all of them have the same length."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attsvm.norms import Norm, Schatten
from attsvm.torch import SteepestDescent
from attsvm.torch.directions import rooted

FLOOR, ROUNDS = 2e-3, 24
"""Singular values below so much of a gradient's length count as noise: what Muon's five Newton–Schulz steps
lift to one begins there too (3.4445⁻⁵). And rounds after which a root of such matrices has converged."""


class EqualSteps(SteepestDescent):
    """Steepest directions in a norm, scaled to entries of root mean square lr whatever the norm.

        W ← W − lr · Δ √(size of Δ) / ‖Δ‖_F,     Δ = argmax_{N(Δ) ≤ 1} ⟨M, Δ⟩,     M the mean gradient

    M is a running mean. heads: the rows of each head are a matrix of their own; 1: all heads are one matrix.
    Parameters are matrices of one shape. Nothing is asked of the GPU: a Schatten direction is products alone.
    """

    def __init__(self, params: Any, lr: float, norm: Norm, *, heads: int = 1, momentum: float = 0.9) -> None:
        self.heads = heads
        super().__init__(params, lr, norm, momentum=momentum, foreach=True)

    def move(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        averages = torch.stack(self._averaged(params, grads, group["momentum"]))
        blocks = averages.unflatten(1, (self.heads, -1)).flatten(0, 1)
        steps = direction(group["norm"], blocks)
        size = steps.square().mean((1, 2), keepdim=True).sqrt()
        steps = (steps / size.clamp_min(torch.finfo(size.dtype).tiny)).view_as(averages)
        torch._foreach_add_(params, list(steps.unbind()), alpha=-group["lr"])


def direction(norm: Norm, blocks: Tensor) -> Tensor:
    """The steepest direction of every matrix (k, rows, columns), up to its length.

    Schatten(p): U σ^(q − 1) Vᵀ = (G Gᵀ)^(−1/r) G with 1/p + 1/q = 1 and r = 2 (p − 1) / (p − 2), which is 2
    for the spectral norm, 3 for Schatten 4 and 4 for Schatten 3.
    """
    if norm.p == 2:
        return blocks
    if not isinstance(norm, Schatten):
        return blocks.sign() if norm.p == math.inf else _refused(norm)
    r = 2.0 if norm.p == math.inf else 2 * (norm.p - 1) / (norm.p - 2) if norm.p > 2 else 0.0
    if r not in (2, 3, 4):
        return _refused(norm)
    unit = blocks / torch.linalg.matrix_norm(blocks, keepdim=True).clamp_min(torch.finfo(blocks.dtype).tiny)
    eye = torch.eye(blocks.shape[-2], dtype=blocks.dtype, device=blocks.device)
    return rooted(unit @ unit.mT + FLOOR**2 * eye, unit, int(r), ROUNDS)


def _refused(norm: Norm) -> Tensor:
    raise ValueError(f"norm is {norm}. Pass frobenius, linf, spectral, Schatten(4) or Schatten(3).")
