"""Compositional steps of W_Q and W_K: steps of their product, as a torch optimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from attsvm._support.validation import is_finite, is_integer
from attsvm.norms import Norm, spectral
from attsvm.torch.directions import finite, steepest
from attsvm.torch.optimizer import Group, Tensors, wide
from attsvm.torch.steepest import SteepestDescent


class Compositional(SteepestDescent):
    """Steps of W_Q and W_K that move every head's W = W_Kᵀ W_Q by at most lr in a norm, to first order.

        W_K ← W_K − lr/2 · C⁻¹ steepest(C⁻¹ ∇L),     C = (W_Q W_Qᵀ + ridge · I)^½;     the same for W_Q

    The step of W does not depend on the lengths of the factors; a plain step of W_Q moves W in proportion to
    the length of W_K. The spectral norm gives compositional Muon, `attsvm.compositional` in `attsvm.train`.

    pairs: (W_Q, W_K) of every layer, weights of nn.Linear (heads · width, d) and (groups · width, d), or
        dictionaries {"params": [W_Q, W_K], …} with settings of their own.
    heads: of W_Q; groups: of W_K, by default the heads. Where heads share keys, their W stand side by side.
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
        options = {"ridge": ridge, "groups": groups}
        param_groups = [{**options, **group} for group in param_groups]
        super().__init__(param_groups, lr, norm, heads=heads, joint=True, **others)

    def check(self, group: Group) -> None:
        # `joint` gives `move` both matrices of a pair; the steps themselves are one for each head.
        super().check({**group, "joint": False})
        ridge, heads, groups = group["ridge"], group["heads"], group["groups"]
        if not (is_finite(ridge) and ridge > 0):
            raise ValueError(f"ridge is {ridge!r}. Pass a positive number, such as 0.01.")
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
