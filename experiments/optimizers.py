"""An optimizer by its name: mirror:1.1, adam, sign, spectral."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import attsvm
from attsvm.torch import LpMirrorDescent, SteepestDescent


class Together:
    """Some optimizers that share the parameters of a model among them."""

    def __init__(self, *parts: torch.optim.Optimizer) -> None:
        self.parts = parts

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The state, flat: part.parameter.name → tensor."""
        out = {}
        for k, part in enumerate(self.parts):
            for number, values in part.state_dict()["state"].items():
                out |= {f"{k}.{number}.{name}": torch.as_tensor(value) for name, value in values.items()}
        return out

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """The inverse of `tensors`; settings come from how the optimizer was made."""
        for k, part in enumerate(self.parts):
            whole: dict[str, Any] = part.state_dict()
            whole["state"] = {}
            for key, value in tensors.items():
                place, number, name = key.split(".", 2)
                if int(place) == k:
                    whole["state"].setdefault(int(number), {})[name] = value
            part.load_state_dict(whole)


def optimizer(name: str, model: nn.Module, lr: float, fused: bool = False) -> Together:
    """mirror:P: mirror descent with potential |w|^P / P, every parameter, as published. adam: torch's.

    sign: steepest descent in l∞. spectral: for matrices inside the blocks, torch.optim.Muon without momentum
    or decay, whose Newton–Schulz steps stand in for the exact polar factor (an SVD per matrix and step is a
    hundred times slower on a GPU); everything else by sign descent with a twentieth of the step.
    fused: mirror descent and Adam in one pass over each tensor, and nothing asked of the GPU.
    """
    kind, _, p = name.partition(":")
    weights = list(model.parameters())
    if kind == "mirror" and p:
        return Together(LpMirrorDescent(weights, lr, float(p), fused=fused))
    if name == "adam":
        return Together(torch.optim.Adam(weights, lr, fused=fused, capturable=fused))
    if name == "sign":
        return Together(SteepestDescent(weights, lr, attsvm.linf))
    if name == "spectral":
        inner = {id(w) for block in model.blocks for w in block.parameters() if w.ndim == 2}
        matrices = [w for w in weights if id(w) in inner]
        others = [w for w in weights if id(w) not in inner]
        polar = torch.optim.Muon(matrices, lr, weight_decay=0.0, momentum=0.0, nesterov=False)
        return Together(polar, SteepestDescent(others, lr / 20, attsvm.linf))
    raise ValueError(f"optimizer is {name!r}. Pass mirror:P with P > 1 (mirror:1.1), adam, sign or spectral.")
