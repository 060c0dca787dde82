"""The random models of the papers.

A seed gives the same data on every platform and in every version: each run draws from its own
`numpy.random.Generator(numpy.random.PCG64(seed))` by `standard_normal` and `integers`, in the order
that each docstring gives. A range of seeds gives arrays with a leading runs axis. Test inputs of a seed come
from a separate stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from attsvm._support.validation import as_seeds, check_sizes
from attsvm.data.tokens import Tokens
from attsvm.numbers import Float

Seed = int | Iterable[int]


def sphere(n: int, T: int, d: int, seed: Seed = 0) -> tuple[Tokens, Float]:
    """Unit tokens, unit queries, a unit head and random labels: the random model of both core papers.

    Draw order: v, labels, keys, queries. seed: an integer, or a range for a leading runs axis.
    Returns Tokens with keys (n, T, d), queries (n, d), labels (n,), and the head v (d,).
    Serves "Transformers as SVMs": local convergence, ranks, bars; mirror descent, experiment A.
    """
    v, labels, keys, queries = _sphere(n, T, d, seed)
    return Tokens(keys, queries, labels), v


def prompt_sphere(n: int, T: int, d: int, seed: Seed = 0) -> tuple[Tokens, Float]:
    """The same draw without queries: the random prompt model of "Max-Margin Token Selection"."""
    v, labels, keys, _ = _sphere(n, T, d, seed)
    return Tokens(keys, labels=labels), v


def orthogonal(n: int = 10, T: int = 6, d: int = 300, seed: Seed = 0) -> tuple[Tokens, Float]:
    """One class token among nearly orthogonal noise tokens: the data of the fast-rate theorems.

    The class tokens are two orthonormal vectors, one per label; the other T − 1 tokens of an example
    are unit noise orthogonal to both, so their scores are exactly equal (0) and the best is 1. The
    query is the first token. Draw order: labels, class tokens, noise, position of the class token.
    Returns the head v = difference of the class tokens.
    Serves "Implicit Bias and Fast Convergence Rates for Self-attention" (Vasudeva et al. 2024).
    """
    n, T, d = check_sizes(n=(n, 1), T=(T, 1), d=(d, 3))

    def draw(rng: np.random.Generator) -> dict[str, Float]:
        labels = np.where(rng.standard_normal(n) < 0, -1.0, 1.0)
        first, second = on_sphere(rng.standard_normal((2, d)))
        classes = np.stack([first, on_sphere(second - first * (first @ second))])
        noise = rng.standard_normal((n, T, d))
        keys = on_sphere(noise - noise @ classes.T @ classes)
        keys[np.arange(n), rng.integers(T, size=n)] = classes[(labels < 0).astype(int)]
        return {"labels": labels, "keys": keys, "v": classes[0] - classes[1]}

    arrays = draw_runs(draw, seed)
    return Tokens.self_attention(arrays["keys"], at=0, labels=arrays["labels"]), arrays["v"]


def draw_runs(
    draw: Callable[[np.random.Generator], dict[str, Float]], seed: Seed, *, test: bool = False
) -> dict[str, Float]:
    """One draw for an integer seed; stacked draws, runs first, for several. test: use the stream of tests."""
    seeds = as_seeds(seed)
    if isinstance(seeds, int):
        return draw(_generator(seeds, test))
    draws = [draw(_generator(s, test)) for s in seeds]
    return {name: np.stack([arrays[name] for arrays in draws]) for name in draws[0]}


def on_sphere(x: Float) -> Float:
    """The vectors along the last axis, scaled to length one."""
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def _sphere(n: int, T: int, d: int, seed: Seed) -> tuple[Float, Float, Float, Float]:
    """v, labels, keys and queries: one draw for each run, and one normalisation for all runs."""
    n, T, d = check_sizes(n=(n, 1), T=(T, 1), d=(d, 1))
    shapes = ((d,), (n,), (n, T, d), (n, d))
    counts = [int(np.prod(shape)) for shape in shapes]
    flat = draw_runs(lambda rng: {"flat": rng.standard_normal(sum(counts))}, seed)["flat"]
    pieces = np.split(flat, np.cumsum(counts)[:-1], axis=-1)
    v, labels, keys, queries = (
        piece.reshape(*flat.shape[:-1], *shape) for piece, shape in zip(pieces, shapes, strict=True)
    )
    return on_sphere(v), np.where(labels < 0, -1.0, 1.0), on_sphere(keys), on_sphere(queries)


def _generator(seed: int, test: bool) -> np.random.Generator:
    sequence = np.random.SeedSequence(seed, spawn_key=(1,)) if test else seed
    return np.random.Generator(np.random.PCG64(sequence))
