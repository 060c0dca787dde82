"""Attention as a separator: the lines orthogonal to W^mm z_i cut the selected token from the others.

"Transformers as Support Vector Machines", Figure 3: two inputs of five tokens in the plane.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import GREY, label
from attsvm_lab.figures.accuracy import axis, within
from attsvm_lab.figures.figure import DERIVED, PLOT, Arrays, Check, scales
from attsvm_lab.figures.papers import TRANSFORMERS
from attsvm_lab.figures.transformers_as_svms.trajectories import (
    COLORS,
    SOURCE,
    draw_trajectories,
    leaves_at,
    trajectories,
)

PATHS = (2.92, 2.22)
"""Where the published paths of W z_i leave the plot."""
SOLVED = within(1e-8, "solver accuracy")
WINDOW = (-2, 10, -5, 5)
"""The axes of the published plot, which shows tokens, rays and the path of W together."""
WIDE = (-10, 60, -75, 75)
"""Where the path of K Qᵀ has turned to its rays; no published plot has it."""


@TRANSFORMERS.figure(
    "two-fans",
    "Attention as a separator of tokens",
    shows=(
        "Each line is orthogonal to W^mm z_i and separates the token that input i selects from its "
        "other tokens: attention is an SVM. Training turns W z_i, and K Qᵀ z_i, to these directions."
    ),
    sizes=scales(steps=(2_000, 2_000, 2_000)),
    seconds=5,
)
def experiment(steps: int) -> Arrays:
    """Tokens, paths and rays of both trainings."""
    return trajectories(*att.datasets.two_fans(), steps)


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Tokens with their separating lines; then the paths of W and of (K, Q)."""
    figure, ((tokens_ax, middle, right),) = grid(1, 3, 3.1)
    for i in range(2):
        _separated(tokens_ax, arrays, i)
    tokens_ax.set(xlim=(-2.2, 2.1), ylim=(-2.8, 2.8))
    tokens_ax.set_aspect("equal", adjustable="box")
    describe(tokens_ax, "tokens and separating lines", "first coordinate", "second coordinate of $x$")
    label(tokens_ax, -2.1, -2.6, "★ selected   • others   ○ support", GREY)
    draw_trajectories(middle, arrays, "full", window=WINDOW)
    draw_trajectories(right, arrays, "factored", window=WIDE)
    label(middle, 3.2, -0.2, "dashed:\nnuclear rays", GREY)
    label(right, -8, 66, "dashed: Frobenius rays", GREY)
    right.set_ylabel("")
    return figure


def _separated(ax: Axes, arrays: Arrays, i: int) -> None:
    """Tokens of an input, and the line {x : (x_α − x)ᵀ W^mm z = ½}, halfway through its margin of 1."""
    keys, ray, color = arrays["keys"][i], arrays["ray_full"][i], COLORS[i]
    winner = keys[arrays["selected"][i]]
    margins = (winner - keys) @ ray
    losing = np.arange(len(keys)) != arrays["selected"][i]
    ax.plot(*winner, "*", color=color, ms=11)
    ax.plot(*keys[losing].T, "o", color=color, ms=4)
    ax.plot(*keys[losing & (margins < 1 + 1e-6)].T, "o", mfc="none", color=color, ms=9)
    length = np.linalg.norm(ray)
    foot, along = winner - 0.5 * ray / length**2, np.array([-ray[1], ray[0]]) / length
    ax.plot(*np.stack([foot - 4 * along, foot + 4 * along]).T, color=color, lw=1)
    tip = winner + 0.45 * ray / length
    ax.annotate("", tip, winner, arrowprops={"arrowstyle": "->", "color": color})
    x, y = winner + 0.62 * ray / length
    label(ax, x, y, f"$W^{{mm}} z_{i + 1}$", color, ha="center", va="center")


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The points where the drawn Frobenius rays leave the published plot, and the program's least margin."""
    full, keys, winner = arrays["ray_full"], arrays["keys"], arrays["selected"]
    margins = (keys[[0, 1], winner][:, None] - keys) @ full[..., None]
    least = np.sort(margins[..., 0], axis=-1)[:, 1].min()  # the margin of the winner to itself is 0
    return [
        *(_ray(i, slope, full[i]) for i, slope in enumerate((1.3, -1.67))),
        *(_path(i, place, arrays["path_full"][i]) for i, place in enumerate(PATHS)),
        Check("least margin of the program", DERIVED, "by definition", 1.0, least, SOLVED),
    ]


def _path(i: int, place: float, path: Float) -> Check:
    """The point where the drawn path of W z_i leaves the published plot above or below."""
    edge = WINDOW[3] if path[-1, 1] > 0 else WINDOW[2]
    quantity = f"path of W z{i + 1}, x at y = {edge:g}".replace("-", "−")
    return Check(quantity, PLOT, SOURCE, place, leaves_at(path, edge), axis(*WINDOW[:2]))


def _ray(i: int, slope: float, ray: Float) -> Check:
    """The point where a drawn ray, read as this slope, leaves the published plot above or below."""
    edge = np.copysign(WINDOW[3], slope)
    quantity = f"Frobenius ray of z{i + 1}, x at y = {edge:g}".replace("-", "−")
    return Check(quantity, PLOT, SOURCE, edge / slope, edge * ray[0] / ray[1], axis(*WINDOW[:2]))
