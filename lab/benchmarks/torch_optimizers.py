"""Step times of the torch optimizers on a model of 100 tensors, beside torch's own.

Run by hand: python lab/benchmarks/torch_optimizers.py [cuda]. CPU seconds of one process (on a GPU: wall time
between synchronisations), one thread, the median over rounds that take all optimizers in turn.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import attsvm as att
from attsvm.torch import AttentionPooling, LpMirrorDescent, SteepestDescent, pool
from measure import device_clock, in_turn

ROUNDS, LR = 15, 1e-4


def tensors(device: str, width: int) -> list[torch.nn.Parameter]:
    """Fifty square matrices and fifty vectors with gradients."""
    torch.manual_seed(0)
    shapes = [(width, width), (width,)] * 50
    params = [torch.nn.Parameter(torch.randn(shape, device=device) / width) for shape in shapes]
    for w in params:
        w.grad = torch.randn_like(w)
    return params


def cases() -> dict[str, Callable[[Any], torch.optim.Optimizer]]:
    """Every optimizer by name; the first is what the ratios are relative to."""
    out: dict[str, Callable[[Any], torch.optim.Optimizer]] = {}
    for variant, foreach in (("plain", False), ("foreach", True), ("default", None)):
        options = {"lr": LR, "foreach": foreach}
        out[f"torch SGD, {variant}"] = lambda q, o=options: torch.optim.SGD(q, **o)
        for p in (2, 1.1, 3):
            out[f"LpMirrorDescent p = {p}, {variant}"] = lambda q, p=p, o=options: LpMirrorDescent(
                q, p=p, **o
            )
        for norm in (att.frobenius, att.linf, att.Entrywise(3)):
            name = f"SteepestDescent {norm}, {variant}"
            out[name] = lambda q, norm=norm, o=options: SteepestDescent(q, norm=norm, **o)
    out["torch Adam, foreach"] = lambda q: torch.optim.Adam(q, LR, foreach=True)
    return out


def matrix_cases() -> dict[str, Callable[[Any], torch.optim.Optimizer]]:
    """The spectral geometry, on matrices only: Muon takes nothing else."""
    matrices = lambda q: [w for w in q if w.ndim == 2]  # noqa: E731
    return {
        "torch Muon (5 Newton–Schulz steps)": lambda q: torch.optim.Muon(matrices(q), LR),
        "SteepestDescent spectral (Newton–Schulz, momentum)": lambda q: SteepestDescent(
            matrices(q),
            LR,
            att.spectral,
            polar="newton-schulz",
            momentum=0.95,
            nesterov=True,
            weight_decay=0.1,
        ),
        "SteepestDescent Schatten 4 (Newton)": lambda q: SteepestDescent(
            matrices(q), LR, att.Schatten(4), polar="newton-schulz"
        ),
        "SteepestDescent spectral (SVD)": lambda q: SteepestDescent(matrices(q), LR, att.spectral),
        "SteepestDescent nuclear (SVD)": lambda q: SteepestDescent(matrices(q), LR, att.nuclear),
    }


def table(title: str, works: dict[str, Callable[[], Any]], device: str, rounds: int = ROUNDS) -> None:
    """Median seconds of each; the round before makes the states."""
    times = in_turn(works, rounds, time.process_time if device == "cpu" else device_clock)
    first = statistics.median(next(iter(times.values())))
    print(f"\n| {title} | ms | ratio |\n|---|---|---|")
    for name, seconds in times.items():
        value = statistics.median(seconds)
        print(f"| {name} | {1e3 * value:.3g} | {value / first:.2f} |")


def optimizers(device: str) -> None:
    for width in (16, 256):
        steps = {name: make(tensors(device, width)).step for name, make in cases().items()}
        table(f"one step, 50 matrices {width} × {width} and 50 vectors", steps, device)
    steps = {name: make(tensors(device, 128)).step for name, make in matrix_cases().items()}
    table("one step, 50 matrices 128 × 128", steps, device, 3)


def pooling(device: str, n: int = 64, T: int = 128, d: int = 256) -> None:
    """Forward and backward of pooling, beside the textbook softmax."""
    torch.manual_seed(0)
    tokens, module = torch.randn(n, T, d, device=device), AttentionPooling(d, heads=4).to(device)
    reads = {
        "softmax": lambda a: (torch.softmax(a, -1)[..., None, :] @ tokens[:, None])[..., 0, :],
        "pool": lambda a: pool(a, tokens[:, None]),
        "pool, scale_free": lambda a: pool(a, tokens[:, None], scale_free=True),
    }
    both = {
        name: lambda read=read: read(module.logits(tokens)).sum().backward() for name, read in reads.items()
    }
    table(f"forward and backward, tokens ({n}, {T}, {d}), 4 heads", both, device)


if __name__ == "__main__":
    torch.set_num_threads(1)
    where = sys.argv[1] if sys.argv[1:] else "cpu"
    print(f"torch {torch.__version__}, {where}")
    optimizers(where)
    pooling(where)
