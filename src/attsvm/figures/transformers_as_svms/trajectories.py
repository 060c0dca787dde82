"""Trajectories in the plane: W(k) z_i of both trainings beside the rays W z_i of both programs."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from attsvm.figures.figure import Arrays
from attsvm.figures.style import BLUE, GREY, ORANGE, label
from attsvm.figures.transformers_as_svms.drawing import describe
from attsvm.norms import frobenius, nuclear
from attsvm.program.max_margin import max_margin
from attsvm.tokens import Float, Tokens
from attsvm.training.heads import Linear
from attsvm.training.optimizers import steepest
from attsvm.training.train import train
from attsvm.training.weights import FullWeight, KeyQuery

COLORS = (BLUE, ORANGE)
"""Of the two inputs."""
TITLES = {"full": "train W → Frobenius ray", "factored": "train (K, Q) → nuclear ray"}
SOURCE = "Transformers as SVMs, trajectories (read off the plot)"


def trajectories(tokens: Tokens, v: Float, steps: int) -> Arrays:
    """Paths W(k) z_i (2, k, 2), rays W z_i (2, 2) and certified gaps of W (full) and (K, Q) (factored).

    W starts at 0; Q at 0 and K at 0.1 times normal numbers. K and Q are normalised each on its own.
    """
    start = (0.1 * np.random.default_rng(0).standard_normal((2, 2)), np.zeros((2, 2)))
    arrays: Arrays = {"keys": tokens.keys}
    for name, weight, init, norm in (
        ("full", FullWeight(), None, frobenius),
        ("factored", KeyQuery(separate=True), start, nuclear),
    ):
        path = train(
            tokens,
            Linear(v),
            weight=weight,
            optimizer=steepest(frobenius, 0.1),
            steps=steps,
            init=init,
            record=[
                k for k in (1, 2, 3, 5, 8, 12, 18, 26, 36, 50, 70, 100, 150, 250, 500, 1000) if k < steps
            ],
        )
        solution = max_margin(tokens, path.selected, norm)
        arrays[f"path_{name}"] = np.einsum("kde,ne->nkd", path.W, tokens.queries)
        arrays[f"ray_{name}"] = np.einsum("de,ne->nd", solution.W, tokens.queries)
        arrays[f"gap_{name}"] = np.array(solution.certificate.gap)
        arrays["selected"] = path.selected.argmax(-1)
    return arrays


def draw_trajectories(ax: Axes, arrays: Arrays, name: str) -> None:
    """Paths on their own rays, wide and pale; the rays of the other program dashed, for contrast.

    Lengths are |·|^½ of the true ones, directions are kept: the start and the end are both seen.
    """
    other = "factored" if name == "full" else "full"
    reach = np.sqrt(np.linalg.norm(arrays[f"path_{name}"], axis=-1).max())
    for i, color in enumerate(COLORS):
        path = _shortened(arrays[f"path_{name}"][i])
        own, foreign = (reach * _unit(arrays[f"ray_{ray}"][i]) for ray in (name, other))
        ax.plot(*zip((0, 0), own, strict=True), color=color, lw=6, alpha=0.25, solid_capstyle="butt")
        ax.plot(*zip((0, 0), foreign, strict=True), "--", color=GREY, lw=0.9)
        ax.plot(*path.T, ".-", color=color, lw=1.4, ms=3)
        label(ax, *(1.04 * own), f"$W z_{i + 1}$", color, ha="center", va="bottom" if own[1] > 0 else "top")
    describe(ax, TITLES[name], "first coordinate", "second coordinate of $W z$")
    ax.set_aspect("equal")
    ax.margins(0.12)


def _shortened(path: Float) -> Float:
    """Vectors of the same direction whose length is the square root."""
    size = np.linalg.norm(path, axis=-1, keepdims=True)
    return np.asarray(path / np.sqrt(np.where(size > 0, size, 1.0)))


def _unit(x: Float) -> Float:
    return np.asarray(x / np.linalg.norm(x))
