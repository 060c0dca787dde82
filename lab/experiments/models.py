"""The networks of the experiments, in plain PyTorch.

Weights stay in float32; `dtype` is what is computed in. What a block of pictures does, or a block of texts
after its attention, is one function (`image_block`, `after_text`), which `fused.py` compiles for a GPU. An
attention module has `query` and `key` layers and takes `hidden_states`, as Hugging Face's do, so that
MarginMonitor can read it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attend import Line, attend


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    bias = None if layer.bias is None else layer.bias.to(x.dtype)
    return F.linear(x, layer.weight.to(x.dtype), bias)


def normed(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    bias = None if bias is None else bias.to(x.dtype)
    return F.layer_norm(x, weight.shape, weight.to(x.dtype), bias)


class Attention(nn.Module):
    """Multi-head attention over padded states (n, T, d), or over texts in one line (N, d).

    first: only the first token of each text asks; a last block needs no more, and the answer is the same.
    selective: a learned temperature per query, of the number of tokens in its text and of the token itself.
    causal: no key ahead of its query, for states without mask.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float,
        bias: bool,
        selective: bool = False,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.is_causal = causal
        self.heads, self.attention_head_size, self.dropout = heads, width // heads, dropout
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=bias)
        self.beta = nn.Parameter(torch.ones(heads)) if selective else None
        self.token = nn.Parameter(torch.zeros(heads, width)) if selective else None

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        line: Line | None = None,
        first: bool = False,
    ) -> Tensor:
        x, dropout = hidden_states, self.dropout if self.training else 0.0
        if first:
            asking = x[:, :1] if line is None else x[line.first]
            rows = torch.cat([self.key.weight, self.value.weight]).to(x.dtype)
            q, (k, v) = linear(asking, self.query), F.linear(x, rows).chunk(2, -1)
        else:
            asking = x
            rows = torch.cat([self.query.weight, self.key.weight, self.value.weight]).to(x.dtype)
            q, k, v = F.linear(x, rows).chunk(3, -1)
        q, k, v = (each.unflatten(-1, (self.heads, -1)) for each in (q, k, v))
        if self.token is not None:
            q = q * self.temperature(asking, attention_mask, line)[..., None]
        if line is not None:
            mixed = attend(q, k, v, line, dropout, first)
        else:
            swapped = (each.transpose(1, 2) for each in (q, k, v))
            allowed = None if attention_mask is None else attention_mask[:, None, None]
            mixed = F.scaled_dot_product_attention(
                *swapped, attn_mask=allowed, dropout_p=dropout, is_causal=self.is_causal
            ).transpose(1, 2)
        return mixed.flatten(-2)

    def temperature(self, asking: Tensor, mask: Tensor | None, line: Line | None) -> Tensor:
        """τ of every query and head: (…, heads), in the type of the states."""
        if line is not None:
            lengths = line.starts.diff()
            if len(asking) != len(lengths):
                lengths = torch.repeat_interleave(lengths, lengths, output_size=len(asking))
        else:
            lengths = mask.sum(-1)[:, None]
        # exp(−exp β) is in (0, 1): the factor may grow with log(number of tokens), at a learned rate.
        # Reference: Zhang et al. 2024, "Selective Attention".
        growth = torch.exp(-torch.exp(self.beta)) * torch.log(lengths[..., None].float())
        factor = 1 + growth + torch.tanh(asking.float() @ self.token.T)
        return factor.to(asking.dtype)


# ---------------------------------------------------------------------- text


def after_text(
    x: Tensor,
    mixed: Tensor,
    out: Tensor,
    norm1: Tensor,
    up: Tensor,
    down: Tensor,
    norm2: Tensor,
    dropout: float,
) -> Tensor:
    """x ← LN(x + mixed outᵀ), x ← LN(x + MLP x)."""
    x = normed(x + F.dropout(F.linear(mixed, out.to(x.dtype)), dropout), norm1)
    change = F.linear(F.gelu(F.linear(x, up.to(x.dtype))), down.to(x.dtype))
    return normed(x + F.dropout(change, dropout), norm2)


class TextBlock(nn.Module):
    """x ← LN(x + attention), x ← LN(x + MLP), without biases."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, selective: bool) -> None:
        super().__init__()
        self.attention = Attention(width, heads, dropout, False, selective)
        self.norm1, self.norm2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.up, self.down = nn.Linear(width, hidden, bias=False), nn.Linear(hidden, width, bias=False)
        self.dropout, self.way = dropout, after_text

    def forward(self, x: Tensor, mask: Tensor | None, line: Line | None, first: bool) -> Tensor:
        mixed = self.attention(x, mask, line=line, first=first)
        if first:
            x = x[:, :1] if line is None else x[line.first]
        layers = (self.attention.out, self.norm1, self.up, self.down, self.norm2)
        dropout = self.dropout if self.training else 0.0
        return self.way(x, mixed, *(layer.weight for layer in layers), dropout)


class SentimentEncoder(nn.Module):
    """The encoder of Julistiono et al. 2024, section of the movie reviews: one logit per text.

    Learned positions, post-LN blocks, no biases; the first token of the last block is read by a linear head.
    mean: the mean of all tokens is read, of texts of one length: the authors' earlier net, without a mask.
    """

    def __init__(
        self,
        size: int = 3,
        vocabulary: int = 30_522,
        length: int = 512,
        width: int = 384,
        hidden: int = 1536,
        dropout: float = 0.2,
        selective: bool = False,
        mean: bool = False,
    ) -> None:
        super().__init__()
        self.dtype, self.mean = torch.float32, mean
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([TextBlock(width, size, hidden, dropout, selective) for _ in range(size)])
        self.head = nn.Linear(width, 1, bias=False)

    def forward(self, ids: Tensor, line: Line) -> Tensor:
        """Logits (n,) of texts in one line of ids (N,)."""
        x = (self.words(ids) + self.places(line.positions)).to(self.dtype)
        for k, block in enumerate(self.blocks):
            x = block(x, None, line, first=k == len(self.blocks) - 1 and not self.mean)
        if self.mean:
            x = x.unflatten(0, (-1, line.longest)).mean(1)
        return linear(x, self.head)[:, 0].float()

    def padded(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The same of padded ids (n, T) with every query computed, for those who look into the heads."""
        x = (self.words(ids) + self.places.weight[: ids.shape[1]]).to(self.dtype)
        for block in self.blocks:
            x = block(x, None if self.mean else mask, None, first=False)
        return linear(x.mean(1) if self.mean else x[:, 0], self.head)[:, 0].float()


# ---------------------------------------------------------------------- images


def image_block(x: Tensor, block: ImageBlock, first: bool) -> Tensor:
    """x ← x + attention(LN x), x ← x + MLP(LN x)."""
    dropout = block.dropout if block.training else 0.0
    mixed = block.attention(normed(x, block.norm1.weight, block.norm1.bias), first=first)
    x = x[:, :1] if first else x
    x = x + F.dropout(linear(mixed, block.attention.out), dropout)
    inner = F.gelu(linear(normed(x, block.norm2.weight, block.norm2.bias), block.up))
    return x + F.dropout(linear(F.dropout(inner, dropout), block.down), dropout)


class ImageBlock(nn.Module):
    """The weights of `image_block`; its attention is without dropout, as published."""

    def __init__(self, width: int, heads: int, hidden: int, dropout: float, causal: bool = False) -> None:
        super().__init__()
        self.attention = Attention(width, heads, 0.0, bias=True, causal=causal)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.dropout, self.way = dropout, image_block

    def forward(self, x: Tensor, first: bool) -> Tensor:
        return self.way(x, self, first)


class VisionTransformer(nn.Module):
    """The ViT of Julistiono et al. 2024: class token, learned positions, pre-LN; logits of the classes."""

    def __init__(
        self,
        side: int = 48,
        patch: int = 4,
        width: int = 512,
        depth: int = 6,
        heads: int = 8,
        hidden: int = 512,
        dropout: float = 0.1,
        classes: int = 10,
        channels: int = 3,
    ) -> None:
        super().__init__()
        self.dtype, self.side, self.patch, self.dropout = torch.float32, side, patch, dropout
        self.embed = nn.Linear(channels * patch**2, width)
        self.places = nn.Parameter(torch.randn((side // patch) ** 2 + 1, width))
        self.first = nn.Parameter(torch.randn(width))
        self.blocks = nn.ModuleList([ImageBlock(width, heads, hidden, dropout) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, pictures: Tensor, every: bool = False) -> Tensor:
        """Logits (n, classes) of pictures (n, channels, side, side); every: all queries of the last block."""
        n, tiles = len(pictures), (self.side // self.patch, self.patch)
        patches = pictures.unflatten(3, tiles).unflatten(2, tiles).permute(0, 2, 4, 1, 3, 5)
        patches = patches.reshape(n, tiles[0] ** 2, -1).to(self.dtype)
        x = linear(patches, self.embed)
        x = torch.cat([self.first.to(x.dtype).expand(len(x), 1, -1), x], 1) + self.places.to(x.dtype)
        x = F.dropout(x, self.dropout, self.training)
        for k, block in enumerate(self.blocks):
            x = block(x, first=not every and k == len(self.blocks) - 1)
        return linear(normed(x[:, 0], self.norm.weight, self.norm.bias), self.head).float()


# ---------------------------------------------------------------------- language


class LanguageModel(nn.Module):
    """A decoder in the manner of GPT-2: learned positions, pre-LN, causal; the word vectors are read twice.

    All matrices begin with entries of 0.02, those that write into the residual stream smaller by √(2 depth).
    """

    def __init__(self, vocabulary: int, length: int, width: int, depth: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.dtype = torch.float32
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            [ImageBlock(width, heads, hidden, 0.0, causal=True) for _ in range(depth)]
        )
        self.norm = nn.LayerNorm(width)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                inner = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(weight, std=0.02 / (2 * depth) ** 0.5 if inner else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(weight)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (n, T, vocabulary) of the token after each one of ids (n, T)."""
        x = (self.words(ids) + self.places.weight[: ids.shape[1]]).to(self.dtype)
        for block in self.blocks:
            x = block(x, first=False)
        return F.linear(normed(x, self.norm.weight, self.norm.bias), self.words.weight.to(x.dtype)).float()
