"""What a look needs of the layers that project queries and keys."""

from __future__ import annotations

from torch import Tensor, nn

from attsvm.query_key import Part


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


def tensors_of(layer: Part) -> list[Tensor]:
    """What a layer's outputs are linear in: its matrix, rows first, and its bias where it has one."""
    return [layer.weight] if layer.bias is None else [layer.weight, layer.bias]


def shrink_each(weights: list[Tensor], factors: Tensor) -> None:
    """W_h ← factor_h W_h."""
    for W, factor in zip(weights, factors, strict=True):
        W.mul_(factor.to(W.dtype))


def shrink_rows(queries: list[Tensor], keys: list[Tensor], groups: int, factors: Tensor) -> None:
    """Multiply the logits of head h by factor_h: half of it in the queries and half in the keys.

    Where heads share keys, which cannot shrink for one of them alone, all of it in the queries. Rotary
    positions turn and do not stretch, so it holds with them, too.
    """
    shared = len(factors) != groups
    for tensors, power in ((queries, 1.0 if shared else 0.5), (keys, 0.0 if shared else 0.5)):
        for x in tensors if power else []:
            parts = (
                x.view(len(factors), -1, *x.shape[1:])
                if x.is_contiguous()
                else x.unflatten(0, (len(factors), -1))
            )
            size = (factors**power).to(x.dtype).reshape(-1, *(1 for _ in parts.shape[1:]))
            parts.mul_(size)
