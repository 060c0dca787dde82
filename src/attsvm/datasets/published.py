"""The data behind the published figures: the authors' own draws, made without torch.

The notebooks draw with torch's generator, which `torch_normals` repeats from the seed alone. `sphere` is the
random model of "Transformers as SVMs" (seeds 0 – 99) and of mirror descent (seeds 1 – 100); `relu` that
of the experiment with a ReLU head (seeds 1, 2, …). Initial weights were drawn without a seed and are lost.

The tuples below are the normal numbers of the drawn instances. They were first identified by what the papers
print and draw: the solver cost 0.31319 of SEVERAL_INPUTS (seed 0), and the slopes of the drawn rays, 7.7 and
14 (TWO_CLOUDS, seed 1), 1.3 and −1.67 (TWO_FANS, seed 3). The tests compare them with the generator.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from attsvm._support.validation import as_seeds, check_sizes
from attsvm.data.tokens import Tokens
from attsvm.datasets.random import Seed, on_sphere
from attsvm.datasets.torch_normals import TorchNormals
from attsvm.numbers import Float


def sphere(n: int, T: int, d: int, seed: Seed = 0) -> tuple[Tokens, Float]:
    """The published draws of unit tokens, unit queries, a unit head and random labels.

    Draw order v, Y, X, Z in float32, each by one call; normalised in float32, too.
    seed: as the authors counted their runs; a range gives a leading runs axis.
    Returns Tokens with keys (n, T, d), queries (n, d), labels (n,), and the head v (d,).
    """
    n, T, d = check_sizes(n=(n, 1), T=(T, 1), d=(d, 1))

    def draw(normals: TorchNormals) -> tuple[Float, ...]:
        v, labels, keys, queries = normals(d), normals(n), normals((n, T, d)), normals((n, d))
        return on_sphere(v), _signs(labels), on_sphere(keys), on_sphere(queries)

    v, labels, keys, queries = _drawn(draw, seed)
    return Tokens(keys, queries, labels), v


def relu(n: int, T: int, d: int, seed: Seed = 1) -> tuple[Tokens, Float]:
    """The published draws of the experiment with the head h(r) = 1ᵀ max(Vᵀ r, 0).

    Draw order V, X, Y, Z in float32. Returns Tokens, and V (d, d) of Frobenius norm one.
    """
    n, T, d = check_sizes(n=(n, 1), T=(T, 1), d=(d, 1))

    def draw(normals: TorchNormals) -> tuple[Float, ...]:
        V, keys, labels, queries = normals((d, d)), normals((n, T, d)), normals(n), normals((n, d))
        return V / np.linalg.norm(V), on_sphere(keys), _signs(labels), on_sphere(queries)

    V, keys, labels, queries = _drawn(draw, seed)
    return Tokens(keys, queries, labels), V


def _signs(numbers: Float) -> Float:
    return np.where(numbers > 0, 1.0, -1.0)


def _drawn(draw: Callable[[TorchNormals], tuple[Float, ...]], seed: Seed) -> list[Float]:
    """The arrays of one draw, or of several with a leading runs axis, in float64."""
    seeds = as_seeds(seed)
    if isinstance(seeds, int):
        return [array.astype(float) for array in draw(TorchNormals(seeds))]
    draws = [draw(TorchNormals(s)) for s in seeds]
    return [np.stack(arrays).astype(float) for arrays in zip(*draws, strict=True)]


SINGLE_INPUT_STARTS = tuple((0.0, y) for y in (1.0, 0.5, 0.0, -0.5, -1.0, -1.5))
SEVERAL_INPUTS_STARTS = tuple((x, 0.0) for x in (1.0, 0.5, 0.0, -0.5, -1.0, -1.5))
JOINT_TRAINING_START = (0.0, -1.0)
"""The prompts p(0) from which "Max-Margin Token Selection" draws its paths."""

# fmt: off
SEVERAL_INPUTS = (  # keys (3, 7, 3)
    -1.1258398, -1.1523602, -0.25057858, -0.4338788, 0.84871036, 0.69200915, -0.31601277, -2.1152194,
    0.32227492, -1.2633348, 0.3499832, 0.30813393, 0.11984151, 1.2376579, 1.1167772, -0.24727815,
    -1.3526537, -1.6959312, 0.5666506, 0.79350835, 0.59883946, -1.5550951, -0.3413604, 1.8530061,
    0.7501895, -0.58549756, -0.17339675, 0.18347794, 1.3893661, 1.5863342, 0.94629836, -0.84367675,
    -0.6135831, 0.03159274, -0.49267697, 0.24841475, 0.43969584, 0.112411186, 0.64079237, 0.44115627,
    -0.10230965, 0.792444, -0.2896677, 0.052507486, 0.52286047, 2.3022053, -1.4688939, -0.59103316,
    -0.5692481, 0.9199714, 1.1108161, 1.2898741, -1.478174, 2.5672328, -0.4731198, 1.3252748, -1.629326,
    -0.54974365, -0.47983426, -0.49968153, -1.0669804, 1.1149396, -0.14067143,
)

TWO_CLOUDS = (  # head (2,), keys (2, 3, 2), queries (2, 2)
    0.66135216, 0.2669241, 0.06167726, 0.6213173, -0.45190597, -0.16613023, -1.5227685, 0.38168392,
    -1.0276086, -0.5630528, -0.89229053, -0.058250178, -0.19550958, -0.96563596, 0.42241532, 0.267317,
    -0.42119515, -0.5107,
)

TWO_FANS = (  # head (2,), keys (2, 5, 2), queries (2, 2)
    0.80327606, 0.17483339, 0.6648394, -0.2867803, 1.6205508, -1.596708, 0.40460715, 0.61129963,
    0.7603904, -0.03364326, -0.34484532, 0.49365357, -0.07758075, -1.8053645, 0.485114, 0.20523438,
    0.3384282, 1.352754, 0.37363538, 0.013416479, 0.7736732, -0.10924352, -0.6779622, -1.0591074,
    0.74769664, 0.23891741,
)
# fmt: on
