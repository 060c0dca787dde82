"""A forward pass that ends where softmax attention begins, and what it has computed by then."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

PRODUCTS = ("matmul", "__matmul__", "bmm")
ALIKE = 1e-3
"""Derivatives by products that differ by less, of the largest, are equal: half precision rounds so."""

FORBIDDEN = -9_999.0
"""A mask that adds less forbids the token: models write −10,000, −1e9, their dtype's minimum or −∞."""


class Met(NamedTuple):
    """Queries (n, heads, T, width), keys (n, groups, S, width), the mask, and the options by name."""

    query: Tensor
    key: Tensor
    mask: Tensor | None
    options: dict[str, Any]


class Reached(Exception):
    """Carries a Met; nothing behind it is computed."""


class SoftmaxSeen(TorchFunctionMode):
    """Inside, the first softmax of products (or torch's attention) raises Reached; dropout does nothing.

        logits = scale · query · key + the rest

    scale is the derivative of what enters the softmax by the product, which must be one number wherever a
    token is not forbidden; the rest (masks, biases, positions) becomes a mask to add.
    ends: False for a pass without dropout that nothing of this ends.
    """

    def __init__(self, inputs: dict[str, Any], ends: bool = True) -> None:
        super().__init__()
        self.ends = ends
        self.batch = len(inputs["hidden_states"])
        self.products: list[tuple[Tensor, Tensor, Tensor]] = []

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        if name == "dropout":  # it would draw numbers that the training was to draw
            return args[0]
        if not self.ends:
            return function(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            raise Reached(self._attended(*args, **kwargs))
        if name == "softmax" and (met := self._before(args[0])):
            raise Reached(met)
        with torch.enable_grad():
            out = function(*args, **kwargs)
            if name not in PRODUCTS or out.ndim < 3:
                return out
            leaf = out.detach().requires_grad_()
            self.products.append((args[0].detach(), args[1].detach(), leaf))
            return leaf.clone()  # which may be divided in place

    def _attended(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> Met:
        mask = None if attn_mask is None else attn_mask[(None,) * (4 - attn_mask.ndim)]
        told = {"scaling": query.shape[-1] ** -0.5 if scale is None else scale, "is_causal": is_causal}
        return Met(self._by_head(query.detach()), self._by_head(key.detach()), mask, told)

    def _before(self, logits: Tensor) -> Met | None:
        """The first product that enters these logits everywhere alike, or None."""
        for query, key, product in self.products:
            if product.shape[-2:] != logits.shape[-2:] or product.numel() != logits.numel():
                continue
            with torch.enable_grad():
                (slope,) = torch.autograd.grad(logits.sum(), product, retain_graph=True, allow_unused=True)
            slopes = torch.zeros(1) if slope is None else slope.reshape(logits.shape)[logits > FORBIDDEN]
            scale = float(slopes[0]) if len(slopes) else 0.0
            if scale and bool(((slopes - scale).abs() <= ALIKE * abs(scale)).all()):
                rest = self._by_head(logits.detach()) - scale * self._by_head(product.detach())
                options = {"scaling": scale, "is_causal": False}
                return Met(self._by_head(query), self._by_head(key.mT), rest, options)
        return None

    def _by_head(self, x: Tensor) -> Tensor:
        """(n · heads, …) or (n, heads, …) → (n, heads, …)."""
        return x.reshape(self.batch, -1, *x.shape[-2:])
