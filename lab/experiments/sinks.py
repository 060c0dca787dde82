"""The single layer of "Attention Sinks Are Provably Necessary": softmax and ReLU heads on the trigger's task.

    python lab/experiments/sinks.py                       # three seeds of both kinds, some minutes on a CPU

All four matrices are trained, by Adam on fresh batches, as published. Writes the record `sinks`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from summary import RECORDS, here, write

T, D, BATCH, LR, BETAS, START = 16, 16, 128, 1e-3, (0.9, 0.95), 0.02
TRIGGER, TESTS, ENOUGH = 8, 1_000, 5e-3
"""Where the trigger of a test sequence stands, counted from 1; how many; the error that ends a run."""


class Layer(nn.Module):
    """Σ_j a_ij W_O W_V x_j with a = softmax or relu/(i − 1) of x_iᵀ W_Qᵀ W_K x_j, causal, without 1/√d."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.Q, self.K, self.V, self.O = (nn.Parameter(START * torch.randn(D, D)) for _ in range(4))

    def attention(self, x: Tensor) -> Tensor:
        logits = (x @ self.Q.T) @ (x @ self.K.T).transpose(1, 2)
        later = torch.ones(T, T).triu(1).bool()
        if self.kind == "softmax":
            return logits.masked_fill(later, -torch.inf).softmax(-1)
        return logits.masked_fill(later, 0).relu() / torch.arange(T).clamp_min(1)[:, None]

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x) @ x @ (self.O @ self.V).T


def batch(count: int, place: int | None, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences and targets (count, T, D); place: of the trigger, counted from 1, or drawn."""
    x = torch.zeros(count, T, D)
    x[:, 0, 0] = 1
    x[:, 1:, 2:-1] = 2 * torch.rand(count, T - 1, D - 3, generator=draws) - 1
    x[:, 1:, -1] = 1
    at = torch.randint(2, T, (count,), generator=draws) if place is None else torch.full((count,), place - 1)
    every = torch.arange(count)
    x[every, at, 1], x[every, at, -1] = 1, 0
    y = torch.zeros_like(x)
    y[every, at] = x[:, 1:].cumsum(1)[every, at - 1] / at[:, None]
    return x, y


def trained(kind: str, seed: int, steps: int) -> tuple[Layer, int, float]:
    """The layer, its steps, and its largest error on the last batch."""
    torch.manual_seed(seed)
    layer, draws = Layer(kind), torch.Generator().manual_seed(1_000 + seed)
    rule = torch.optim.Adam(layer.parameters(), lr=LR, betas=BETAS)
    step, worst = 0, torch.inf
    while step < steps and worst >= ENOUGH:
        step += 1
        x, y = batch(BATCH, None, draws)
        error = layer(x) - y
        rule.zero_grad()
        error.square().mean().backward()
        rule.step()
        worst = error.detach().abs().max().item()
    return layer, step, worst


@torch.no_grad()
def seen(layer: Layer, steps: int, worst: float) -> dict[str, Any]:
    """What the figure shows of a trained layer, on test sequences that no training draws."""
    x, y = batch(TESTS, TRIGGER, torch.Generator().manual_seed(7))
    attention = layer.attention(x)
    quiet = [i for i in range(1, T) if i != TRIGGER - 1]
    bos = attention[:, quiet, 0]
    return {
        "steps": steps,
        "largest error, last batch": round(worst, 5),
        "root mean squared error": round((layer(x) - y).square().mean().sqrt().item(), 6),
        "least BOS": round(bos.min().item(), 5),
        "mean BOS": round(bos.mean().item(), 5),
        "mean BOS at the trigger": round(attention[:, TRIGGER - 1, 0].mean().item(), 6),
        "attention": [[round(v, 4) for v in row] for row in attention.mean(0).tolist()],
        "W": [[round(v, 4) for v in row] for row in (layer.K.T @ layer.Q).tolist()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--out", type=Path, default=RECORDS)
    options = parser.parse_args()
    runs: dict[str, list[dict[str, Any]]] = {"softmax": [], "relu": []}
    for kind, record in runs.items():
        for seed in range(options.seeds):
            record.append(seen(*trained(kind, seed, options.steps)))
            print(
                kind, seed, {k: v for k, v in record[-1].items() if k not in ("attention", "W")}, flush=True
            )
    origin = here() | {"command": "python lab/experiments/sinks.py"}
    origin["versions"] |= {"torch": torch.__version__}
    write(options.out / "sinks.json", {"made": origin, "runs": runs})


if __name__ == "__main__":
    main()
