"""The layers that project to queries and keys: norms of their products, factors that shrink the logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attsvm._support.architectures import LayerSlice, QueryKeySlices

SAME_LENGTH = 0.03
"""Lengths whose difference, over the longest, is less count as equal: half precision rounds by 0.01."""


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(n, T, heads · width) → (n, heads, T, width)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def scale_of(module: nn.Module, width: int) -> float:
    """The factor of a Hugging Face module's logits; older versions of GPT-2 have two switches for it."""
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
    """Multiply the logits of head h by factor_h: √factor_h in the queries and √factor_h in the keys.

    queries, keys: views (blocks, rows, …) with the rows of all heads. Where heads share keys, which cannot
    shrink for one head alone, factor_h goes to the queries. Rotary positions turn and do not stretch, so the
    same holds with them.
    """
    shared = len(factors) != groups
    for tensors, power in ((queries, 1.0 if shared else 0.5), (keys, 0.0 if shared else 0.5)):
        for x in tensors if power else []:
            heads = x.unflatten(1, (len(factors) // len(x), -1))
            size = (factors**power).to(x.dtype).reshape(*heads.shape[:2], *(1 for _ in heads.shape[2:]))
            heads.mul_(size)


@dataclass(frozen=True)
class ProjectedSlices:
    """Some coordinates of all queries (n, heads, T, w) and keys (n, …, S, w), and their layers."""

    query_layer: LayerSlice
    key_layer: LayerSlice
    query: Tensor
    key: Tensor

    @property
    def heads(self) -> tuple[int, int]:
        """How many heads the queries have, and the keys: several heads may share one key."""
        return self.query.shape[1], len(self.key_layer.weight) // self.key.shape[-1]

    @property
    def norms(self) -> Tensor:
        """‖K_hᵀ Q_h‖_F of every head."""
        return product_norms(self.query_layer.weight, self.key_layer.weight, *self.heads)

    def shrink(self, factors: Tensor) -> None:
        """Multiply the products of head h by factor_h."""
        shrink_rows(self.query_layer.tensors, self.key_layer.tensors, self.heads[1], factors)

    def stretch(self, outputs: Mapping[nn.Module, Tensor]) -> Tensor:
        """The factor from the layers' outputs to the lengths of queries times keys; NaN where it varies.

        Rotary positions turn and do not stretch. Norms stretch each vector by a factor of its own.
        """
        product = self.query.new_ones((), dtype=torch.double)
        sides = zip((self.query_layer, self.key_layer), (self.query, self.key), self.heads, strict=True)
        for layer, x, heads in sides:
            output = outputs[layer.layer]
            p = split_heads(layer.of(output.reshape(len(x), -1, output.shape[-1])), heads)
            if p.ndim != x.ndim or p.shape[::2] != x.shape[::2] or x.shape[1] % heads:
                return product * torch.nan
            p = p.repeat_interleave(x.shape[1] // heads, 1)
            length, projected = (torch.linalg.vector_norm(y.detach().double(), dim=-1) for y in (x, p))
            square = (projected * projected).sum()
            factor = torch.where(square > 0, (length * projected).sum() / square, 1.0)
            constant = (length - factor * projected).abs().max() <= SAME_LENGTH * length.max()
            product = product * torch.where(constant, factor, torch.nan)
        return product


def projected_slices(pairs: Sequence[QueryKeySlices], query: Tensor, key: Tensor) -> list[ProjectedSlices]:
    """Queries and keys as they enter the softmax, cut into the coordinates that each pair of layers gives."""
    widths = [len(query_layer.weight) // query.shape[1] for query_layer, _ in pairs]
    if sum(widths) != query.shape[-1] or query.shape[-1] != key.shape[-1]:
        mismatch = f"{query.shape[1]} heads meet {query.shape[-1]} wide, but {sum(widths)} wide are projected"
        raise NotImplementedError(f"{mismatch}: what else the layers give is not known.")
    coordinates = zip(pairs, query.split(widths, -1), key.split(widths, -1), strict=True)
    return [ProjectedSlices(*pair, q, k) for pair, q, k in coordinates]
