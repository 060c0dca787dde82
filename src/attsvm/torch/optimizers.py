"""Steepest descent in a norm, of matrices or of products of W_Q and W_K, and mirror descent.

Their base has one step over parameter groups, the checks of settings, and exact checkpoints.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from attsvm._support.validation import is_finite, is_integer
from attsvm.norms import Entrywise, Norm, RowWise, Schatten, capabilities_of, spectral
from attsvm.norms.names import norm_of
from attsvm.torch.directions import (
    ACTS_ON,
    ITERATED,
    dual_sizes,
    finite,
    largest_entries,
    signed_power,
    steepest,
)

Group = dict[str, Any]
Tensors = list[Tensor]

SMALL = 16_384
"""Up to so many entries of a tensor, on a CPU, a call costs more than the computation."""

# A group's norm is part of a checkpoint, which torch.load reads with weights_only=True by default.
torch.serialization.add_safe_globals([Entrywise, RowWise, Schatten])


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


# ---------------------------------------------------------------------- steepest descent


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


# ---------------------------------------------------------------------- mirror descent


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
