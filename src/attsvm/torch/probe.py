"""A fitted probe as a PyTorch module, which runs on a GPU, on batches, and token by token beside a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from attsvm.numbers import Float
from attsvm.torch.pooling import attention


class RunningBatch(NamedTuple):
    """The softmax of n growing sequences.

    top (n, h): the largest logit; total (n, h): Σ e^{l − top}; sums (n, h, k): the same sum over values.
    """

    top: Tensor
    total: Tensor
    sums: Tensor


class Kernel(nn.Module):
    """φ(x) = (k(‖(x − mean)/scale − l_j‖²))_j root: kernel features of tokens (n, T, d) → (n, T, m).

    Computed in float64 where the device has it, as in the fitted probe: the distances of large tokens cancel,
    and the root multiplies their errors.
    """

    landmarks: Tensor
    mean: Tensor
    scale: Tensor
    root: Tensor

    def __init__(self, gamma: Float, power: Float, **arrays: Float) -> None:
        super().__init__()
        self.gamma, self.power = float(gamma[0]), float(power[0])
        for name, array in arrays.items():
            self.register_buffer(name, torch.as_tensor(array, dtype=torch.float64))

    def forward(self, tokens: Tensor) -> Tensor:
        x = (tokens.to(self.mean.dtype) - self.mean) / self.scale
        squares = (x * x).sum(-1, keepdim=True) + (self.landmarks**2).sum(1) - 2 * x @ self.landmarks.T
        kernel = (1 + self.gamma * squares.clamp(min=0)) ** -self.power
        return kernel @ self.root

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert the buffers; to a device without float64 (Apple's) they go in float32."""
        try:
            fn(self.mean)
        except TypeError:
            return super()._apply(lambda buffer: fn(buffer.float()), recurse)
        return super()._apply(fn, recurse)


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


def feature_module(**arrays: Float) -> nn.Module:
    """The feature map that has these arrays; the identity where there are none."""
    if "root" in arrays:
        return Kernel(**arrays)
    return Rectified(**arrays) if "into" in arrays else nn.Identity()


class Probe(nn.Module):
    """Scores of token sequences by h prompts, each with an attention and values of its own.

        a_h = softmax(X p_h),   score_k = Σ_h Σ_t a_th (v_hk · x_t) + b_k

    prompts (d, h), head (d, h, k), intercept (k,): parameters; `head` are the vectors v, the linear map from
    tokens to scores. centre (d,), a buffer, is subtracted from the tokens before the products, which keeps
    their digits in float32. Two classes have one score.
    maps: feature maps of the tokens, whose outputs stand side by side; none: the tokens themselves.
    slopes (h,): what each head adds to its logits from one token to the next; large where it reads the last.
    """

    centre: Tensor
    slopes: Tensor

    def __init__(
        self,
        prompts: Float,
        head: Float,
        intercept: Float,
        centre: Float,
        maps: Sequence[nn.Module] = (),
        slopes: Float | None = None,
    ) -> None:
        super().__init__()
        self.maps = nn.ModuleList(maps)
        p, v, b = (torch.as_tensor(x, dtype=torch.float64) for x in (prompts, head, intercept))
        c = torch.as_tensor(centre).float()
        # With the rounded centre: that of the exact one would leave v · (centre − c) in every score.
        centred_intercept = b + torch.einsum("d,dhk->k", c.double(), v)
        self.prompts, self.head = nn.Parameter(p.float()), nn.Parameter(v.float())
        self.intercept = nn.Parameter(centred_intercept.float())
        self.register_buffer("centre", c)
        rise = torch.zeros(p.shape[1]) if slopes is None else torch.as_tensor(slopes).float()
        self.register_buffer("slopes", rise, persistent=False)

    @property
    def width(self) -> int:
        """Features of a token that this probe reads."""
        means = (feature_map.mean for feature_map in self.maps if hasattr(feature_map, "mean"))
        return int(next(means, self.centre).shape[0])

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores (n,), or (n, k) of several classes; tokens (n, T, d), mask (n, T): True where one counts."""
        logits, values = self._products(tokens, mask)
        weights = self._weights(logits, mask).to(values.dtype)
        return self._scores(torch.einsum("nht,nthk->nhk", weights, values))

    def attention(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Attention (n, h, T)."""
        logits, _ = self._products(tokens, mask)
        return self._weights(logits, mask)

    def start(self, n: int = 1) -> RunningBatch:
        """Before the first token of n sequences."""
        _, h, k = self.head.shape
        top = self.head.new_full((n, h), -torch.inf)
        return RunningBatch(top, torch.zeros_like(top), self.head.new_zeros(n, h, k))

    def step(
        self, state: RunningBatch, tokens: Tensor, mask: Tensor | None = None
    ) -> tuple[RunningBatch, Tensor]:
        """The states after one more token of each sequence (n, d), or a block (n, T, d), and the scores.

        mask (n, T): True where a token of the block counts. The score of a sequence without any token is the
        intercept.
        """
        logits, values = self._products(tokens if tokens.ndim == 3 else tokens[:, None], mask)
        if mask is not None:
            logits = logits.masked_fill(~mask[..., None], -torch.inf)
            values = values.masked_fill(~mask[..., None, None], 0)
        before = state.top - logits.shape[1] * self.slopes
        top = torch.maximum(before, logits.amax(1))
        # Before the first token top is −∞, and −∞ − (−∞) would be NaN.
        base = top.clamp_min(torch.finfo(top.dtype).min)
        decay, weights = torch.exp(before - base), torch.exp(logits - base[:, None])
        total = decay * state.total + weights.sum(1)
        sums = decay[..., None] * state.sums + torch.einsum("nth,nthk->nhk", weights, values)
        pooled = sums / total.clamp_min(torch.finfo(total.dtype).tiny)[..., None]  # 0 before the first token
        return RunningBatch(top, total, sums), self._scores(pooled)

    def streaming(self) -> Streaming:
        """`step` as a module whose state is an input and an output: for torch.export and servers."""
        return Streaming(self)

    def _products(self, tokens: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits (n, T, h), by the place before the next token where a head reads the last one, and values
        (n, T, h, k); padding, which may be NaN, is set to zero."""
        if tokens.ndim != 3 or tokens.shape[2] != self.width:
            raise ValueError(f"tokens have shape {tuple(tokens.shape)}. Pass (n, T, {self.width}).")
        if mask is not None:
            tokens = tokens.masked_fill(~mask[..., None], 0)
        if len(self.maps):
            tokens = torch.cat([feature_map(tokens) for feature_map in self.maps], -1)
        x = (tokens - self.centre).to(self.prompts.dtype)  # differences before rounding
        places = torch.arange(-x.shape[1], 0, dtype=x.dtype, device=x.device)[:, None]
        return x @ self.prompts + places * self.slopes, torch.einsum("ntd,dhk->nthk", x, self.head)

    @staticmethod
    def _weights(logits: Tensor, mask: Tensor | None) -> Tensor:
        """Attention (n, h, T) of logits (n, T, h)."""
        return attention(logits.transpose(1, 2), None if mask is None else mask[:, None])

    def _scores(self, pooled: Tensor) -> Tensor:
        scores = pooled.sum(1) + self.intercept
        return scores[:, 0] if scores.shape[1] == 1 else scores


class Streaming(nn.Module):
    """(top, total, sums, tokens (n, d)) → (top, total, sums, scores): `Probe.step` with its state."""

    def __init__(self, probe: Probe) -> None:
        super().__init__()
        self.probe = probe

    def forward(self, top: Tensor, total: Tensor, sums: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        state, scores = self.probe.step(RunningBatch(top, total, sums), tokens)
        return *state, scores
