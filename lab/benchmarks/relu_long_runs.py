"""Long runs under a ReLU head, beside the Gen-SVM of all examples and of those not at zero:

    python lab/benchmarks/relu_long_runs.py

The draws of the claims on ReLU heads (attsvm_lab.claims.gen_svm): 64 of each of four seeds to 100,000 steps,
32 of one seed to 1,000,000; 90 seconds on one core. Prints one row per horizon.
"""

from __future__ import annotations

import numpy as np

import attsvm as att
from attsvm_lab.claims.gen_svm import Prediction, attended, relu_distances, relu_problems

PLAN = (((0, 1, 2, 3), 64, (500, 2_000, 10_000, 100_000)), ((0,), 32, (2_000, 10_000, 100_000, 1_000_000)))


def main() -> None:
    print("runs judged, median 1 − cosine and share within 0.01: every example asks, those not at zero ask")
    for seeds, count, steps in PLAN:
        paths = [_trained(seed, count, steps) for seed in seeds]
        for k, step in enumerate(steps, start=1):
            ends = [attended(path.changed(W=path.W[:, [0, k]], index=path.index[[0, k]])) for path in paths]
            print(f"{count} draws of seeds {seeds}, {step} steps: {_row(seeds, ends)}", flush=True)


def _trained(seed: int, count: int, steps: tuple[int, ...]) -> att.Path:
    tokens, V = relu_problems(seed, count)
    return att.train(
        tokens,
        att.ReLUNetwork(V, np.ones(4)),
        optimizer=att.steepest(att.frobenius, 0.1),
        steps=steps[-1],
        init=att.uniform(range(128 * seed, 128 * seed + count)),
        record=steps,
    )


def _row(seeds: tuple[int, ...], ends: list[Prediction]) -> str:
    away = [
        np.concatenate([relu_distances(s, end, all_ask) for s, end in zip(seeds, ends, strict=True)])
        for all_ask in (True, False)
    ]
    return f"{len(away[1])} runs; " + "; ".join(
        f"{np.median(x):.2e}, {np.mean(x <= 0.01):.2f}, largest {x.max():.2f}" for x in away
    )


if __name__ == "__main__":
    main()
