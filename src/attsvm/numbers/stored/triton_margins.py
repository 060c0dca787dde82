"""A Triton kernel for margins (x_a − x_t)ᵀ y on a GPU that reads x once. Triton comes with torch for CUDA.

Imported only on a GPU. `device.py` has the same formula in torch, which moves five times as much memory.
"""

from __future__ import annotations

import sys
from typing import Any

import triton
import triton.language as tl

TOKENS, ENTRIES = 64, 64
"""Tokens, and entries of each, that a program of the kernel reads at once."""


def margins(x: Any, anchor: Any, y: Any) -> Any:
    """The margins (k, T) in float64, the difference first: x (k, T, d) of any type, anchor (k,), y (k, d)."""
    (k, T, d), shape = x.shape, {"TOKENS": TOKENS, "ENTRIES": ENTRIES}
    out = y.new_empty((k, T))
    with sys.modules["torch"].cuda.device(x.device):
        _margins[(k, triton.cdiv(T, TOKENS))](x.contiguous(), anchor, y.contiguous(), out, T, d, **shape)
    return out


@triton.jit
def _margins(x, anchor, y, out, T, d, TOKENS: tl.constexpr, ENTRIES: tl.constexpr):  # type: ignore[no-untyped-def]
    i, t = tl.program_id(0).to(tl.int64), tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    first, total = tl.load(anchor + i), tl.zeros((TOKENS,), tl.float64)
    for start in range(0, d, ENTRIES):
        c = start + tl.arange(0, ENTRIES)
        inside = (t[:, None] < T) & (c[None, :] < d)
        token = tl.load(x + (i * T + t[:, None]) * d + c[None, :], inside, 0.0).to(tl.float64)
        winner = tl.load(x + (i * T + first) * d + c, c < d, 0.0).to(tl.float64)
        direction = tl.load(y + i * d + c, c < d, 0.0)
        total += tl.sum((winner[None, :] - token) * direction[None, :], 1)
    tl.store(out + i * T + t, total, t < T)
