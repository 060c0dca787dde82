"""What measuring costs while a model trains or serves: statistics of attention, a monitor, probes.

Run by hand: python benchmarks/in_the_loop.py [statistics] [monitor] [watch] [--small]. On a GPU where there
is one. Every figure is a ratio of medians taken in turn.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, scaled_dot_product_attention

from attsvm.torch import MarginMonitor, attention_statistics, watch
from attsvm.torch.probe import Probe

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = "--small" in sys.argv
ROUNDS = 5 if DEVICE == "cuda" else 3


def seconds(work: Callable[[], Any]) -> float:
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def in_turn(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each; the first round compiles."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, work in works.items():
            took = seconds(work)
            if turn:
                times[name].append(took)
    return {name: statistics.median(some) for name, some in times.items()}


def attention() -> None:
    """Beside flash attention's forward pass, in time, and in memory beyond the inputs."""
    print("| queries and keys | type | causal | statistics, ms | attention, ms | ratio | memory, MB |")
    print("|---|---|---|---|---|---|---|")
    long = (
        [(32, 131_072), (32, 16_384), (8, 4_096)]
        if DEVICE == "cuda" and not SMALL
        else [(8, 2_048), (8, 512)]
    )
    for heads, length in long:
        for dtype in (torch.bfloat16, torch.float16) if DEVICE == "cuda" else (torch.float32,):
            q, k, v = (torch.randn(1, heads, length, 128, device=DEVICE, dtype=dtype) for _ in range(3))
            for causal in (True, False):
                works = {
                    "statistics": lambda q=q, k=k, c=causal: attention_statistics(q, k, causal=c),
                    "attention": lambda q=q, k=k, v=v, c=causal: scaled_dot_product_attention(
                        q, k, v, is_causal=c
                    ),
                }
                took = in_turn(works, 3)
                about = f"{heads} × {length:,} × 128 | {str(dtype)[6:]} | {causal}"
                ours, theirs = 1e3 * took["statistics"], 1e3 * took["attention"]
                room = _memory(works["statistics"])
                print(f"| {about} | {ours:.3g} | {theirs:.3g} | {ours / theirs:.2f} | {room:.0f} |")


def _memory(work: Callable[[], Any]) -> float:
    if DEVICE != "cuda":
        return float("nan")
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def monitor() -> None:
    """Training the experiments' encoder of size 6 with a record every 50 steps, beside the same without."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
    from models import SentimentEncoder

    texts, length, sizes = (
        (100, 256, {})
        if DEVICE == "cuda" and not SMALL
        else (8, 32, {"width": 96, "hidden": 96, "vocabulary": 3_000})
    )
    torch.manual_seed(0)
    model = SentimentEncoder(6, **sizes).to(DEVICE)
    ids, labels = torch.randint(3, 3_000, (texts, length), device=DEVICE), torch.rand(texts, device=DEVICE)
    mask = torch.arange(length, device=DEVICE) < torch.randint(length // 2, length, (texts, 1), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)

    def steps(record: bool) -> None:
        with MarginMonitor(model) if record else torch.enable_grad() as watching:
            for step in range(50):
                optimizer.zero_grad()
                binary_cross_entropy_with_logits(model.padded(ids, mask), labels).backward()
                if record and step == 0:
                    watching.record(step)
                optimizer.step()

    took = in_turn({"plain": lambda: steps(False), "monitored": lambda: steps(True)}, ROUNDS)
    more = took["monitored"] / took["plain"] - 1
    print(f"training, {1e3 * took['plain'] / 50:.2f} ms a step; monitor every 50 steps: {more:+.2%}")


def decoder() -> tuple[Any, Any, list[Probe]]:
    """A random decoder, prompts, and ten probes of its width."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = (2_048, 16, 5_632) if DEVICE == "cuda" and not SMALL else (256, 8, 512)
    shape = dict(zip(("hidden_size", "num_hidden_layers", "intermediate_size"), sizes, strict=True))
    torch.manual_seed(0)
    config = LlamaConfig(**shape, num_attention_heads=16, num_key_value_heads=8, vocab_size=32_000)
    kind = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config).to(kind).eval()
    rng, d = np.random.default_rng(0), sizes[0]
    shapes = (d, 1), (d, 1, 1), (1,), (d,)
    probes = [Probe(*(0.01 * rng.standard_normal(shape) for shape in shapes)) for _ in range(10)]
    return model, torch.randint(3, 30_000, (8, 64), device=DEVICE), probes


def generation() -> None:
    """A decoding step with no, one and ten probes; making the watch is not timed, asking it is."""
    model, prompt, probes = decoder()

    def tokens(**how: Any) -> None:
        model.generate(prompt, max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0, **how)

    ways: dict[str, tuple[dict[Any, Any], int]] = {"none": ({}, 0), "one": ({8: probes[0]}, 0)}
    ways["ten on one layer"] = {8: dict(enumerate(probes))}, 0
    pairs = {k + 1: {"a": probes[2 * k], "b": probes[2 * k + 1]} for k in range(5)}
    ways["ten on five layers"] = pairs, 0
    ways["one, a threshold every 16 tokens"] = {8: probes[0]}, 16
    ways["one, a threshold every token"] = {8: probes[0]}, 1
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS + 1):
        for name, (given, every) in ways.items():
            if not given:
                took = seconds(tokens)
            else:
                with watch(model, given) as watching:
                    how = {"stopping_criteria": watching.stop_at(float("inf"), every=every)} if every else {}
                    took = seconds(lambda how=how, watching=watching: (tokens(**how), watching.scores))
            times[name] += [took] if turn else []
    took = {name: statistics.median(some) for name, some in times.items()}
    count = sum(w.numel() for w in model.parameters())
    print(f"decoding, {count / 1e9:.2f} billion parameters, batch 8: {1e3 * took['none'] / 64:.2f} ms a step")
    for name in list(ways)[1:]:
        print(f"  {name}: {took[name] / took['none'] - 1:+.2%}")


if __name__ == "__main__":
    chosen = [word for word in sys.argv[1:] if not word.startswith("-")] or ["statistics", "monitor", "watch"]
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if DEVICE == 'cuda' else 'CPU'}")
    for name, run in {"statistics": attention, "monitor": monitor, "watch": generation}.items():
        if name in chosen:
            run()
