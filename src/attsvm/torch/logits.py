"""The logits of softmax attention, computed in blocks of queries and keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Logits:
    """scale · query · key, and which keys count; the fields are the arguments of `attention_statistics`.

    query (batch, heads, t, d), key (batch, groups, s, d), mask broadcasts to (batch, heads, t, s).
    """

    query: Tensor
    key: Tensor
    mask: Tensor | None
    scale: float
    causal: bool = False
    window: int | None = None
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        query, key = self.query, self.key
        for name, array in (("query", query), ("key", key)):
            if not isinstance(array, Tensor):
                kind = f"{type(array).__module__}.{type(array).__name__}"
                raise TypeError(f"{name} is {kind}. Pass a tensor of torch: torch.as_tensor({name}).")
        shapes = f"query {tuple(query.shape)} and key {tuple(key.shape)}"
        if query.ndim != 4 or key.ndim != 4 or query.shape[::3] != key.shape[::3]:
            raise ValueError(f"{shapes}: expected (batch, heads, t, d) and (batch, groups, s, d).")
        if not query.is_floating_point() or query.dtype != key.dtype or query.device != key.device:
            types = f"query is {query.dtype} on {query.device}, key {key.dtype} on {key.device}"
            raise ValueError(f"{types}. Pass both in one floating type on one device.")
        if 0 in key.shape:
            raise ValueError(f"{shapes}: there is no key. Pass at least one.")
        if query.shape[1] % key.shape[1]:
            problem = f"{query.shape[1]} heads cannot share {key.shape[1]} groups of keys evenly"
            raise ValueError(
                f"{shapes}: {problem}. Pass so many heads that they are a multiple of the groups."
            )
        if self.window is not None and self.window < 1:
            raise ValueError(
                f"window is {self.window}. Pass the number of keys that a query sees, at least 1."
            )
        if self.soft_cap is not None and not self.soft_cap > 0:
            raise ValueError(f"soft_cap is {self.soft_cap}. Pass a positive number.")
        self.broadcasts(self.mask, "mask")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, t, _ = self.query.shape
        return batch, heads, t, self.key.shape[2]

    @property
    def allowed(self) -> Tensor | None:
        """The mask as booleans, without the numbers that it adds."""
        return self.mask if self.mask is None or self.mask.dtype == torch.bool else self.mask > -torch.inf

    @property
    def wide(self) -> torch.dtype:
        """The type of the computation."""
        return torch.float64 if self.query.dtype == torch.float64 else torch.float32

    def broadcasts(self, mask: Tensor | None, name: str) -> None:
        """Refuse a mask that does not broadcast to the logits."""
        if mask is None:
            return
        axes = zip(reversed(mask.shape), reversed(self.shape), strict=False)
        if mask.ndim > 4 or not all(size in (1, length) for size, length in axes):
            raise ValueError(
                f"{name} has shape {tuple(mask.shape)}, which does not broadcast to {self.shape}."
            )

    def visible_keys(self, queries: slice) -> tuple[int, int]:
        """The keys, from and up to, that some query of a block may see."""
        _, _, t, s = self.shape
        low, high = 0, s
        if self.causal:
            high = queries.stop + s - t
        elif self.window is not None:
            high = queries.stop + s - t + self.window - 1
        if self.window is not None:
            low = queries.start + s - t - self.window + 1
        low = min(max(low, 0), s - 1)
        return low, min(max(high, low + 1), s)

    def block(self, queries: slice, keys: slice) -> Tensor:
        """Logits of some queries and keys (batch, heads, queries, keys), −∞ where a key does not count."""
        q = self.query[:, :, queries].to(self.wide).unflatten(1, (self.key.shape[1], -1))
        k = self.key[:, :, None, keys].to(self.wide)
        logits: Tensor = ((self.scale * q) @ k.mT).flatten(1, 2)
        if self.soft_cap is not None:
            logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
        if self.mask is not None:
            mask = mask_block(self.mask, queries, keys)
            if mask.dtype == torch.bool:
                logits = logits.masked_fill(~mask, -torch.inf)
            else:
                logits = logits + mask.to(self.wide)
        return logits.masked_fill(self._hidden(queries, keys), -torch.inf)

    def _hidden(self, queries: slice, keys: slice) -> Any:
        """Keys ahead of their query or outside its window; the last query stands at the last key."""
        _, _, t, s = self.shape
        i, j = (torch.arange(x.start, x.stop, device=self.query.device) for x in (queries, keys))
        ahead = j - (i[:, None] + s - t)
        hidden = ahead > (0 if self.causal else s + t)
        return hidden if self.window is None else hidden | (ahead.abs() >= self.window)


def mask_block(mask: Tensor, queries: slice, keys: slice) -> Tensor:
    """A mask's entries of some queries and keys; axes of length one stay."""
    mask = mask[(None,) * (4 - mask.ndim)]
    axes = zip((queries, keys), mask.shape[2:], strict=True)
    queries, keys = (block if size > 1 else slice(None) for block, size in axes)
    return mask[:, :, queries, keys]
