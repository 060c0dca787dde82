"""Softmax attention within texts that lie end to end in one line of tokens, without padding."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Line:
    """Where the texts of a batch begin and end.

    starts (n + 1,) int32: text i is the tokens starts[i] : starts[i + 1]; positions (N,): place in its text;
    longest: the most tokens of a text, a plain number so that a GPU is never asked.
    """

    starts: Tensor
    positions: Tensor
    longest: int

    @property
    def first(self) -> Tensor:
        """Where each text's first token is (n,)."""
        return self.starts[:-1].long()


def attend(q: Tensor, k: Tensor, v: Tensor, line: Line, dropout: float, first: bool) -> Tensor:
    """softmax(q kᵀ / √width) v within each text: k, v (N, heads, width), q also, or of first tokens only."""
    if q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and flash_works(q.dtype, q.shape[-1]):
        return _flash(q, k, v, line, dropout, first)
    return _padded(q, k, v, line, dropout, first)


def _flash(q: Tensor, k: Tensor, v: Tensor, line: Line, dropout: float, first: bool) -> Tensor:
    count = len(line.starts)
    ones = torch.arange(count, dtype=torch.int32, device=q.device)
    starts, most = (ones, 1) if first else (line.starts, line.longest)
    kernel = torch.ops.aten._flash_attention_forward
    return kernel(q, k, v, starts, line.starts, most, line.longest, dropout, False, False)[0]


def _padded(q: Tensor, k: Tensor, v: Tensor, line: Line, dropout: float, first: bool) -> Tensor:
    """The same by padding: slower, and works everywhere."""
    lengths = line.starts.diff()
    occupied = torch.arange(line.longest, device=q.device) < lengths[:, None]
    keys, values = (_spread(x, occupied) for x in (k, v))
    queries = q[:, None] if first else _spread(q, occupied)
    swapped = (x.transpose(1, 2) for x in (queries, keys, values))
    out = F.scaled_dot_product_attention(*swapped, attn_mask=occupied[:, None, None], dropout_p=dropout)
    out = out.transpose(1, 2)
    return out[:, 0] if first else out[occupied]


def _spread(x: Tensor, occupied: Tensor) -> Tensor:
    """(N, heads, width) → (n, longest, heads, width), zero where no token is."""
    place = (occupied.flatten().cumsum(0) - 1).clamp_min(0).view(occupied.shape)
    return x[place] * occupied[..., None, None]


@functools.cache
def flash_works(dtype: torch.dtype, width: int) -> bool:
    """Whether the GPU's kernel for unequal lengths is there and agrees with padding; asked once."""
    state = torch.cuda.get_rng_state()  # asking must not change a training's random numbers
    generator = torch.Generator("cuda").manual_seed(0)
    starts = torch.tensor([0, 5, 6, 140], dtype=torch.int32, device="cuda")
    line = Line(starts, torch.zeros(0), 134)
    try:
        for first in (False, True):
            joint = torch.randn((140, 3, 2, width), device="cuda", generator=generator).to(dtype)
            q, k, v = joint.unbind(1)  # not contiguous, as in a net
            inputs = [q[:3] if first else q, k, v]
            gradients = []
            for attention in (_flash, _padded):
                leaves = [x.detach().requires_grad_() for x in inputs]
                out = attention(*leaves, line, 0.0, first)
                out.float().square().sum().backward()
                gradients.append([out.detach(), *(x.grad for x in leaves)])
            if not all(
                torch.allclose(a.float(), b.float(), atol=0.05, rtol=0.05)
                for a, b in zip(*gradients, strict=True)
            ):
                return False
            _flash(*leaves, line, 0.2, first).float().sum().backward()
        torch.cuda.synchronize()
    except (RuntimeError, TypeError, AttributeError, NotImplementedError):
        return False
    finally:
        torch.cuda.set_rng_state(state)
    return True
