"""A forward pass that ends where softmax attention begins, and what enters the softmax."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

PRODUCTS = ("matmul", "__matmul__", "bmm")
SLOPE_TOLERANCE = 1e-3
"""Derivatives that differ by less, relative to the largest, count as equal: half precision rounds so."""

FORBIDDEN = -9_999.0
"""A mask that adds less forbids the token: models write −10,000, −1e9, their dtype's minimum or −∞."""


class AttentionInputs(NamedTuple):
    """Queries (n, heads, T, width), keys (n, groups, S, width), the mask, and the options by name."""

    query: Tensor
    key: Tensor
    mask: Tensor | None
    options: dict[str, Any]


class SoftmaxReached(Exception):
    """Carries AttentionInputs; nothing after the softmax is computed."""


class TraceSoftmax(TorchFunctionMode):
    """Inside, the first softmax of products (or torch's attention) raises SoftmaxReached; no dropout.

        logits = scale · query · key + offsets

    scale is the derivative of what enters the softmax by the product, which must be one number wherever a
    token is not forbidden; the offsets (masks, biases, positions) become a mask to add.
    ends: False for a pass without dropout that runs to its end.
    """

    def __init__(self, inputs: dict[str, Any], ends: bool = True) -> None:
        super().__init__()
        self.ends = ends
        self.batch = len(inputs["hidden_states"])
        self.products: list[tuple[Tensor, Tensor, Tensor]] = []

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(function, "__name__", ""), kwargs or {}
        if name == "dropout":  # it would consume random numbers of the training
            return args[0]
        if not self.ends:
            return function(*args, **kwargs)
        if name == "scaled_dot_product_attention":
            raise SoftmaxReached(self._of_torch_attention(*args, **kwargs))
        if name == "softmax" and (inputs := self._of_softmax(args[0])):
            raise SoftmaxReached(inputs)
        with torch.enable_grad():
            out = function(*args, **kwargs)
            if name not in PRODUCTS or out.ndim < 3:
                return out
            leaf = out.detach().requires_grad_()
            self.products.append((args[0].detach(), args[1].detach(), leaf))
            return leaf.clone()  # a clone, because the model may divide it in place

    def _of_torch_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> AttentionInputs:
        mask = None if attn_mask is None else attn_mask[(None,) * (4 - attn_mask.ndim)]
        options = {"scaling": query.shape[-1] ** -0.5 if scale is None else scale, "is_causal": is_causal}
        return AttentionInputs(self._by_head(query.detach()), self._by_head(key.detach()), mask, options)

    def _of_softmax(self, logits: Tensor) -> AttentionInputs | None:
        """The first product that enters these logits with one factor everywhere, or None."""
        for query, key, product in self.products:
            if product.shape[-2:] != logits.shape[-2:] or product.numel() != logits.numel():
                continue
            with torch.enable_grad():
                (slope,) = torch.autograd.grad(logits.sum(), product, retain_graph=True, allow_unused=True)
            slopes = torch.zeros(1) if slope is None else slope.reshape(logits.shape)[logits > FORBIDDEN]
            scale = float(slopes[0]) if len(slopes) else 0.0
            if scale and bool(((slopes - scale).abs() <= SLOPE_TOLERANCE * abs(scale)).all()):
                offsets = self._by_head(logits.detach()) - scale * self._by_head(product.detach())
                options = {"scaling": scale, "is_causal": False}
                return AttentionInputs(self._by_head(query), self._by_head(key.mT), offsets, options)
        return None

    def _by_head(self, x: Tensor) -> Tensor:
        """(n · heads, …) or (n, heads, …) → (n, heads, …)."""
        return x.reshape(self.batch, -1, *x.shape[-2:])
