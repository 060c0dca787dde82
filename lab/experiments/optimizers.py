"""An optimizer by its name: mirror:1.1, adam, sign, spectral, adam+muon."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import attsvm
from attsvm.norms import Norm
from attsvm.torch import LpMirrorDescent, SteepestDescent
from geometry import EqualSteps


class Together:
    """Some optimizers that share the parameters of a model among them."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.parts = optimizers

    def zero_grad(self) -> None:
        for optimizer in self.parts:
            optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        for optimizer in self.parts:
            optimizer.step()

    def tensors(self) -> dict[str, torch.Tensor]:
        """The state, flat: part.parameter.name → tensor."""
        out = {}
        for k, optimizer in enumerate(self.parts):
            for number, values in optimizer.state_dict()["state"].items():
                out |= {f"{k}.{number}.{name}": torch.as_tensor(value) for name, value in values.items()}
        return out

    def load(self, tensors: dict[str, torch.Tensor]) -> None:
        """The inverse of `tensors`; settings come from how the optimizer was made."""
        for k, optimizer in enumerate(self.parts):
            state: dict[str, Any] = optimizer.state_dict()
            state["state"] = {}
            for key, value in tensors.items():
                place, number, name = key.split(".", 2)
                if int(place) == k:
                    state["state"].setdefault(int(number), {})[name] = value
            optimizer.load_state_dict(state)


QUERY_KEY: dict[str, Norm] = {
    "gd": attsvm.frobenius,
    "schatten4": attsvm.Schatten(4),
    "muon": attsvm.spectral,
    "sign": attsvm.linf,
}
"""Norms in which `adam+NAME` moves the query and key weights."""
SHARE = 0.2
"""Root mean square of their steps by the step of Adam: about what Adam's own have."""
DECAY = 0.1
"""Of the query and key weights under AdamW."""


def optimizer(name: str, model: nn.Module, lr: float, fused: bool = False) -> Together:
    """mirror:P: mirror descent with potential |w|^P / P, every parameter, as published. adam: torch's.

    sign: steepest descent in l∞. spectral: for matrices inside the blocks, torch.optim.Muon without momentum
    or decay, whose Newton–Schulz steps stand in for the exact polar factor (an SVD per matrix and step is a
    hundred times slower on a GPU); everything else by sign descent with a twentieth of the step.
    adam+NAME: Adam, but for the query and key weights: gd, schatten4, muon or sign of `EqualSteps`, or
    adamw. NAME-heads takes each head's rows as a matrix of their own, NAME:X has steps of X lr instead of
    SHARE lr.
    fused: mirror descent and Adam in one pass over each tensor, and nothing asked of the GPU.
    Weights that ask for no gradient are left alone.
    """
    kind, _, p = name.partition(":")
    weights = [w for w in model.parameters() if w.requires_grad]
    if kind == "mirror" and p:
        return Together(LpMirrorDescent(weights, lr, float(p), fused=fused))
    if name == "adam":
        return Together(torch.optim.Adam(weights, lr, fused=fused, capturable=fused))
    if name == "sign":
        return Together(SteepestDescent(weights, lr, attsvm.linf))
    if name == "spectral":
        matrices, remaining = _split(model, lambda block: [w for w in block.parameters() if w.ndim == 2])
        polar = torch.optim.Muon(matrices, lr, weight_decay=0.0, momentum=0.0, nesterov=False)
        return Together(polar, *([SteepestDescent(remaining, lr / 20, attsvm.linf)] if remaining else []))
    if kind.startswith("adam+"):
        factors, remaining = _split(
            model, lambda block: [block.attention.query.weight, block.attention.key.weight]
        )
        adam = [torch.optim.Adam(remaining, lr, fused=fused, capturable=fused)] if remaining else []
        return Together(_query_key(kind[5:], factors, model, lr, float(p or SHARE), fused), *adam)
    raise _unknown(name)


def _query_key(
    name: str, factors: list[Tensor], model: nn.Module, lr: float, share: float, fused: bool
) -> torch.optim.Optimizer:
    """The optimizer of the query and key weights."""
    if name == "adamw":
        return torch.optim.AdamW(factors, lr, weight_decay=DECAY, fused=fused, capturable=fused)
    norm, _, layer_names = name.partition("-")
    if norm not in QUERY_KEY or layer_names not in ("", "heads"):
        raise _unknown(f"adam+{name}")
    heads = model.blocks[0].attention.heads if layer_names else 1
    return EqualSteps(factors, share * lr, QUERY_KEY[norm], heads=heads)


def _split(model: nn.Module, select: Callable[[Any], list[Tensor]]) -> tuple[list[Tensor], list[Tensor]]:
    """The chosen parameters of all blocks, and all others, of those that are trained."""
    ids = {id(w) for block in model.blocks for w in select(block)}
    trained = [w for w in model.parameters() if w.requires_grad]
    return [w for w in trained if id(w) in ids], [w for w in trained if id(w) not in ids]


def _unknown(name: str) -> ValueError:
    supported = ", ".join(f"adam+{kind}" for kind in QUERY_KEY)
    return ValueError(
        f"optimizer is {name!r}. Pass mirror:P with P > 1 (mirror:1.1), adam, sign or spectral; for queries "
        f"and keys by an optimizer of their own adam+adamw, {supported}, with -heads or not."
    )
