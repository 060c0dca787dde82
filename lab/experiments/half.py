"""How far bfloat16 moves a gradient, beside what another batch or another dropout does:

    python lab/experiments/half.py DATA [--size 3] [--texts 20]

At the initial weights of seed 0, on one batch of reviews, on a CPU: ‖g − g₀‖ / ‖g₀‖ of the whole gradient and
by kind of weight, g₀ in float32 without dropout.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data import reviews
from tasks import Sentiment

KINDS = {"queries and keys": ("query", "key"), "values": ("value", "out"), "embeddings": ("words", "places")}


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--size", type=int, default=3)
    parser.add_argument("--texts", type=int, default=20)
    options = parser.parse_args(arguments)
    differences = compared(Sentiment(reviews(options.data), options.size, "cpu", batch=options.texts))
    for change, by_kind in differences.items():
        print(f"{change}: {', '.join(f'{kind} {x:.2g}' for kind, x in by_kind.items())}")
    return differences


def compared(task: Any) -> dict[str, dict[str, float]]:
    """The relative differences, by what was changed and by kind of weight."""
    torch.manual_seed(0)
    model = task.make()
    batches = task.batches(0, 1)
    first, second = next(batches), next(batches)
    plain = gradient(task, model, first, torch.float32, False)
    gradients = {
        "bfloat16": gradient(task, model, first, torch.bfloat16, False),
        "another batch": gradient(task, model, second, torch.float32, False),
        "dropout": gradient(task, model, first, torch.float32, True),
    }
    kinds = {"all": ("",)} | KINDS
    return {
        change: {kind: relative_distance(gradient_of, plain, names) for kind, names in kinds.items()}
        for change, gradient_of in gradients.items()
    }


def gradient(task: Any, model: Any, batch: Any, dtype: torch.dtype, dropout: bool) -> dict[str, Tensor]:
    model.dtype = dtype
    model.train(dropout)  # it has no other layers that know the difference
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(task.loss(model, batch)[0], weights), strict=True))


def relative_distance(a: dict[str, Tensor], b: dict[str, Tensor], names: tuple[str, ...]) -> float:
    matching = [name for name in b if any(fragment in name for fragment in names)]
    ours, right = (torch.cat([g[name].flatten() for name in matching]) for g in (a, b))
    return float((ours - right).norm() / right.norm())


if __name__ == "__main__":
    main()
