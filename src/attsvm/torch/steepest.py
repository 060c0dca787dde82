"""Steepest descent in a norm as a torch optimizer: of single matrices, or of the products of W_Q and W_K."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from attsvm._support.validation import is_finite, is_integer
from attsvm.norms import Entrywise, Norm, RowWise, Schatten, capabilities_of, spectral
from attsvm.norms.names import norm_of
from attsvm.torch.directions import ACTS_ON, ITERATED, finite, steepest
from attsvm.torch.optimizer import Group, GroupOptimizer, Tensors, wide

# A group's norm is part of a checkpoint, which torch.load reads with weights_only=True by default.
torch.serialization.add_safe_globals([Entrywise, RowWise, Schatten])


class SteepestDescent(GroupOptimizer):
    """Steepest descent with steps of length lr in a norm.

        W ← (1 − lr · weight_decay) W − lr · argmax_{N(Δ) ≤ 1} ⟨M, Δ⟩
        M ← momentum · M + (1 − momentum) ∇L

    norm: Entrywise(p), RowWise(p) or Schatten(p). attsvm.frobenius: normalised GD. linf: sign descent, with
    momentum Signum. spectral: Muon. l1: one coordinate. nuclear: one singular pair. LongestRow(): every row
    at length one. A parameter without gradient, or with a zero gradient, takes no step.

    joint: take a step of length lr for all parameters of the group together, not for each tensor: they
    count as one vector for an entrywise norm, as one block-diagonal matrix for a Schatten norm.
    A step of its own for each attention head: pass the blocks of `split`.
    polar: how directions of Schatten norms are computed: "svd", exactly, or "newton-schulz", by products
    (spectral: Muon's five steps, in bfloat16 on a GPU; Schatten(4): twelve of Newton's).
    nesterov: the direction of momentum · M + (1 − momentum) ∇L instead of M, as in Muon.
    Reference: Fan et al. 2025, "Implicit Bias of Spectral Descent and Muon"; Jordan et al. 2024, Muon.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        norm: Norm | str,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        polar: str = "svd",
        joint: bool = False,
        maximize: bool = False,
        foreach: bool | None = None,
    ) -> None:
        norm = norm_of(norm) if isinstance(norm, str) else norm
        geometry = {"norm": norm, "joint": joint, "polar": polar}
        dynamics = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(params, {"lr": lr, **geometry, **dynamics, "maximize": maximize, "foreach": foreach})

    def check(self, group: Group) -> None:
        norm, momentum = group["norm"], group["momentum"]
        acts_on = capabilities_of(norm).acts_on
        if acts_on not in ACTS_ON:
            raise TypeError(f"norm is {norm!r}. Pass attsvm.frobenius, linf, spectral, … or Entrywise(p).")
        if not (is_finite(momentum) and 0 <= momentum < 1):
            raise ValueError(f"momentum is {momentum!r}. Pass a number in [0, 1).")
        if group["nesterov"] and not momentum:
            raise ValueError("nesterov looks ahead along the momentum, which is 0. Pass momentum=0.95, say.")
        if group["polar"] not in ("svd", "newton-schulz"):
            raise ValueError(f"polar is {group['polar']!r}. Pass 'svd' or 'newton-schulz'.")
        if group["polar"] != "svd" and (acts_on != "singular values" or norm.p not in ITERATED):
            raise ValueError(
                f"polar='newton-schulz' serves spectral and Schatten(4), not {norm}. Pass 'svd'."
            )
        if group["polar"] != "svd" and group["joint"] and norm.p != ITERATED[0]:
            raise ValueError("joint steps of Schatten(4) need singular values. Pass polar='svd'.")

    def move(self, group: Group, params: Tensors, grads: Tensors) -> None:
        grads = wide(grads)
        if group["momentum"]:
            averages = self._averaged(params, grads, momentum := group["momentum"])
            if group["nesterov"]:
                grads = torch._foreach_mul(grads, 1 - momentum)  # PyTorch 2.11 has no lerp of shards
                torch._foreach_add_(grads, averages, alpha=momentum)
            else:
                grads = averages
        steps, lr = self.directions(group, params, grads), float(group["lr"])
        if group["weight_decay"]:
            torch._foreach_mul_(params, 1 - lr * group["weight_decay"])
        torch._foreach_add_(params, steps, alpha=-lr)

    def directions(self, group: Group, params: Tensors, grads: Tensors) -> Tensors:
        """The step of every parameter, of length one; grads include the momentum."""
        return steepest(group["norm"], list(grads), group["joint"], group["polar"])

    def _averaged(self, params: Tensors, grads: Tensors, momentum: float) -> Tensors:
        for w, g in zip(params, grads, strict=True):
            if "average" not in self.state[w]:
                self.state[w]["average"] = torch.zeros_like(g)
        averages = [self.state[w]["average"] for w in params]
        torch._foreach_lerp_(averages, grads, 1 - momentum)
        return averages


class Compositional(SteepestDescent):
    """Steps of W_Q and W_K that move every head's W = W_Kᵀ W_Q by at most lr in a norm, to first order.

        W_K ← W_K − lr/2 · C⁻¹ steepest(C⁻¹ ∇L),     C = (W_Q W_Qᵀ + ridge · I)^½;     the same for W_Q

    The step of W does not depend on the lengths of the factors; a plain step of W_Q moves W in proportion to
    the length of W_K. The spectral norm gives compositional Muon, `attsvm.compositional` in `attsvm.train`.

    pairs: (W_Q, W_K) of every layer, weights of nn.Linear (heads · width, d) and (groups · width, d), or
        dictionaries {"params": [W_Q, W_K], …} with settings of their own.
    heads: attention heads of W_Q; groups: of W_K, by default the heads. Where heads share keys, their W stand
        side by side.
    momentum, nesterov, weight_decay, polar: as in SteepestDescent.
    """

    def __init__(
        self,
        pairs: Iterable[Any],
        lr: float,
        norm: Norm | str = spectral,
        *,
        heads: int = 1,
        groups: int | None = None,
        ridge: float = 0.01,
        **others: Any,
    ) -> None:
        param_groups = [pair if isinstance(pair, dict) else {"params": list(pair)} for pair in pairs]
        param_groups = [{"ridge": ridge, "heads": heads, "groups": groups, **group} for group in param_groups]
        super().__init__(param_groups, lr, norm, joint=True, **others)

    def check(self, group: Group) -> None:
        # `joint` gives `move` both matrices of a pair; the steps themselves are one for each head.
        super().check({**group, "joint": False})
        ridge, heads, groups = group["ridge"], group["heads"], group["groups"]
        if not (is_finite(ridge) and ridge > 0):
            raise ValueError(f"ridge is {ridge!r}. Pass a positive number, such as 0.01.")
        if not (is_integer(heads) and heads >= 1):
            raise ValueError(f"heads is {heads!r}. Pass a count ≥ 1.")
        if groups is not None and not (is_integer(groups) and groups >= 1 and heads % groups == 0):
            raise ValueError(f"{heads} heads and {groups} groups. Pass a divisor of the heads.")
        if len(group["params"]) != 2:
            raise ValueError(
                f"a pair has {len(group['params'])} parameters. Pass (W_Q, W_K) of every layer; projections "
                "that are one matrix cannot be told apart."
            )

    def fits(self, group: Group, w: Tensor) -> None:
        """The pair's matrices have heads of one width."""
        query, key = group["params"]
        heads, groups = group["heads"], group["groups"] or group["heads"]
        shapes = f"W_Q {tuple(query.shape)} and W_K {tuple(key.shape)}"
        if query.ndim != 2 or key.ndim != 2 or len(query) % heads or len(query) // heads * groups != len(key):
            raise ValueError(
                f"{shapes} with {heads} heads and {groups} groups: expected (heads · width, d) and "
                "(groups · width, d)."
            )

    def directions(self, group: Group, params: Tensors, grads: Tensors) -> Tensors:
        heads, groups = group["heads"], group["groups"] or group["heads"]
        if heads > 1 and any(hasattr(g, "placements") for g in grads):
            raise RuntimeError(
                "steps of several heads need whole gradients, but one is a shard (FSDP). Use DDP."
            )
        W_Q, W_K = group["params"]
        query, key = wide([W_Q.detach(), W_K.detach()])
        query, key = query.unflatten(0, (heads, -1)), key.unflatten(0, (groups, -1))
        # The queries that share one key stand side by side.
        shared = query.unflatten(0, (groups, -1)).transpose(1, 2).flatten(2)
        key_root = _inverse_root(key, group["ridge"]).repeat_interleave(heads // groups, 0)
        roots = {id(W_Q): key_root, id(W_K): _inverse_root(shared, group["ridge"])}
        steps = []
        for w, grad in zip(params, grads, strict=True):
            inverse = roots[id(w)]
            scaled = inverse @ grad.unflatten(0, (len(inverse), -1))
            head_steps = steepest(group["norm"], list(scaled), False, group["polar"])
            steps.append((inverse @ torch.stack(head_steps)).flatten(0, 1) / 2)
        return steps


def _inverse_root(factor: Tensor, ridge: float) -> Tensor:
    """(F Fᵀ + ridge · I)^(−½) of every factor (heads, width, d)."""
    square, trace = finite(factor @ factor.mT)
    values, vectors = torch.linalg.eigh(square)
    return (vectors / torch.sqrt(values.clamp_min(0) + ridge + trace)[:, None]) @ vectors.mT
