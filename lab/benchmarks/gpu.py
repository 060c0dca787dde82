"""Training on whatever device JAX finds: many runs at once, arrays in to arrays out.

Run by hand: python lab/benchmarks/gpu.py [runs …]. The first table is the best of three calls after one that
compiles; the second times the compiled loop alone: as one kernel, and in the layouts of the general loop.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

import jax
import numpy as np

import attsvm as att
from attsvm.training import devices, engine
from attsvm.training.data import with_scores
from attsvm.training.plan import Model, Plan

STEPS, LR = 2_000, 0.1
PATIENCE = 60
"""Seconds after which a row is given up."""


def problem(runs: int, dtype: type) -> tuple[att.Tokens, np.ndarray]:
    """sphere(6, 8, 10) with different seeds, repeated beyond 1,000."""
    tokens, v = att.datasets.sphere(6, 8, 10, seed=range(min(runs, 1_000)))
    repeat = runs // tokens.keys.shape[0]
    repeated = (np.repeat(a, repeat, axis=0) for a in (tokens.keys, tokens.queries, tokens.labels))
    return att.Tokens(*repeated, dtype=dtype), np.repeat(v, repeat, axis=0)


def seconds(function, repeats: int = 3) -> tuple[float, float]:
    """The first call, and the best of the next ones."""
    times = []
    for _ in range(1 + repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return times[0], min(times[1:])


def whole_training(runs: int, dtype: type) -> None:
    tokens, v = problem(runs, dtype)
    last = []

    def go() -> None:
        rule = att.steepest(att.frobenius, LR)
        last[:] = [att.train(tokens, att.Linear(v), optimizer=rule, steps=STEPS, record=[STEPS])]

    first, best = seconds(go)
    size = np.median(last[0].norm()[:, -1])
    name = np.dtype(dtype).name
    print(
        f"| {runs:,} | {name} | {first:.2f} s | {best:.4f} s | {runs * STEPS / best:.3g} | {size:.6f} |",
        flush=True,
    )


def loop_alone(runs: int, dtype: type) -> None:
    """The compiled steps without transfers and records."""
    tokens, v = problem(runs, dtype)
    rule = att.steepest(att.frobenius, LR).rule
    layouts = {"one kernel": (False, True), "runs last": (True, False), "runs first": (False, False)}
    for name, (lanes, fused) in layouts.items():
        with jax.enable_x64(True):
            on_cpu = jax.default_backend() == "cpu"
            model = Model(
                att.FullWeight(), att.logistic, True, True, runs_last=lanes, cpu=on_cpu, fused=fused
            )
            plan = Plan(model, rule, None)
            start = {"W": np.zeros((runs, 10, 10), dtype)}
            start = start, att.Linear(v.astype(dtype)), None
            data, scores = with_scores(tokens, start[1], False)
            share = devices.sharing(model, data, start, runs)
            (chunk,) = devices.chunks_of(share, plan, data, scores, start)
            lengths = np.zeros(64, np.int64)
            lengths[0] = STEPS
            arguments = (plan, chunk.data, chunk.scores, chunk.state, lengths, 1)
            begin = time.perf_counter()
            compiled = engine.advance.of(*arguments).lower(*arguments).compile()
            compiling = time.perf_counter() - begin
            best, end = (
                seconds(lambda c=compiled, g=arguments: jax.block_until_ready(c(*g)))[1],
                compiled(*arguments),
            )
        size = np.median(np.linalg.norm(end[0].params["W"], axis=(1, 2)))
        print(
            f"| {runs:,} | {np.dtype(dtype).name} | {name} | {compiling:.2f} s | {best:.4f} s | {size:.6f} |",
            flush=True,
        )


def patiently(row: Callable[[int, type], None], runs: int, dtype: type) -> None:
    """One row of a table, or why there is none."""

    def late(*_: object) -> None:
        raise TimeoutError(f"more than {PATIENCE} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        row(runs, dtype)
    except Exception as error:
        print(
            f"| {runs:,} | {np.dtype(dtype).name} | {type(error).__name__}: {str(error)[:200]} |", flush=True
        )
    finally:
        signal.alarm(0)


def main(sizes: list[int]) -> None:
    print(jax.devices(), "jax", jax.__version__)
    print("\n2,000 steps of normalised GD on sphere(6, 8, 10), arrays in to arrays out\n")
    print("| runs | dtype | first call | next | run-steps per second | median norm |")
    print("|---|---|---|---|---|---|", flush=True)
    for runs in sizes:
        for dtype in (np.float64, np.float32):
            patiently(whole_training, runs, dtype)
    print("\nThe loop alone\n")
    print("| runs | dtype | loop | compiled in | seconds | median norm |")
    print("|---|---|---|---|---|---|", flush=True)
    for runs in sizes:
        for dtype in (np.float64, np.float32):
            patiently(loop_alone, runs, dtype)


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or [100, 10_000, 100_000])
