"""Norms of queries and keys (QK-norm): where a model has them, their gains set the size of its logits.

    logit = scale · (γ_q ∘ q √w/‖q‖)ᵀ (γ_k ∘ k √w/‖k‖)

W_Q and W_K may have any length. So a head is measured by its gains, and its logits shrink with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attsvm._support.architectures import first_attribute

QUERY_NORMS, KEY_NORMS = ("q_norm", "q_layernorm"), ("k_norm", "k_layernorm")
"""Attributes of attention modules that hold them: Qwen3, OLMo2, Gemma3; Persimmon."""


@dataclass(frozen=True)
class QueryKeyNorms:
    """The two norms of an attention module, whose heads share `groups` keys and are `width` wide.

    A gain has an entry per coordinate of a head, shared by all heads, or one per coordinate of all heads.
    """

    query: nn.Module
    key: nn.Module
    heads: int
    groups: int
    width: int

    @classmethod
    def of(cls, module: nn.Module, heads: int, groups: int, width: int) -> QueryKeyNorms | None:
        """Those of a module; None where it has no norms with gains of these sizes."""
        query, key = first_attribute(module, QUERY_NORMS), first_attribute(module, KEY_NORMS)
        norms = cls(query, key, heads, groups, width)
        for norm, count in ((query, heads), (key, groups)):
            gains: Any = getattr(norm, "weight", None)
            if not isinstance(gains, Tensor) or gains.numel() not in (width, count * width):
                return None
        return norms

    @property
    def sizes(self) -> Tensor:
        """‖γ_q ∘ γ_k‖ times the lengths of normalised vectors, of every head (heads,)."""
        query, key = (
            self._by_head(norm, count) for norm, count in ((self.query, self.heads), (self.key, self.groups))
        )
        lengths = [_weight(norm).numel() ** 0.5 for norm in (self.query, self.key)]
        return torch.linalg.vector_norm(query * key, dim=1) * lengths[0] * lengths[1]

    def shrink(self, factors: Tensor) -> None:
        """Multiply the logits of head h by factor_h; where heads share gains, all by the least."""
        query_shared, key_shared = (
            _weight(norm).numel() == self.width and count > 1
            for norm, count in ((self.query, self.heads), (self.key, self.groups))
        )
        if query_shared:
            factors = factors.amin().expand(self.heads)
        both = query_shared or (self.groups == self.heads and not key_shared)
        powers = (0.5, 0.5) if both else (1.0, 0.0)  # what heads share cannot shrink for one of them
        _scale(self.query, factors ** powers[0])
        _scale(self.key, factors[:: self.heads // self.groups] ** powers[1])

    def _by_head(self, norm: nn.Module, count: int) -> Tensor:
        gains = (_weight(norm).detach().double() + _offset(norm)).reshape(-1, self.width)
        return gains.expand(count, -1).repeat_interleave(self.heads // count, 0)


def _weight(norm: nn.Module) -> Tensor:
    weight: Any = norm.weight
    return weight


def _offset(norm: nn.Module) -> float:
    """What a norm adds to its weight before it multiplies: 1 in Gemma's, 0 in all others that we know."""
    if isinstance(norm, nn.LayerNorm):
        return 0.0
    weight = _weight(norm)
    with torch.no_grad():
        outputs = norm(torch.ones_like(weight)).double() - weight.double()
    return float(outputs.mean().round())


def _scale(norm: nn.Module, factors: Tensor) -> None:
    """Multiply the outputs by one factor, or by one of each head."""
    offset, parameters = _offset(norm), [_weight(norm), getattr(norm, "bias", None)]
    for parameter, added in zip(parameters, (offset, 0.0), strict=True):
        if parameter is not None:
            shared = parameter.numel() // len(factors) * len(factors) != parameter.numel() or bool(
                (factors == factors[0]).all()
            )
            wide = factors[:1] if shared else factors.repeat_interleave(parameter.numel() // len(factors))
            parameter.copy_(
                ((parameter.double() + added) * wide.to(parameter.device) - added).to(parameter.dtype)
            )
