"""The random models of the papers.

Same seed, same data on every platform and version: each run draws from its own
`numpy.random.Generator(numpy.random.PCG64(seed))` by `standard_normal` and `random` only, in the
order that the docstring gives. A range of seeds gives arrays with a leading runs axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from attsvm.tokens import Float, Tokens

Seed = int | Iterable[int]


def sphere(n: int, T: int, d: int, seed: Seed = 0) -> tuple[Tokens, Float]:
    """Unit tokens, unit queries, a unit head and random labels: the random model of both core papers.

    Draw order: v, labels, keys, queries. seed: an integer, or a range for a leading runs axis.
    Returns Tokens with keys (n, T, d), queries (n, d), labels (n,), and the head v (d,).
    Serves: "Transformers as SVMs", local convergence (B4.2), ranks (B4.3), bars (B4.4).
    """

    def draw(rng: np.random.Generator) -> dict[str, Float]:
        v = _unit(rng.standard_normal(d))
        labels = np.where(rng.standard_normal(n) < 0, -1.0, 1.0)
        keys = _unit(rng.standard_normal((n, T, d)))
        queries = _unit(rng.standard_normal((n, d)))
        return {"v": v, "labels": labels, "keys": keys, "queries": queries}

    parts = draw_runs(draw, seed)
    return Tokens(parts["keys"], parts["queries"], parts["labels"]), parts["v"]


def draw_runs(draw: Callable[[np.random.Generator], dict[str, Float]], seed: Seed) -> dict[str, Float]:
    """One draw for an integer seed; stacked draws, runs first, for several."""
    if isinstance(seed, (int, np.integer)):
        return draw(_generator(int(seed)))
    each = [draw(_generator(int(s))) for s in seed]
    if not each:
        raise ValueError("seed is an empty range. Pass an integer or at least one seed.")
    return {name: np.stack([part[name] for part in each]) for name in each[0]}


def _generator(seed: int) -> np.random.Generator:
    if seed < 0:
        raise ValueError(f"seed is {seed}. Pass a nonnegative integer or a range of them.")
    return np.random.Generator(np.random.PCG64(seed))


def _unit(x: Float) -> Float:
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))
