"""Softmax attention pooling whose gradient survives saturation.

The usual softmax gradient s_a (γ_a − Σ s_t γ_t) of the winning token a cancels to zero once s_a rounds
to one. Here the weights are functions of the logits relative to the winner's, and the winner's weight
is one minus the others'. Autograd then computes

    ∂L/∂logit_t = s_t (g_t − ḡ),  t ≠ a,    ∂L/∂logit_a = −Σ_{t≠a} ∂L/∂logit_t,    g_t = γ_t − γ_a,

in which nothing cancels. The same holds of second derivatives and of torch.func.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attsvm.torch.probe import attention, losing_weights, relative_logits


def pool(logits: Tensor, values: Tensor, mask: Tensor | None = None, *, scale_free: bool = False) -> Tensor:
    """The attended value Σ_t s_t value_t (…, c) of logits (…, T) and values (…, T, c).

    Leading axes broadcast; mask is True where a token counts. The gradient in the logits is exact while
    the type can hold it, up to logit gaps of 700 (float32: 87). Beyond that, scale_free=True divides the
    gradient by the largest weight in the batch among tokens whose value is not their winner's. This positive
    factor does not change the steps of steepest descent, normalised mirror descent and sign descent. Values
    get their true gradient: with scale_free they must not depend on the parameters that the logits depend on,
    and gradients must not be accumulated.
    """
    _check_values(logits, values)
    relative, winner = relative_logits(logits, mask)
    values = _without_padding(values, mask)
    losing, log_total = losing_weights(relative, winner)
    weights = torch.where(winner, 1 - losing.sum(-1, keepdim=True), losing).to(values.dtype)
    if not scale_free:
        return _mean(weights, values)
    pooled = _mean(weights.detach(), values)
    fixed = values.detach()
    index = winner.int().argmax(-1, keepdim=True)[..., None]
    best = torch.take_along_dim(fixed, index, -2)
    # Tokens with the winner's value are left out of the scale: their difference would be rounding alone.
    pulls = (fixed != best).any(-1)  # not of their difference: compiled, it may be one rounding off zero
    factors = _factors(relative.detach().masked_fill(~pulls, -torch.inf), log_total.detach())
    # Adds zero, with gradient s_t (value_t − best − Σ_j s_j (value_j − best))/scale in the relative logits.
    zeros = torch.where(relative > -torch.inf, relative - relative.detach(), 0)
    scaled, shares = (factors * zeros).to(values.dtype), (losing.detach() * zeros).to(values.dtype)
    offset = _offset_mean(scaled, fixed, best)
    mean_offset = _offset_mean(factors.to(values.dtype), fixed, best)
    return pooled + (offset - shares.sum(-1, keepdim=True) * mean_offset)


class AttentionPooling(nn.Module):
    """Pools tokens (n, T, d) into (n, heads · d) by softmax attention with logits x_tᵀ W z.

    Each attention head has its own W (d, e) in `weights`, so that an optimizer gives each head its own step.
    Without `query_width` it is the prompt model: e = 1 and the query is the constant 1. With it, pass
    queries (n, e). Values default to the tokens; tokens where the mask (n, T) is False are ignored.

    scale_free: see `pool`; for training W on fixed tokens, far past saturation.
    Reference: Tarzanagh et al. 2023, "Max-Margin Token Selection in Attention Mechanism".
    """

    def __init__(
        self, d: int, heads: int = 1, *, query_width: int | None = None, scale_free: bool = False
    ) -> None:
        super().__init__()
        if min(d, heads, 1 if query_width is None else query_width) < 1:
            raise ValueError(f"d = {d}, heads = {heads}, query_width = {query_width}. Pass numbers ≥ 1.")
        self.d, self.heads, self.query_width, self.scale_free = d, heads, query_width, scale_free
        sizes = (d, 1 if query_width is None else query_width)
        # Small and random, because heads that start equal would stay equal.
        self.weights = nn.ParameterList([nn.Parameter(0.02 * torch.randn(sizes)) for _ in range(heads)])

    def forward(
        self,
        tokens: Tensor,
        queries: Tensor | None = None,
        mask: Tensor | None = None,
        values: Tensor | None = None,
    ) -> Tensor:
        logits = self.logits(_without_padding(tokens, mask), queries)
        head_mask = None if mask is None else mask[:, None]
        values = (tokens if values is None else values)[:, None]
        return pool(logits, values, head_mask, scale_free=self.scale_free).flatten(-2)

    def logits(self, tokens: Tensor, queries: Tensor | None = None) -> Tensor:
        """x_tᵀ W_h z of every head, (n, heads, T)."""
        if tokens.ndim != 3 or tokens.shape[-1] != self.d:
            raise ValueError(f"tokens have shape {tuple(tokens.shape)}, expected (n, T, {self.d}).")
        W = torch.stack(list(self.weights))
        if self.query_width is None:
            if queries is not None:
                raise ValueError("queries were given to a prompt model. Pass query_width=e to the module.")
            return torch.einsum("ntd,hd->nht", tokens, W[:, :, 0])
        expected = (tokens.shape[0], self.query_width)
        if queries is None or tuple(queries.shape) != expected:
            received = "none" if queries is None else f"shape {tuple(queries.shape)}"
            raise ValueError(f"queries: expected shape {expected}, got {received}.")
        return torch.einsum("ntd,hde,ne->nht", tokens, W, queries)

    def attention(self, tokens: Tensor, queries: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Attention of every head, (n, heads, T)."""
        logits = self.logits(_without_padding(tokens, mask), queries)
        return attention(logits, None if mask is None else mask[:, None])

    def extra_repr(self) -> str:
        return f"d={self.d}, heads={self.heads}, query_width={self.query_width}, scale_free={self.scale_free}"


# ---------------------------------------------------------------------- details


def _without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Tokens or values (…, T, c) with zeros where the mask is False: zero times a padded NaN is NaN."""
    if (
        mask is None or mask.dtype != torch.bool or mask.shape[-1] != x.shape[-2]
    ):  # the latter are refused later
        return x
    return torch.where(mask[..., None], x, 0)


def _factors(relative: Tensor, log_total: Tensor) -> Tensor:
    """The weights over the largest weight of the batch, without forming either, which may underflow.

    relative: −∞ for tokens that are left out.
    The logarithm of the largest weight is split into a token and a row part. Each part is subtracted from
    numbers of its own size: adding −5000.1 and −0.7 first would round away four digits of the ratio.
    """
    token, largest = relative.max(), (relative - log_total).max()
    any_token = torch.isfinite(largest)  # False where all tokens of all rows are left out: factors 0
    token, largest = torch.where(any_token, token, 0), torch.where(any_token, largest, 0)
    return torch.exp((relative - token) - (log_total + (largest - token)))


def _mean(weights: Tensor, values: Tensor) -> Tensor:
    # Values that all heads share: the heads are the rows of one product, and the values are not copied.
    if values.ndim == weights.ndim + 1 > 3 and values.shape[-3] == 1:
        return weights @ values[..., 0, :, :]
    return (weights[..., None, :] @ values)[..., 0, :]


def _offset_mean(weights: Tensor, values: Tensor, best: Tensor) -> Tensor:
    """Σ_t w_t (value_t − best), of values (…, T, c) and one of them (…, 1, c)."""
    return _mean(weights, values) - weights.sum(-1, keepdim=True) * best[..., 0, :]


def _check_values(logits: Tensor, values: Tensor) -> None:
    if values.ndim < 2 or values.shape[-2] != logits.shape[-1]:
        shapes = f"values have shape {tuple(values.shape)} but logits have {tuple(logits.shape)}"
        raise ValueError(f"{shapes}. Pass values (…, T, c) with one row per logit.")
