"""What measuring costs while a model trains or serves: statistics of attention, a monitor, probes.

python lab/benchmarks/in_the_loop.py [statistics] [monitor] [watch] [--small]. On a GPU where there
is one. Every figure is of medians taken in turn; those of `watch` are also written to $OUT/watch.json.
"""

from __future__ import annotations

import copy
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, scaled_dot_product_attention

from attsvm.torch import MarginMonitor, attention_statistics, watch
from attsvm.torch.probe import Probe
from attsvm_lab.figures.ours.head_ranks import bootstrap
from measure import device_clock, in_turn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = "--small" in sys.argv
ROUNDS = 5 if DEVICE == "cuda" else 3
NAME = torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU"
TOKENS, LIMIT = 24, 60.0
"""Of a generation, and the seconds for all of them."""


clock = device_clock if DEVICE == "cuda" else time.perf_counter


def medians(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median seconds of each, in turn."""
    return {name: statistics.median(times) for name, times in in_turn(works, rounds, clock).items()}


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
                took = medians(works, 3)
                about = f"{heads} × {length:,} × 128 | {str(dtype)[6:]} | {causal}"
                ours, theirs = 1e3 * took["statistics"], 1e3 * took["attention"]
                room = _memory(works["statistics"])
                print(f"| {about} | {ours:.3g} | {theirs:.3g} | {ours / theirs:.2f} | {room:.0f} |")


def _memory(work: Callable[[], Any]) -> float:
    if DEVICE != "cuda":
        return float("nan")
    torch.cuda.reset_peak_memory_stats()
    allocated = torch.cuda.memory_allocated()
    work()
    return (torch.cuda.max_memory_allocated() - allocated) / 1e6


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

    took = medians({"plain": lambda: steps(False), "monitored": lambda: steps(True)}, ROUNDS)
    overhead = took["monitored"] / took["plain"] - 1
    print(f"training, {1e3 * took['plain'] / 50:.2f} ms a step; monitor every 50 steps: {overhead:+.2%}")


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
    return model, torch.randint(3, 30_000, (8, 64), device=DEVICE), random_probes(sizes[0])


def random_probes(d: int) -> list[Probe]:
    rng, shapes = np.random.default_rng(0), ((d, 1), (d, 1, 1), (1,), (d,))
    return [Probe(*(0.01 * rng.standard_normal(shape) for shape in shapes)) for _ in range(10)]


def watches_to_compare(probes: list[Probe]) -> dict[str, tuple[dict[Any, Any], int]]:
    """What is watched, and after how many tokens a threshold is looked at (0: never)."""
    pairs = {k + 1: {"a": probes[2 * k], "b": probes[2 * k + 1]} for k in range(5)}
    return {
        "none": ({}, 0),
        "one": ({8: probes[0]}, 0),
        "ten on one layer": ({8: dict(enumerate(probes))}, 0),
        "ten on five layers": (pairs, 0),
        "one, a threshold every 16 tokens": ({8: probes[0]}, 16),
        "one, a threshold every token": ({8: probes[0]}, 1),
        "ten on five layers, a threshold every token": (pairs, 1),
    }


def steps(model: Any, prompt: Any, criterion: Callable[..., Any] | None) -> Iterator[None]:
    """A prompt, then one token after the other, the likeliest; told is asked after each, as in generate."""
    inputs, cache = prompt, None
    while True:
        out = model(inputs, past_key_values=cache, use_cache=True)
        cache, inputs = out.past_key_values, out.logits[:, -1:].argmax(-1)
        _ = criterion and criterion(inputs, None)
        yield


def seconds_beside(
    model: Any, twin: Any, prompt: Any, probes_of: dict[Any, Any], every: int
) -> list[list[float]]:
    """Seconds of a watched model's steps and of its twin's, which take turns: both see the same machine."""
    with ExitStack() as stack:
        criterion = None
        if probes_of:
            watching = stack.enter_context(watch(model, probes_of))
            criterion = watching.stop_at(float("inf"), every=every)[0] if every else None
        sides = [steps(model, prompt, criterion), steps(twin, prompt, None)]
        stack.enter_context(torch.no_grad())
        for _ in range(3):  # the prompt, and the first tokens
            _ = [next(side) for side in sides]
        times: list[list[float]] = [[], []]
        gc.collect()
        gc.disable()
        stack.callback(gc.enable)
        for turn in range(TOKENS):
            for k in (0, 1) if turn % 2 else (1, 0):
                begin = clock()
                next(sides[k])
                times[k].append(clock() - begin)
    return times


class Through(torch.nn.Module):
    def forward(self, states: Any) -> Any:
        return states


class Empty(torch.nn.Module):
    """A decoder whose blocks do nothing, so that what takes time is the watch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.norm = torch.nn.ModuleList(Through() for _ in range(8)), torch.nn.Identity()

    def forward(self, input_ids: Any, past_key_values: Any, states: Any) -> Any:
        for block in self.layers:
            states = block(states)
        past_key_values.length += states.shape[1]
        return self.norm(states)


class Length:
    length = 0

    def get_seq_length(self) -> int:
        return self.length


def watch_alone(width: int = 2_048, n: int = 8) -> dict[str, list[float]]:
    """Microseconds of the processor that a watch takes per token, and for prompt and asking together.

    The least of many rounds, which a busy machine hardly changes. On a GPU it is the time to launch.
    """
    kind = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    prompt, token = (torch.randn(n, t, width, device=DEVICE, dtype=kind) for t in (64, 1))
    states, ids = (torch.zeros((n, t), dtype=torch.long, device=DEVICE) for t in (64, 1))

    def seconds_once(probes_of: dict[Any, Any], every: int) -> tuple[float, float]:
        model, past = Empty(), Length()
        watching = watch(model, probes_of) if probes_of else None
        criterion = watching.stop_at(float("inf"), every=every)[0] if watching and every else lambda *_: None
        begin = time.thread_time()
        model(states, past_key_values=past, states=prompt), criterion(ids, None)
        model(ids, past_key_values=past, states=token), criterion(ids, None)
        middle = time.thread_time()
        for _ in range(TOKENS - 2):
            model(ids, past_key_values=past, states=token), criterion(ids, None)
        last = time.thread_time()
        _ = watching and watching.scores
        return (last - middle) / (TOKENS - 2), time.thread_time() - last + middle - begin

    times: dict[str, list[float]] = {}
    with torch.no_grad():
        for name, way in watches_to_compare(random_probes(width)).items():
            rounds = [seconds_once(*way) for _ in range(20)]
            times[name] = [1e6 * min(x) for x in zip(*rounds, strict=True)]
    plain = times.pop("none")
    return {name: [x - y for x, y in zip(took, plain, strict=True)] for name, took in times.items()}


def middle(turns: list[list[list[float]]]) -> list[float]:
    """Microseconds more of neighbouring steps: the mean of the turns' medians, and their bootstrap's 95 %."""
    interval: list[float] = bootstrap(
        np.array([1e6 * np.median(np.subtract(*sides)) for sides in turns])
    ).tolist()
    return interval


def generation() -> None:
    """A decoding step with no, one and ten probes beside the same without; also as JSON in $OUT."""
    model, prompt, probes = decoder()
    twin = copy.deepcopy(model, {id(weight): weight for weight in model.parameters()})  # the same weights
    variants, begin, turns = watches_to_compare(probes), time.perf_counter(), 0
    times: dict[str, list[list[list[float]]]] = {name: [] for name in variants}
    while turns < 3 or time.perf_counter() - begin < LIMIT:
        for name, variant in variants.items():
            took = seconds_beside(*((model, twin) if turns % 2 else (twin, model)), prompt, *variant)
            times[name] += [took] if turns else []  # the first turn loads kernels
        turns += 1
    count = sum(w.numel() for w in model.parameters())
    plain = statistics.median(x for pairs in times.values() for _, plain_times in pairs for x in plain_times)
    about = f"{count / 1e9:.2f} billion parameters, batch {len(prompt)}, {TOKENS} tokens, {turns - 1} turns"
    print(f"decoding, {about}: {1e3 * plain:.2f} ms a step. More, of neighbouring steps, [95 % interval]:")
    medians = {name: middle(pairs) for name, pairs in times.items()}
    for name, overhead in medians.items():
        share = np.divide(overhead, 1e4 * plain)
        texts = [
            "{:+.{n}f} [{:+.{n}f}, {:+.{n}f}] {what}".format(*x, n=n, what=unit)
            for x, n, unit in ((overhead, 0, "µs"), (share, 2, "%"))
        ]
        print(f"  {name}: " + ", ".join(texts))
    print("the watch alone, microseconds of the processor per token, and for prompt and asking together:")
    by_itself = watch_alone()
    for name, (token, once) in by_itself.items():
        print(f"  {name}: {token:.0f}, {once:.0f}")
    record = {
        "alone": by_itself,
        "about": about,
        "torch": torch.__version__,
        "device": NAME,
        "seconds a step": plain,
        "microseconds more": medians,
    }
    if "OUT" in os.environ:
        Path(os.environ["OUT"], "watch.json").write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    names = [argument for argument in sys.argv[1:] if not argument.startswith("-")] or [
        "statistics",
        "monitor",
        "watch",
    ]
    print(f"torch {torch.__version__}, {NAME}")
    for name, run in {"statistics": attention, "monitor": monitor, "watch": generation}.items():
        if name in names:
            run()
