"""QK-clip in one file: keep attention logits below a limit while a model trains. It needs torch alone.

    from qk_clip import clip_heads_, largest_logits

    optimizer.step()
    with torch.no_grad():
        largest = largest_logits(q, k, scale, causal=True)     # q (n, heads, T, w), k (n, groups, T, w)
        clip_heads_(attn.q_proj, attn.k_proj, largest, limit=100.0, heads=32, groups=8)

After the step the rows of W_Q and W_K of a head whose largest logit is above the limit are multiplied by
√(limit / largest) each, biases with them. Where heads share keys (groups < heads) W_Q alone is multiplied, by
limit / largest. Where a model normalises queries and keys, W_Q and W_K do not set the logits: pass the gains
of the norms to clip_gains_ instead.

From attsvm, MIT licence (Kimi Team 2025, Kimi K2: MuonClip). Equal to attsvm.torch.clip_logits to rounding;
its tests compare the two.
"""

import torch


def largest_logits(q, k, scale, causal=False, mask=None, block=1024):
    """The largest scale · qᵀk of every head (heads,), of the queries and keys that count, in blocks of
    queries.

    q (n, heads, T, w), k (n, groups, S, w): as they enter the softmax, after norms and rotary positions.
    mask: booleans that broadcast to (n, heads, T, S), True where a key counts.
    """
    heads, T, S = q.shape[1], q.shape[2], k.shape[2]
    k = k.repeat_interleave(heads // k.shape[1], 1)
    largest = torch.full((heads,), -torch.inf, device=q.device, dtype=torch.float32)
    for start in range(0, T, block):
        logits = (q[:, :, start : start + block] @ k.mT).float() * scale
        counts = torch.ones(logits.shape[-2:], dtype=torch.bool, device=q.device)
        if causal:
            counts = counts.tril(start + S - T)
        if mask is not None:
            counts = counts & (mask if mask.shape[-2] == 1 else mask[..., start : start + block, :])
        largest = torch.maximum(largest, logits.masked_fill(~counts, -torch.inf).amax((0, 2, 3)))
    return largest


def factors_of(largest, limit, dtype=torch.float32):
    """limit / largest of the heads above the limit, one for the others; below the limit by four roundings."""
    target = limit * (1 - max(4 * torch.finfo(dtype).eps, 1e-5))
    over = largest > limit
    return torch.where(over, target / torch.where(over, largest, torch.ones_like(largest)), 1.0)


@torch.no_grad()
def clip_heads_(q_proj, k_proj, largest, limit, heads, groups=None):
    """Shrink the rows of nn.Linear layers for queries and keys; returns the factors (heads,)."""
    groups = groups or heads
    factors = factors_of(largest, limit, q_proj.weight.dtype)
    shared = groups != heads
    _scale_rows(q_proj, factors if shared else factors.sqrt(), heads)
    if not shared:
        _scale_rows(k_proj, factors.sqrt(), heads)
    return factors


@torch.no_grad()
def clip_gains_(q_norm, k_norm, largest, limit):
    """Shrink the gains of norms that all heads share, by the largest logit of all; returns the factor.

    Norms that multiply by their weight, as Qwen3's; Gemma's multiply by 1 + weight and need another.
    """
    factor = factors_of(largest, limit, q_norm.weight.dtype).min()
    for norm in (q_norm, k_norm):
        for parameter in (norm.weight, getattr(norm, "bias", None)):
            if parameter is not None:
                parameter.mul_(factor.sqrt().to(parameter.dtype))
    return factor


def _scale_rows(layer, factors, heads):
    for parameter in (layer.weight, layer.bias):
        if parameter is not None:
            rows = parameter.unflatten(0, (heads, -1))
            rows.mul_(factors.to(parameter.dtype).reshape(heads, *[1] * (rows.ndim - 1)))
