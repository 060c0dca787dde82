"""Training on whatever device JAX finds: many runs at once. Run by hand: python benchmarks/gpu.py"""

from __future__ import annotations

import time

import jax
import numpy as np

import attsvm as att

STEPS = 2_000


def main() -> None:
    """Print seconds for 2,000 steps of normalised GD on sphere(6, 8, 10), second call of each size."""
    print(jax.devices())
    for runs in (100, 1_000, 10_000, 100_000):
        tokens, v = att.datasets.sphere(6, 8, 10, seed=range(min(runs, 1_000)))
        repeat = runs // tokens.keys.shape[0]
        tokens = att.Tokens(*(np.repeat(a, repeat, axis=0) for a in (tokens.keys, tokens.queries, tokens.labels)))
        v = np.repeat(v, repeat, axis=0)
        for _ in range(2):
            start = time.perf_counter()
            run = att.train(
                tokens,
                att.Linear(v),
                weight=att.FullWeight(),
                optimizer=att.steepest(att.frobenius, 0.1),
                steps=STEPS,
                record=[STEPS],
            )
            seconds = time.perf_counter() - start
        print(f"{runs} runs × {STEPS} steps: {seconds:.3f} s, median ‖W‖ {np.median(run.norm()[:, -1]):.6f}")


if __name__ == "__main__":
    main()
