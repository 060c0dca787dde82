"""Selective attention: every query has its own learned temperature."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attsvm.torch.pooling import AttentionPooling, attention


def temperature(beta: Tensor, positions: Tensor, token: Tensor | None = None) -> Tensor:
    """The factor of a query's logits: 1 + exp(−exp β) log i, plus tanh of the token part where there is one.

    beta, positions i ≥ 1 and the token part broadcast. exp(−exp β) is in (0, 1): the factor may grow with the
    logarithm of the number of competing tokens, at a learned rate. The token part moves it by less than 1.
    """
    factor = 1 + torch.exp(-torch.exp(beta)) * torch.log(positions)
    return factor if token is None else factor + torch.tanh(token)


class SelectiveAttention(AttentionPooling):
    """AttentionPooling whose logits are multiplied by a learned temperature of the query.

        logits  τ(z, i) x_tᵀ W z,     τ(z, i) = 1 + exp(−exp β) log i  [ + tanh(a · z) ]

    i is the query's position, counted from 1: `positions` (n,), by default the number of tokens that count,
    which is the position of a causal query. Each head has its own β, and with token_part=True its own a
    (needs query_width). To separate tokens sharply W must grow; τ can replace a part of that growth.
    Reference: Zhang et al. 2024, "Selective Attention: Enhancing Transformer through Principled Context
    Control", as we recall its form.
    """

    def __init__(
        self,
        d: int,
        heads: int = 1,
        *,
        query_width: int | None = None,
        token_part: bool = False,
        scale_free: bool = False,
    ) -> None:
        super().__init__(d, heads, query_width=query_width, scale_free=scale_free)
        if token_part and query_width is None:
            raise ValueError("token_part needs queries to look at. Pass query_width=e, or leave it out.")
        # exp(−exp 1) = 0.07: near plain attention, and with a gradient.
        self.beta = nn.Parameter(torch.ones(heads))
        self.token = nn.Parameter(torch.zeros(heads, query_width)) if token_part and query_width else None

    def forward(
        self,
        tokens: Tensor,
        queries: Tensor | None = None,
        mask: Tensor | None = None,
        values: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        logits = self.logits(tokens, queries, mask, positions)
        return self._pooled(logits, tokens if values is None else values, mask)

    def logits(
        self,
        tokens: Tensor,
        queries: Tensor | None = None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """τ(z, i) x_tᵀ W_h z of every head, (n, heads, T)."""
        plain = super().logits(tokens, queries)
        if positions is None:
            all_tokens = tokens.new_full((len(tokens),), float(tokens.shape[1]))
            positions = all_tokens if mask is None else mask.sum(-1).to(tokens.dtype)
        return self.temperature(positions, queries)[..., None] * plain

    def temperature(self, positions: Tensor, queries: Tensor | None = None) -> Tensor:
        """τ of every query and head, (n, heads)."""
        if positions.ndim != 1 or bool((positions < 1).any()):
            shape = tuple(positions.shape)
            raise ValueError(f"positions have shape {shape}; pass one number ≥ 1 per query, counted from 1.")
        token = None if self.token is None else torch.einsum("ne,he->nh", queries, self.token)
        return temperature(self.beta, positions.to(self.beta)[:, None], token)

    def attention(
        self,
        tokens: Tensor,
        queries: Tensor | None = None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Attention of every head, (n, heads, T)."""
        logits = self.logits(tokens, queries, mask, positions)
        return attention(logits, None if mask is None else mask[:, None])

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, token_part={self.token is not None}"
