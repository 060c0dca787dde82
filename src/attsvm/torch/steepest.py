"""Steepest descent in a norm, as a torch optimizer."""

from __future__ import annotations

from typing import Any

import torch

from attsvm.norms import Entrywise, Norm, Schatten
from attsvm.torch.directions import steepest
from attsvm.torch.optimizer import Descent, Group, Tensors, wide

# A group's norm is part of a checkpoint, which torch.load reads with weights_only=True by default.
torch.serialization.add_safe_globals([Entrywise, Schatten])


class SteepestDescent(Descent):
    """Steepest descent with steps of length lr in a norm.

        W ← W − lr · argmax_{N(Δ) ≤ 1} ⟨M, Δ⟩,     M ← momentum · M + (1 − momentum) ∇L

    attsvm.frobenius: normalised GD. linf: sign descent, with momentum Signum. spectral: the exact
    direction of Muon, U Vᵀ by SVD. l1: one coordinate. nuclear: one singular pair. Any Entrywise(p) or
    Schatten(p). A parameter without gradient, or with a zero one, stays.

    joint: take a step of length lr for all parameters of the group together, not for each tensor: they
    count as one vector for an entrywise norm, as one block-diagonal matrix for a Schatten norm.
    Reference: Fan et al. 2025, "Implicit Bias of Spectral Descent and Muon".
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        norm: Norm,
        *,
        momentum: float = 0.0,
        joint: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
    ) -> None:
        settings = {"momentum": momentum, "joint": joint, "maximize": maximize, "foreach": foreach}
        super().__init__(params, {"lr": lr, "norm": norm, **settings})

    def check(self, group: Group) -> None:
        norm, momentum = group["norm"], group["momentum"]
        if not isinstance(norm, Entrywise | Schatten):
            raise TypeError(f"norm is {norm!r}. Pass attsvm.frobenius, linf, spectral, … or Entrywise(p).")
        if isinstance(momentum, bool) or not isinstance(momentum, int | float) or not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum!r}. Pass a number in [0, 1).")

    def move(self, group: Group, params: Tensors, grads: Tensors) -> None:
        grads = wide(grads)
        if group["momentum"]:
            grads = self._averaged(params, grads, group["momentum"])
        steps = steepest(group["norm"], grads, group["joint"])
        torch._foreach_add_(params, steps, alpha=-float(group["lr"]))

    def _averaged(self, params: Tensors, grads: Tensors, momentum: float) -> Tensors:
        for w, g in zip(params, grads, strict=True):
            if "average" not in self.state[w]:
                self.state[w]["average"] = torch.zeros_like(g)
        averages = [self.state[w]["average"] for w in params]
        torch._foreach_mul_(averages, momentum)
        torch._foreach_add_(averages, grads, alpha=1 - momentum)
        return averages
