"""Mirror descent with the potential ‖w‖_p^p / p, as a torch optimizer."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attsvm._support.validation import is_finite
from attsvm.norms import Entrywise
from attsvm.torch.directions import dual_sizes, largest_entries, signed_power
from attsvm.torch.optimizer import Group, GroupOptimizer, Tensors, wide


class LpMirrorDescent(GroupOptimizer):
    """Mirror descent with the entrywise potential ψ(w) = 1/p Σ |w_j|^p, 1 < p < ∞.

        ∇ψ(w) ← ∇ψ(w) − lr ∇L,     ∇ψ(w) = sign(w) |w|^(p−1)

    p = 2 is torch.optim.SGD, bit for bit. p near 1 leads to sparse weights, large p to even ones.

    normalised: divide ∇L by its dual norm ‖∇L‖_q, 1/p + 1/q = 1, so that steps survive saturation; the norm
    of each tensor, or with joint=True of all parameters of the group as one vector.
    weight_decay: adds weight_decay · w to the gradient, as SGD does.

    For p < 2 the state is the dual variable ∇ψ(w), because w itself underflows; it is recomputed from
    weights that were changed by something else since the last step. For p > 2 it is ∇ψ(w) that underflows:
    the step is taken in units of the larger of |w| and |lr ∇L|^(1/(p−1)), and there is no state.

    fused: for p ≠ 2, one pass over each tensor, made by torch.compile. On a GPU it is several times as fast,
    because the plain step makes many passes, and for p < 2 waits for the device at every step.
    Reference: Julistiono et al. 2024, "Optimizing Attention with Mirror Descent".
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        p: float = 2.0,
        *,
        weight_decay: float = 0.0,
        normalised: bool = False,
        joint: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool = False,
    ) -> None:
        options = {"weight_decay": weight_decay, "normalised": normalised, "joint": joint, "fused": fused}
        super().__init__(params, {"lr": lr, "p": p, **options, "maximize": maximize, "foreach": foreach})

    def check(self, group: Group) -> None:
        p = group["p"]
        if not (is_finite(p) and p > 1):
            raise ValueError(f"p is {p!r}. Mirror descent needs 1 < p < ∞.")

    def move(self, group: Group, params: Tensors, grads: Tensors) -> None:
        p, lr = group["p"], float(group["lr"])
        if group["weight_decay"]:
            grads = torch._foreach_add(grads, params, alpha=group["weight_decay"])
        if group["normalised"]:
            grads = wide(grads)
            grads = torch._foreach_div(grads, dual_sizes(Entrywise(p), grads, group["joint"]))
        if p == 2:
            torch._foreach_add_(params, grads, alpha=-lr)
        elif group.get("fused"):
            self._move_fused(params, grads, lr, p)
        elif p < 2:
            duals = self._duals(params, p)
            torch._foreach_add_(duals, wide(grads), alpha=-lr)
            torch._foreach_copy_(params, signed_power(duals, 1 / (p - 1)))
        else:
            torch._foreach_copy_(params, _moved(wide(params), wide(grads), lr, p))

    def _move_fused(self, params: Tensors, grads: Tensors, lr: float, p: float) -> None:
        step = _compiled(_dual_step if p < 2 else _plain_step)
        for w, g in zip(params, grads, strict=True):
            if p < 2 and "dual" not in self.state[w]:
                self.state[w]["dual"] = signed_power(wide([w]), p - 1)[0]
            arrays = [x.detach() for x in ([w, g, self.state[w]["dual"]] if p < 2 else [w, g])]
            if all(x.is_contiguous() for x in arrays):
                arrays = [x.view(-1) for x in arrays]  # one compiled program for all shapes
            step(*arrays, lr, p)

    def _duals(self, params: Tensors, p: float) -> Tensors:
        """∇ψ(w) from the state, or from the weights where they are new or were changed."""
        with_state = [w for w in params if "dual" in self.state[w]]
        written = signed_power([self.state[w]["dual"] for w in with_state], 1 / (p - 1))
        written = [x.to(w.dtype) for x, w in zip(written, with_state, strict=True)]
        # One comparison for all tensors, because the host waits for the GPU at each.
        if with_state and torch.stack(largest_entries(torch._foreach_sub(written, with_state))).any():
            for w, old in zip(with_state, written, strict=True):
                dual = torch.where(old == w, self.state[w]["dual"], signed_power(wide([w]), p - 1)[0])
                self.state[w]["dual"] = dual
        for w in params:
            if "dual" not in self.state[w]:
                self.state[w]["dual"] = signed_power(wide([w]), p - 1)[0]
        return [self.state[w]["dual"] for w in params]


@functools.cache
def _compiled(step: Callable[..., None]) -> Callable[..., None]:
    return torch.compile(step, dynamic=True)


def _dual_step(w: Tensor, g: Tensor, dual: Tensor, lr: float, p: float) -> None:
    """The step for p < 2: the dual is recomputed wherever w is not what the last step wrote."""
    written = signed_power([dual], 1 / (p - 1))[0].to(w.dtype)
    dual.copy_(torch.where(written == w, dual, signed_power(wide([w]), p - 1)[0]) - lr * wide([g])[0])
    w.copy_(signed_power([dual], 1 / (p - 1))[0])


def _plain_step(w: Tensor, g: Tensor, lr: float, p: float) -> None:
    grads = [lr * x for x in wide([g])]  # a number inside a foreach call would be compiled in
    w.copy_(_moved(wide([w]), grads, 1.0, p)[0])


def _moved(params: Tensors, grads: Tensors, lr: float, p: float) -> Tensors:
    """(∇ψ)⁻¹(∇ψ(w) − lr g), every power taken of a number in [−1, 1]."""
    roots = signed_power(torch._foreach_mul(grads, lr), 1 / (p - 1))
    units = torch._foreach_maximum(torch._foreach_abs(params), torch._foreach_abs(roots))
    units = [unit.clamp_min(torch.finfo(unit.dtype).tiny) for unit in units]  # 0/0 where both are 0
    duals = signed_power(torch._foreach_div(params, units), p - 1)
    torch._foreach_div_(roots, units)
    torch._foreach_sub_(duals, signed_power(roots, p - 1))
    torch._foreach_mul_(units, signed_power(duals, 1 / (p - 1)))
    return units
