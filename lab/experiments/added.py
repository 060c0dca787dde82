"""What training added to the heads: W(end) − W(start) of W = W_Kᵀ W_Q / √width, by its singular values."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Added:
    """Remembers the query and key weights of a model before it is trained."""

    def __init__(self, model: nn.Module) -> None:
        self.start = factors(model)

    def spectra(self, model: nn.Module) -> Tensor:
        """Singular values of what was added to each head, layer by layer: (layers · heads, rank), falling.

        W(end) − W(start) = [K; −K₀]ᵀ [Q; Q₀] has at most twice the rank of a head: those of the triangles of
        both factors are its singular values.
        """
        (K, Q), (K0, Q0) = factors(model), self.start
        triangles = [torch.linalg.qr(torch.cat(pair, 1).mT).R for pair in ((K, -K0), (Q, Q0))]
        return torch.linalg.svdvals(triangles[0] @ triangles[1].mT)


@torch.no_grad()
def factors(model: nn.Module) -> tuple[Tensor, Tensor]:
    """W_K / √width and W_Q of every head, each (layers · heads, width, d), in float64 on the host."""
    modules = [block.attention for block in model.blocks]
    layers = ([module.key for module in modules], [module.query for module in modules])
    K, Q = (torch.cat([layer.weight.detach().cpu().double() for layer in kind]) for kind in layers)
    width = modules[0].attention_head_size
    K, Q = (x.unflatten(0, (-1, width)) for x in (K, Q))
    return K / width**0.5, Q


def measures(spectra: Tensor) -> list[list[float]]:
    """[stable rank ‖W‖_F² / ‖W‖², effective rank (Σσ)² / Σσ², length ‖W‖_F] of every head."""
    squares = spectra.square().sum(-1)
    rows = (squares / spectra[:, 0].square(), spectra.sum(-1).square() / squares, squares.sqrt())
    return [[float(f"{x:.5g}") for x in row] for row in torch.stack(rows, -1).tolist()]


def shape_of(spectra: Tensor, count: int = 32) -> list[float]:
    """The first singular values by the largest one, mean over heads."""
    return [float(f"{x:.4g}") for x in (spectra / spectra[:, :1]).mean(0)[:count].tolist()]
