"""(x_a − x_t)ᵀ y on a GPU in one reading of x, by Triton, which comes with torch for CUDA.

Imported only where there is one: `device.py` has the same in plain torch, which reads and writes five
times as much.
"""

from __future__ import annotations

import sys
from typing import Any

import triton
import triton.language as tl

TOKENS, PART = 64, 64
"""Tokens and entries of them that are read at once."""


def margins(x: Any, anchor: Any, y: Any) -> Any:
    """The margins (k, T) in float64, the difference first: x (k, T, d) of any type, anchor (k,), y (k, d)."""
    (k, T, d), shape = x.shape, {"TOKENS": TOKENS, "PART": PART}
    out = y.new_empty((k, T))
    with sys.modules["torch"].cuda.device(x.device):
        _margins[(k, triton.cdiv(T, TOKENS))](x.contiguous(), anchor, y.contiguous(), out, T, d, **shape)
    return out


@triton.jit
def _margins(x, anchor, y, out, T, d, TOKENS: tl.constexpr, PART: tl.constexpr):  # type: ignore[no-untyped-def]
    i, t = tl.program_id(0).to(tl.int64), tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    first, total = tl.load(anchor + i), tl.zeros((TOKENS,), tl.float64)
    for start in range(0, d, PART):
        c = start + tl.arange(0, PART)
        inside = (t[:, None] < T) & (c[None, :] < d)
        token = tl.load(x + (i * T + t[:, None]) * d + c[None, :], inside, 0.0).to(tl.float64)
        winner = tl.load(x + (i * T + first) * d + c, c < d, 0.0).to(tl.float64)
        direction = tl.load(y + i * d + c, c < d, 0.0)
        total += tl.sum((winner[None, :] - token) * direction[None, :], 1)
    tl.store(out + i * T + t, total, t < T)
