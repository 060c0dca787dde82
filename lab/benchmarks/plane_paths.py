"""Does a regularisation path miss a minimum? Random prompts of width 2 against a grid over the disc:

    python lab/benchmarks/plane_paths.py [--prompts 100] [--seed 0] [--starts 8]

For each shape it prints how many points of the paths lie above the best point of the grid by more than 1e-5,
and the prompts and radii where that is so. tests/training/test_search.py holds eight of these prompts.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import attsvm as att

SHAPES = ((3, 8), (4, 4), (5, 5), (8, 3), (2, 12), (12, 6))
RADII = np.array([0.7, 3.3, 17.0])
WORSE = 1e-5


def smallest_in_the_disc(tokens: att.Tokens, v: np.ndarray, radius: float) -> float:
    """The smallest mean logistic loss over 40 lengths of 1,440 directions."""
    angle, length = np.linspace(0, 2 * np.pi, 1440, endpoint=False), radius * np.linspace(0, 1, 40)
    prompts = (length[:, None, None] * np.stack([np.cos(angle), np.sin(angle)], -1)).reshape(-1, 2)
    logits = np.einsum("ntd,pd->pnt", tokens.keys, prompts)
    attention = np.exp(logits - logits.max(-1, keepdims=True))
    attention /= attention.sum(-1, keepdims=True)
    scores = (tokens.keys @ v) * tokens.labels[:, None]
    return float(np.logaddexp(0, -(attention * scores).sum(-1)).mean(-1).min())


def scan(n: int, T: int, prompts: int, seed: int, starts: int) -> None:
    rng = np.random.default_rng(seed)
    keys, v = rng.standard_normal((prompts, n, T, 2)), rng.standard_normal((prompts, 2))
    tokens = att.Tokens(keys, None, rng.choice([-1, 1], (prompts, n)))
    began = time.process_time()
    path = att.regularisation_path(tokens, att.Linear(v), radii=RADII, starts=starts)
    seconds = time.process_time() - began
    grid = [[smallest_in_the_disc(tokens.run(k), v[k], R) for R in RADII] for k in range(prompts)]
    above = path.loss - np.array(grid)
    worse = np.argwhere(above > WORSE)
    print(f"n={n} T={T}: {len(worse)} of {above.size} above the grid, {seconds:.0f} CPU s")
    for k, r in worse:
        print(f"  prompt {k}, radius {RADII[r]:g}: by {above[k, r]:.3g}, agreed {path.agreed[k].tolist()}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--starts", type=int, default=8)
    options = parser.parse_args()
    for shape in SHAPES:
        scan(*shape, options.prompts, options.seed, options.starts)
