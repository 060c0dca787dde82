"""A fitted probe as a PyTorch module: for a GPU, for batches, beside the model it watches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from attsvm.numbers import Float
from attsvm.torch.pooling import attention


class RunningBatch(NamedTuple):
    """What the softmax needs to know of n growing sequences: top, total (n, h); sums (n, h, k)."""

    top: Tensor
    total: Tensor
    sums: Tensor


class Kernel(nn.Module):
    """φ(x) = (k(‖(x − mean)/scale − l_j‖²))_j root: kernel features of tokens (n, T, d) → (n, T, m)."""

    landmarks: Tensor
    mean: Tensor
    scale: Tensor
    root: Tensor

    def __init__(self, gamma: Float, power: Float, **arrays: Float) -> None:
        super().__init__()
        self.gamma, self.power = float(gamma[0]), float(power[0])
        for name, array in arrays.items():
            self.register_buffer(name, torch.as_tensor(array, dtype=torch.float32))

    def forward(self, tokens: Tensor) -> Tensor:
        x = (tokens.to(self.mean.dtype) - self.mean) / self.scale
        apart = (x * x).sum(-1, keepdim=True) + (self.landmarks**2).sum(1) - 2 * x @ self.landmarks.T
        scaled = self.gamma * apart.clamp(min=0)
        near = (1 + scaled) ** -self.power
        return near @ self.root


class Rectified(nn.Module):
    """φ(x) = [x − mean, max(0, (x − mean) A + b)] of tokens (n, T, d) → (n, T, d + m); into is A (d, m)."""

    mean: Tensor
    into: Tensor
    bias: Tensor

    def __init__(self, **arrays: Float) -> None:
        super().__init__()
        for name, array in arrays.items():
            self.register_buffer(name, torch.as_tensor(array, dtype=torch.float32))

    def forward(self, tokens: Tensor) -> Tensor:
        x = tokens.to(self.mean.dtype) - self.mean
        return torch.cat([x, torch.relu(x @ self.into + self.bias)], -1)


def as_module(**arrays: Float) -> nn.Module:
    """A map of features from the arrays it has; the tokens themselves where it has none of these."""
    if "root" in arrays:
        return Kernel(**arrays)
    return Rectified(**arrays) if "into" in arrays else nn.Identity()


class Probe(nn.Module):
    """Scores of token sequences by h prompts and their heads.

        a_h = softmax(X p_h),   score_k = Σ_h Σ_t a_th (v_hk · x_t) + b_k

    prompts (d, h), head (d, h, k), intercept (k,): parameters. centre (d,), a buffer, is subtracted from the
    tokens before the products, which keeps their digits in float32. Two classes have one score.
    maps: of the tokens to features, side by side; without any the tokens themselves.
    """

    centre: Tensor

    def __init__(
        self,
        prompts: Float,
        head: Float,
        intercept: Float,
        centre: Float,
        maps: Sequence[nn.Module] = (),
    ) -> None:
        super().__init__()
        self.maps = nn.ModuleList(maps)
        parts = (torch.as_tensor(part, dtype=torch.float64) for part in (prompts, head, intercept, centre))
        p, v, b, c = parts
        base = b + torch.einsum("d,dhk->k", c, v)
        self.prompts, self.head, self.intercept = (nn.Parameter(part.float()) for part in (p, v, base))
        self.register_buffer("centre", c.float())

    @property
    def width(self) -> int:
        """Features of a token that this probe reads."""
        return int(next((one.mean for one in self.maps if hasattr(one, "mean")), self.centre).shape[0])

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores (n,), or (n, k) of several classes; tokens (n, T, d), mask (n, T): True where one counts."""
        logits, values = self._products(tokens)
        seen = None if mask is None else mask[:, None]
        weights = attention(logits.transpose(1, 2), seen).to(values.dtype)
        return self._scores(torch.einsum("nht,nthk->nhk", weights, values))

    def attention(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention (n, h, T)."""
        return attention(self._products(tokens)[0].transpose(1, 2), None if mask is None else mask[:, None])

    def start(self, n: int = 1) -> RunningBatch:
        """Before the first token of n sequences."""
        _, h, k = self.head.shape
        top = self.head.new_full((n, h), -torch.inf)
        return RunningBatch(top, torch.zeros_like(top), self.head.new_zeros(n, h, k))

    def step(
        self, state: RunningBatch, tokens: Tensor, mask: Tensor | None = None
    ) -> tuple[RunningBatch, Tensor]:
        """The states after one more token of each sequence (n, d), or a block (n, T, d), and the scores.

        mask (n, T): True where a token of the block counts. A sequence without any token yet has the score of
        its intercept.
        """
        logits, values = self._masked(tokens if tokens.ndim == 3 else tokens[:, None], mask)
        top = torch.maximum(state.top, logits.amax(1))
        base = _finite(top)
        before, now = torch.exp(state.top - base), torch.exp(logits - base[:, None])
        total = before * state.total + now.sum(1)
        sums = before[..., None] * state.sums + torch.einsum("nth,nthk->nhk", now, values)
        return RunningBatch(top, total, sums), self._scores(_divided(sums, total))

    def streaming(self) -> Streaming:
        """`step` as a module of its own, whose state goes in and comes out: for torch.export and servers."""
        return Streaming(self)

    def _masked(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits (n, T, h), −∞ where a token does not count, and values (n, T, h, k), 0 there."""
        logits, values = self._products(tokens)
        if mask is None:
            return logits, values
        return logits.masked_fill(~mask[..., None], -torch.inf), values.masked_fill(~mask[..., None, None], 0)

    def _products(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        if tokens.ndim != 3 or tokens.shape[2] != self.width:
            raise ValueError(f"tokens have shape {tuple(tokens.shape)}. Pass (n, T, {self.width}).")
        if len(self.maps):
            tokens = torch.cat([each(tokens) for each in self.maps], -1)
        x = tokens.to(self.centre.dtype) - self.centre
        return x @ self.prompts, torch.einsum("ntd,dhk->nthk", x, self.head)

    def _scores(self, pooled: Tensor) -> Tensor:
        scores = pooled.sum(1) + self.intercept
        return scores[:, 0] if scores.shape[1] == 1 else scores


class Streaming(nn.Module):
    """(top, total, sums, tokens (n, d)) → (top, total, sums, scores): `Probe.step`, its state in and out."""

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe = probe

    def forward(self, top: Tensor, total: Tensor, sums: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        state, scores = self.probe.step(RunningBatch(top, total, sums), tokens)
        return *state, scores


def _finite(top: Tensor) -> Tensor:
    """What logits are taken relative to: before the first token −∞ − −∞ would be NaN."""
    return top.clamp_min(torch.finfo(top.dtype).min)


def _divided(sums: Tensor, total: Tensor) -> Tensor:
    """The pooled values, zero before the first token."""
    return sums / total.clamp_min(torch.finfo(total.dtype).tiny)[..., None]
