"""Trajectories in the plane: W(k) z_i of both trainings beside the rays W z_i of both programs."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import describe
from attsvm.plotting.style import BLUE, GREY, ORANGE, label
from attsvm_lab.figures.figure import Arrays

COLORS = (BLUE, ORANGE)
"""The colours of the two inputs."""
TITLES = {"full": "train W → Frobenius ray", "factored": "train (K, Q) → nuclear ray"}
RECORD = np.unique(np.geomspace(1, 2_000, 150).astype(int))
SOURCE = "Transformers as SVMs, trajectories"


def trajectories(tokens: att.Tokens, v: Float, steps: int) -> Arrays:
    """Paths W(k) z_i (2, k, 2) and rays W z_i (2, 2) of W (full) and (K, Q) (factored).

    W starts at 0; Q at 0 and K at 0.1 times normal numbers. K and Q have normalised steps of their own.
    """
    start = (0.1 * np.random.default_rng(0).standard_normal((2, 2)), np.zeros((2, 2)))
    arrays: Arrays = {"keys": tokens.keys}
    rule, record = att.steepest(att.frobenius, 0.1), RECORD[steps > RECORD].tolist()
    for name, weight, init, norm in (
        ("full", att.FullWeight(), None, att.frobenius),
        ("factored", att.KeyQuery(separate=True), start, att.nuclear),
    ):
        path = att.train(
            tokens, att.Linear(v), weight=weight, optimizer=rule, steps=steps, init=init, record=record
        )
        solution = att.max_margin(tokens, path.selected, norm)
        arrays[f"path_{name}"] = np.einsum("kde,ne->nkd", path.W, tokens.queries)
        arrays[f"ray_{name}"] = np.einsum("de,ne->nd", solution.W, tokens.queries)
        arrays["selected"] = path.selected.argmax(-1)
    return arrays


def draw_trajectories(ax: Axes, arrays: Arrays, name: str, window: tuple[float, float, float, float]) -> None:
    """Paths above their rays, which are wide and pale; the rays of the other program are dashed.

    window: left, right, bottom and top of the visible part; paths continue outside it.
    """
    contrast = "factored" if name == "full" else "full"
    for i, color in enumerate(COLORS):
        own_edge, contrast_edge = (_to_edge(arrays[f"ray_{ray}"][i], window) for ray in (name, contrast))
        ax.plot(*zip((0, 0), own_edge, strict=True), color=color, lw=6, alpha=0.25, solid_capstyle="butt")
        ax.plot(*zip((0, 0), contrast_edge, strict=True), "--", color=GREY, lw=0.9)
        ax.plot(*arrays[f"path_{name}"][i].T, color=color, lw=1.4)
        paper = {"fc": "white", "ec": "none", "pad": 1}
        label(
            ax,
            0.8 * own_edge[0],
            0.8 * own_edge[1],
            f"$W z_{i + 1}$",
            color,
            ha="center",
            va="center",
            bbox=paper,
        )
    ax.set(xlim=window[:2], ylim=window[2:])
    describe(ax, TITLES[name], "first coordinate", "second coordinate of $W z$")


def leaves_at(path: Float, edge: float) -> float:
    """First coordinate at which a path (k, 2) first crosses the height `edge` above or below the origin."""
    beyond = int(np.argmax(path[:, 1] * np.sign(edge) >= abs(edge)))
    pair = path[beyond - 1 : beyond + 1]
    order = np.argsort(pair[:, 1])
    return float(np.interp(edge, pair[order, 1], pair[order, 0]))


def _to_edge(ray: Float, window: tuple[float, float, float, float]) -> Float:
    """The point where a ray from the origin leaves the window."""
    x_min, x_max, y_min, y_max = window
    edges = np.where(ray > 0, (x_max, y_max), (x_min, y_min))
    return np.asarray(ray * (edges / ray).min())
