"""Seconds of an epoch of the trainings of experiments/, on one GPU, in three ways:

    python lab/benchmarks/epochs.py out/data

plain: PyTorch's own kernels, launched one by one; recorded: the same as CUDA graphs; fused: compiled kernels
as CUDA graphs, which is how run.py trains. The first losses must be the same up to half precision: with
dropout for the first two ways, which draw the same random numbers, and without it for all three.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
from data import Images, reviews
from fused import fuse, fusing_works
from optimizers import optimizer
from steps import Steps
from tasks import Sentiment, Vision
from training import FILL

CASES = ((3, "mirror:1.1", 40), (6, "mirror:1.1", 25), (3, "mirror:3", 40))
"""Size, optimizer, steps that are timed."""
WAYS = {"plain": (False, False), "recorded": (False, True), "fused": (True, True)}
"""Compiled kernels, CUDA graphs."""
SAME = 0.02
"""Half precision: relative differences of the first losses."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    options = parser.parse_args()
    halves, start = reviews(options.data), time.time()
    print(f"fusing works: {fusing_works()}, {time.time() - start:.0f} s", flush=True)
    for dropout, variants in ((0.2, ("plain", "recorded")), (0.0, tuple(WAYS))):
        check_equal(Sentiment(halves, 3, "cuda", dropout=dropout), "mirror:1.1", variants)
    for size, rule, steps in CASES:
        task = Sentiment(halves, size, "cuda")
        compared(task, f"size {size}, {rule}", rule, steps, 250)
    pixels = torch.randint(0, 256, (5000, 3, 32, 32), dtype=torch.uint8)
    pictures = Images(pixels, torch.randint(0, 10, (5000,)))
    compared(Vision((pictures, pictures), "cuda"), "ViT, mirror:1.1", "mirror:1.1", 25, 500)


def compared(task: Any, name: str, rule: str, steps: int, epoch: int) -> None:
    """Seconds of an epoch, each way twice, and of a test pass."""
    steps_of = {variant: steps_made(task, rule, variant) for variant in WAYS}
    seconds: dict[str, list[float]] = {variant: [] for variant in steps_of}
    task.fill = FILL
    batches = list(itertools.islice(task.batches(0, 1), steps))
    for k in range(4):
        for variant, made_steps in steps_of.items():
            took = epoch / steps * timed(lambda s=made_steps: s.epoch(batches))
            seconds[variant] += [took] if k > 1 else []  # first seen, then recorded, then timed
    texts = {variant: "/".join(f"{x:.2f}" for x in times) for variant, times in seconds.items()}
    test = {
        variant: f"{timed(lambda s=times: tested(task, s.model)):.2f}" for variant, times in steps_of.items()
    }
    gain = min(seconds["plain"]) / min(seconds["fused"])
    shapes = len(steps_of["fused"]._recorded)
    memory = torch.cuda.max_memory_allocated() / 1e9
    print(
        f"{name}: epoch {texts}, {gain:.2f} times; test {test}; {shapes} graphs, {memory:.1f} GB", flush=True
    )


def steps_made(task: Any, rule: str, variant: str) -> Steps:
    compiled, graphs = WAYS[variant]
    torch.manual_seed(0)
    model = task.make().cuda()
    model.dtype = torch.bfloat16
    if compiled:
        fuse(model)
    asks = rule == "mirror:1.1"  # whose plain step waits for an answer, which cannot be recorded
    return Steps(task, model, optimizer(rule, model, task.step(rule), compiled or (graphs and asks)), graphs)


@torch.no_grad()
def tested(task: Any, model: Any) -> None:
    model.eval()
    for batch in task.tests():
        task.loss(model, batch)


def check_equal(task: Any, rule: str, variants: tuple[str, ...]) -> None:
    """The losses of the first steps, each batch twice so that it is replayed."""
    task.fill, losses_of = FILL, {}
    batch = next(iter(task.batches(0, 1)))
    for variant in variants:
        steps = steps_made(task, rule, variant)
        torch.manual_seed(1)
        losses_of[variant] = torch.tensor([steps.epoch([batch])[0] for _ in range(8)])
    first = losses_of[variants[0]]
    distances = {
        variant: float(((losses - first).abs() / first).max()) for variant, losses in losses_of.items()
    }
    verdict = "same" if max(distances.values()) < SAME else "DIFFER"
    print(f"{rule}: losses {first.tolist()}, apart by {distances}: {verdict}", flush=True)


def timed(call: Any) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
