"""What training added to the heads: W(end) − W(start) of W = W_Kᵀ W_Q / √width, by its singular values."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Added:
    """Remembers the query and key weights of a model before it is trained."""

    def __init__(self, model: nn.Module) -> None:
        self.start = products(model)

    def spectra(self, model: nn.Module) -> Tensor:
        """Singular values of what was added to each head, layer by layer: (layers · heads, d), falling."""
        return torch.linalg.svdvals(products(model) - self.start)


@torch.no_grad()
def products(model: nn.Module) -> Tensor:
    """W of every head (layers · heads, d, d), in float64 on the host."""
    found = []
    for block in model.blocks:
        module = block.attention
        K, Q = (
            layer.weight.detach().cpu().double().unflatten(0, (module.heads, -1))
            for layer in (module.key, module.query)
        )
        found.append(K.mT @ Q / module.attention_head_size**0.5)
    return torch.cat(found)


def measures(spectra: Tensor) -> list[list[float]]:
    """[stable rank ‖W‖_F² / ‖W‖², effective rank (Σσ)² / Σσ², length ‖W‖_F] of every head."""
    squares = spectra.square().sum(-1)
    rows = (squares / spectra[:, 0].square(), spectra.sum(-1).square() / squares, squares.sqrt())
    return [[float(f"{x:.5g}") for x in row] for row in torch.stack(rows, -1).tolist()]
