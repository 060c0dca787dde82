"""What a look needs of the layers that project queries and keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attsvm.query_key import Pair, Part

SAME = 0.03
"""Lengths that differ by less, of the longest, are equal: half precision rounds by 0.01."""


def split(x: Tensor, heads: int) -> Tensor:
    """(n, T, heads · width) → (n, heads, T, width)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def scale_of(module: nn.Module, width: int) -> float:
    """What a Hugging Face module multiplies its logits with; older GPT-2 said it in two switches."""
    if hasattr(module, "scaling"):
        return float(module.scaling)
    scale = width**-0.5 if getattr(module, "scale_attn_weights", True) else 1.0
    layer = int(getattr(module, "layer_idx", 0) or 0)
    return scale / (layer + 1) if getattr(module, "scale_attn_by_inverse_layer_idx", False) else scale


def product_norms(Q: Tensor, K: Tensor, heads: int, groups: int) -> Tensor:
    """‖K_hᵀ Q_h‖_F = √⟨K_h K_hᵀ, Q_h Q_hᵀ⟩ of every head, without the large product."""
    Q, K = Q.unflatten(0, (heads, -1)).double(), K.unflatten(0, (groups, -1)).double()
    K = K.repeat_interleave(heads // groups, 0)
    return ((Q @ Q.mT) * (K @ K.mT)).sum((-2, -1)).clamp_min(0).sqrt()


def shrink_each(weights: list[Tensor], factors: Tensor) -> None:
    """W_h ← factor_h W_h."""
    for W, factor in zip(weights, factors, strict=True):
        W.mul_(factor.to(W.dtype))


def shrink_rows(queries: list[Tensor], keys: list[Tensor], groups: int, factors: Tensor) -> None:
    """Multiply the logits of head h by factor_h: half of it in the queries and half in the keys.

    queries, keys: views (blocks, rows, …) with the rows of all heads. Where heads share keys, which cannot
    shrink for one of them alone, all of it in the queries. Rotary positions turn and do not stretch, so it
    holds with them, too.
    """
    shared = len(factors) != groups
    for tensors, power in ((queries, 1.0 if shared else 0.5), (keys, 0.0 if shared else 0.5)):
        for x in tensors if power else []:
            parts = x.unflatten(1, (len(factors) // len(x), -1))
            size = (factors**power).to(x.dtype).reshape(*parts.shape[:2], *(1 for _ in parts.shape[2:]))
            parts.mul_(size)


@dataclass(frozen=True)
class Projected:
    """Some coordinates of all queries (n, heads, T, w) and keys (n, …, S, w), and what projects to them."""

    first: Part
    second: Part
    query: Tensor
    key: Tensor

    @property
    def heads(self) -> tuple[int, int]:
        """Of queries, and of keys: several queries may share one."""
        return self.query.shape[1], len(self.second.weight) // self.key.shape[-1]

    @property
    def norms(self) -> Tensor:
        """‖K_hᵀ Q_h‖_F of every head."""
        return product_norms(self.first.weight, self.second.weight, *self.heads)

    def shrink(self, factors: Tensor) -> None:
        """Multiply the products of head h by factor_h."""
        shrink_rows(self.first.tensors, self.second.tensors, self.heads[1], factors)

    def stretch(self, outputs: Mapping[nn.Module, Tensor]) -> Tensor:
        """How much longer queries times keys are than the projections; NaN where it is not the same for all.

        Rotary positions turn and do not stretch. Norms do, each vector by a factor of its own.
        """
        whole = self.query.new_ones((), dtype=torch.double)
        sides = zip((self.first, self.second), (self.query, self.key), self.heads, strict=True)
        for part, x, heads in sides:
            p = split(part.of(outputs[part.layer].reshape(len(x), -1, outputs[part.layer].shape[-1])), heads)
            if p.ndim != x.ndim or p.shape[::2] != x.shape[::2] or x.shape[1] % heads:
                return whole * torch.nan
            p = p.repeat_interleave(x.shape[1] // heads, 1)
            long, short = (torch.linalg.vector_norm(y.detach().double(), dim=-1) for y in (x, p))
            square = (short * short).sum()
            factor = torch.where(square > 0, (long * short).sum() / square, 1.0)
            same = (long - factor * short).abs().max() <= SAME * long.max()
            whole = whole * torch.where(same, factor, torch.nan)
        return whole


def projected(pairs: Sequence[Pair], query: Tensor, key: Tensor) -> list[Projected]:
    """Queries and keys as they meet, cut into the coordinates that each pair of layers projects to."""
    widths = [len(first.weight) // query.shape[1] for first, _ in pairs]
    if sum(widths) != query.shape[-1] or query.shape[-1] != key.shape[-1]:
        told = f"{query.shape[1]} heads meet {query.shape[-1]} wide, but {sum(widths)} wide are projected"
        raise NotImplementedError(f"{told}: what else the layers give is not known.")
    parts = zip(pairs, query.split(widths, -1), key.split(widths, -1), strict=True)
    return [Projected(*pair, q, k) for pair, q, k in parts]
