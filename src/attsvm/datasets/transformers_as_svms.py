"""Instances of "Transformers as Support Vector Machines" (Tarzanagh et al. 2023)."""

from __future__ import annotations

import numpy as np

from attsvm.data.tokens import Tokens
from attsvm.datasets.published import TWO_CLOUDS, TWO_FANS
from attsvm.datasets.random import Seed, draw_runs, on_sphere
from attsvm.numbers import Float


def two_clouds(seed: Seed | None = None) -> tuple[Tokens, Float]:
    """Two inputs of three tokens in the plane, noise 0.3 around (−1, 0) and (1, 0).

    The rays W z_i of the Frobenius and the nuclear program visibly differ: slopes 7.79 and 14.4 for
    z_1. seed: None for the published draw. Draw order: v, keys, queries. Serves Figure 1.
    """
    parts = _parts(TWO_CLOUDS, 3, seed)
    keys = 0.3 * parts["keys"] + np.array([[[-1.0, 0.0]], [[1.0, 0.0]]])
    return Tokens(keys, on_sphere(parts["queries"])), on_sphere(parts["v"])


def two_fans(seed: Seed | None = None) -> tuple[Tokens, Float]:
    """Two inputs of five tokens in the plane: token 0 at (1, ±½), the others noise 0.5 at (−1, 0).

    Slopes of the rays W z_i of the Frobenius program: 1.30 and −1.67. seed: None for the published
    draw. Draw order: v, keys, queries. Serves Figure 3.
    """
    parts = _parts(TWO_FANS, 5, seed)
    keys = 0.5 * parts["keys"] + np.array([-1.0, 0.0])
    keys[..., 0, :] = [[1.0, 0.5], [1.0, -0.5]]
    return Tokens(keys, on_sphere(parts["queries"])), on_sphere(parts["v"])


def _parts(published: tuple[float, ...], T: int, seed: Seed | None) -> dict[str, Float]:
    if seed is None:
        v, keys, queries = np.split(np.array(published), [2, 2 + 4 * T])
        return {"v": v, "keys": keys.reshape(2, T, 2), "queries": queries.reshape(2, 2)}

    def draw(rng: np.random.Generator) -> dict[str, Float]:
        shapes = {"v": (2,), "keys": (2, T, 2), "queries": (2, 2)}
        return {name: rng.standard_normal(shape) for name, shape in shapes.items()}

    return draw_runs(draw, seed)
