"""Seconds of an epoch of the trainings of experiments/, plain and fused, on one GPU:

    python benchmarks/epochs.py out/data [--profile]

Alternates between the two ways. Without dropout both must give the same losses up to half precision.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
from data import Images, reviews
from fused import fuse, fusing_works
from optimizers import optimizer
from tasks import Sentiment, Vision

CASES = ((3, "mirror:1.1", 50), (6, "mirror:1.1", 40), (3, "mirror:3", 50))
"""Size, optimizer, steps that are timed."""
SAME = 0.02
"""Half precision: relative differences of the first losses without dropout."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--profile", action="store_true", help="the longest kernels of ten steps")
    given = parser.parse_args()
    halves, start = reviews(given.data), time.time()
    print(f"fusing works: {fusing_works()}, {time.time() - start:.0f} s", flush=True)
    for k, (size, rule, steps) in enumerate(CASES):
        task = Sentiment(halves, size, "cuda")
        compared(task, f"size {size}, {rule}", rule, steps, 250, given.profile and k == 0)
        if k == 0:
            same(Sentiment(halves, 3, "cuda", dropout=0.0))
    pixels = torch.randint(0, 256, (5000, 3, 32, 32), dtype=torch.uint8)
    pictures = Images(pixels, torch.randint(0, 10, (5000,)))
    compared(Vision((pictures, pictures), "cuda"), "ViT, mirror:1.1", "mirror:1.1", 30, 500, given.profile)


def compared(task: Any, name: str, rule: str, steps: int, epoch: int, profile: bool) -> None:
    """Seconds of an epoch, each way twice, and of a test pass."""
    ways = {way: made(task, rule, way == "fused") for way in ("plain", "fused")}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for k in range(3):
        for way, (model, step) in ways.items():
            took = epoch / steps * timed(lambda m=model, s=step: list(walk(task, m, s, steps)))
            seconds[way] += [took] if k else []
    words = {way: "/".join(f"{x:.2f}" for x in found) for way, found in seconds.items()}
    test = {way: f"{timed(lambda m=model: tested(task, m)):.2f}" for way, (model, _) in ways.items()}
    gain = min(seconds["plain"]) / min(seconds["fused"])
    print(f"{name}: epoch {words}, {gain:.2f} times; test {test}", flush=True)
    if profile:
        for way, (model, step) in ways.items():
            print(
                f"  {way}:",
                *kernels(lambda m=model, s=step: list(walk(task, m, s, 10))),
                sep="\n    ",
                flush=True,
            )


def made(task: Any, rule: str, fused: bool) -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = task.make().cuda()
    model.dtype = torch.bfloat16
    if fused:
        fuse(model)
    return model, optimizer(rule, model, task.step(rule), fused)


def walk(task: Any, model: Any, rule: Any, steps: int) -> Any:
    model.train()
    for _, (loss, _, size) in zip(range(steps), task.losses(model, 0, 1), strict=False):
        rule.zero_grad()
        loss.backward()
        rule.step()
        yield loss.detach() / size


@torch.no_grad()
def tested(task: Any, model: Any) -> None:
    model.eval()
    list(task.tested(model))


def timed(call: Any) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def same(task: Any) -> None:
    """The first losses both ways, without dropout."""
    for rule in ("mirror:1.1", "mirror:3"):
        found = [torch.stack(list(walk(task, *made(task, rule, way), 12))).cpu() for way in (False, True)]
        apart = ((found[0] - found[1]).abs() / found[0]).max()
        print(
            f"{rule}: losses {found[1][:4].tolist()}, apart by {apart:.1e}:",
            "same" if apart < SAME else "DIFFER",
        )


def kernels(call: Any) -> list[str]:
    """Milliseconds of the longest kernels, per ten steps."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda row: -row.self_device_time_total)
    total = sum(row.self_device_time_total for row in rows)
    lines = [
        f"{row.self_device_time_total / 1000:7.2f} ms {row.count:5d} {row.key[:90]}" for row in rows[:22]
    ]
    return [f"{total / 1000:.2f} ms in kernels", *lines]


if __name__ == "__main__":
    main()
