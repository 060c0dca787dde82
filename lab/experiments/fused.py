"""Blocks and optimizers as a few compiled kernels, where a GPU and Triton are there; the same formulas."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from models import after_text

PICTURES = {"triton.mix_order_reduction": False}
"""With rows and columns of norms summed in one kernel the ViT takes 5.40 ms a step on an H200, else 4.80."""


def fuse(model: nn.Module) -> None:
    """Compile what its blocks do, once for all of them, for half precision; looks stay as they are."""
    for block in model.blocks:
        block.way = _fused(block.way)


@functools.cache
def _fused(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # Lengths of texts differ from batch to batch; pictures come in one shape for training, one for tests.
    from torch._inductor import list_options

    texts, known_options = plain is after_text, list_options()
    options = {name: value for name, value in PICTURES.items() if name in known_options and not texts}
    fast = torch.compile(plain, dynamic=texts, options=options)
    return lambda x, *arguments: (fast if x.dtype == torch.bfloat16 else plain)(x, *arguments)


@functools.cache
def fusing_works() -> bool:
    """Whether compiled kernels can be made here and agree with the plain formulas; asked once."""
    state = torch.cuda.get_rng_state()  # asking must not change a training's random numbers
    try:
        generator = torch.Generator("cuda").manual_seed(0)
        sizes = [(3000, 384), (3000, 384), (384, 384), (384,), (1536, 384), (384, 1536), (384,)]
        inputs: list[Any] = [
            torch.randn(size, device="cuda", generator=generator) / size[-1] ** 0.5 for size in sizes
        ]
        gradients = []
        for attention in (after_text, _fused(after_text)):
            leaves = [
                x.to(torch.bfloat16 if k < 2 else x.dtype).requires_grad_() for k, x in enumerate(inputs)
            ]
            out = attention(*leaves, 0.0)
            gradients.append(
                [out.detach(), *torch.autograd.grad(out.float().square().mul(out.float()).sum(), leaves)]
            )
        return all(_near(a.float(), b.float()) for a, b in zip(*gradients, strict=True))
    except Exception as error:  # no compiler, no Triton: whatever it is, the plain way works
        print(f"not fused: {type(error).__name__}: {str(error)[:200]}", file=sys.stderr)
        return False
    finally:
        torch.cuda.set_rng_state(state)


def _near(a: Tensor, b: Tensor) -> bool:
    """Up to the rounding of half precision."""
    return bool((a - b).norm() <= 0.02 * b.norm())
