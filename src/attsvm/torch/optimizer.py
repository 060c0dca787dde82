"""The base of our torch optimizers: one step over parameter groups, checks, and exact checkpoints."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from attsvm._support.validation import is_finite
from attsvm.norms.names import norm_of

Group = dict[str, Any]
Tensors = list[Tensor]

SMALL = 16_384
"""Up to so many entries of a tensor, on a CPU, a call costs more than the computation."""


class GroupOptimizer(Optimizer):
    """An optimizer whose `move` turns the gradients of some parameters of a group into a step.

    foreach=True moves all parameters of one device and dtype by the same few calls; foreach=False moves
    them one by one, which needs less memory. None joins all parameters on a GPU, and on a CPU the small ones:
    a large tensor moved by itself stays in the CPU's cache.
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step for every parameter that has a gradient; returns what the closure returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                params = [w for w in group["params"] if w.grad is not None and w.numel()]
                for batch in _batches(params, group["foreach"], group.get("joint", False)):
                    self.move(group, batch, _gradients(group, batch))
        return loss

    @abstractmethod
    def move(self, group: Group, params: Tensors, grads: Tensors) -> None:
        """Change the parameters in place; grads are those of the loss to minimise."""

    @abstractmethod
    def check(self, group: Group) -> None:
        """Raise where a setting of the group is impossible."""

    def fits(self, group: Group, w: Tensor) -> None:
        """Raise where a parameter does not fit the settings of its group."""

    def add_param_group(self, param_group: Group) -> None:
        if isinstance(norm := param_group.get("norm"), str):
            param_group["norm"] = norm_of(norm)
        group = {**self.defaults, **param_group}
        lr = group["lr"]
        rate = lr.item() if isinstance(lr, Tensor) and lr.numel() == 1 else lr
        if not (is_finite(rate) and rate >= 0):
            raise ValueError(f"lr is {lr!r}. Pass a number ≥ 0.")
        decay = group["weight_decay"]
        if not (is_finite(decay) and decay >= 0):
            raise ValueError(f"weight_decay is {decay!r}. Pass a number ≥ 0.")
        self.check(group)
        super().add_param_group(param_group)
        for w in self.param_groups[-1]["params"]:
            if w.is_complex():
                raise ValueError(f"a parameter is {w.dtype}. Pass its real view, torch.view_as_real(w).")
            self.fits(group, w)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state_dict, exactly: torch would round the state to the parameters' dtype."""
        super().load_state_dict(state_dict)
        for group in self.param_groups:
            group.update({name: value for name, value in self.defaults.items() if name not in group})
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        params = [w for group in self.param_groups for w in group["params"]]
        for number, w in zip(numbers, params, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                self.state[w][name] = value.to(w.device, copy=True)


def wide(tensors: Tensors) -> Tensors:
    """Half-precision tensors as float32, all others unchanged."""
    return [x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in tensors]


def _batches(params: Tensors, foreach: bool | None, joint: bool) -> list[Tensors]:
    """The parameters in lists, each of which is moved by one call."""
    if joint and params:
        return [params]
    batches: dict[Any, Tensors] = {}
    for w in params:
        small = w.device.type != "cpu" or w.numel() <= SMALL
        kind = (w.device, w.dtype) if (small if foreach is None else foreach) else id(w)
        batches.setdefault(kind, []).append(w)
    return list(batches.values())


def _gradients(group: Group, params: Tensors) -> Tensors:
    grads = [w.grad for w in params]
    for g in grads:
        if g.layout != torch.strided:
            raise RuntimeError(f"a gradient is {g.layout}. Use dense gradients: Embedding(sparse=False).")
    if group["maximize"]:
        grads = torch._foreach_neg(grads)
    return grads
