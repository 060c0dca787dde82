"""Two entries of W along mirror descent beside the ray of its own program, on the paper's own data.

"Optimizing Attention with Mirror Descent", trajectories: the authors' seed 1, W(0) = 0.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREY, ORANGE, label
from attsvm_lab.claims.mirror_descent import away
from attsvm_lab.experiment import Experiment
from attsvm_lab.figures.accuracy import axis, within
from attsvm_lab.figures.figure import DERIVED, PLOT, Arrays, Check, scales
from attsvm_lab.figures.mirror_descent.own_program import STEPS
from attsvm_lab.figures.papers import MIRROR

ENTRIES = ((1, 2), (3, 4))
"""Horizontal and vertical: entries of W, counted from zero."""
WINDOWS = {1.75: (-6, 1, -3.5, 3.5), 2.0: (-7, 1, -4, 4), 3.0: (-7, 1, -4, 4)}
"""The axes of the published plots: left, right, bottom, top."""
RAYS = {1.75: -0.73, 2.0: -1.25, 3.0: -2.02}
PATHS = {1.75: -0.40, 2.0: -1.15, 3.0: -2.58}
"""Heights at which the drawn rays, and the drawn paths, leave these plots on the left."""
PLACES = 1_000
NEAR = 0.01
"""Divergence below which a run has turned to its own program."""


@MIRROR.figure(
    "mirror-trajectories",
    "Two entries of W on their way",
    shows=(
        "Entries (1, 2) and (3, 4) of W, trained from zero on the authors' own data (seed 1), beside the ray "
        "of the ℓp program of the attended tokens, in the windows of the published plots. Rays and paths "
        "leave each plot where the published ones do (circles: rays, squares: paths)."
    ),
    sizes=scales(exponents=((1.75, 2.0), (1.75, 2.0, 3.0), (1.75, 2.0, 3.0))),
    seconds=6,
)
def experiment(exponents: tuple[float, ...]) -> Arrays:
    """Path (k, 2) and ray (2,) in the two entries, and the divergence from the program at the end."""
    tokens, v = att.datasets.published.sphere(6, 8, 10, seed=1)
    arrays: Arrays = {"exponents": np.array(exponents)}
    for p in exponents:
        record = sorted({*range(100), *(round(STEPS[p] * k / PLACES) for k in range(PLACES + 1))})
        run = Experiment(tokens, v, att.mirror(p, 0.1), STEPS[p], record=record)
        path = run.path
        arrays[f"path_{p:g}"] = _entries(path.W)
        arrays[f"ray_{p:g}"] = _entries(run.solution(att.Entrywise(p)).W)
        arrays[f"away_{p:g}"] = away(run, p, p)[-1]
    return arrays


def _entries(W: Float) -> Float:
    rows, columns = zip(*ENTRIES, strict=True)
    return W[..., list(rows), list(columns)]


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """One panel per p, in the window of the published plot."""
    exponents = [float(p) for p in arrays["exponents"]]
    figure, (axes,) = grid(1, len(exponents), 3.0)
    for ax, p in zip(axes, exponents, strict=True):
        _panel(ax, arrays, p)
    label(axes[0], -5.8, 3.0, "○ □ as published", GREY)
    return figure


def _panel(ax: Axes, arrays: Arrays, p: float) -> None:
    left, right, bottom, top = WINDOWS[p]
    ray = arrays[f"ray_{p:g}"]
    ax.plot([0, left], [0, left * ray[1] / ray[0]], color=ORANGE, lw=5, alpha=0.3, solid_capstyle="butt")
    ax.plot(*arrays[f"path_{p:g}"].T, color=BLUE, lw=1.4)
    for marker, color, height in (("o", ORANGE, RAYS[p]), ("s", BLUE, PATHS[p])):
        ax.plot(left, height, marker, mfc="white", mec=color, ms=5, clip_on=False, zorder=5)
    ax.set(xlim=(left, right), ylim=(bottom, top))
    row, column = ENTRIES[1]
    describe(ax, f"p = {p:g}", "$W_{1,2}$", f"$W_{{{row},{column}}}$" if p == arrays["exponents"][0] else "")


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Where rays and paths leave the published plots, and that each run has turned to its own program."""
    rows = []
    for p in (float(p) for p in arrays["exponents"]):
        left, _, bottom, top = WINDOWS[p]
        ray = arrays[f"ray_{p:g}"]
        for name, published, ours in (
            ("ray", RAYS[p], left * ray[1] / ray[0]),
            ("path", PATHS[p], height_at(arrays[f"path_{p:g}"], left)),
        ):
            quantity = f"p = {p:g}: height of the {name} at {left:g}".replace("at -", "at −")
            rows.append(Check(quantity, PLOT, SOURCE, published, float(ours), axis(bottom, top)))
        quantity = f"p = {p:g}: divergence from its own program at the end"
        rows.append(Check(quantity, DERIVED, "the limit", 0.0, arrays[f"away_{p:g}"], within(NEAR, "near")))
    return rows


def height_at(path: Float, left: float) -> float:
    """The second coordinate where a path (k, 2) first comes to the left edge; NaN if it does not."""
    there = (path[:, 0] <= left).nonzero()[0]
    if not len(there):
        return float("nan")
    (x0, y0), (x1, y1) = path[there[0] - 1], path[there[0]]
    return float(y0 + (y1 - y0) * (left - x0) / (x1 - x0))


SOURCE = "Mirror Descent, trajectories of one run"
