"""Two parameterisations, two limits: W follows the Frobenius, (K, Q) the nuclear program.

"Transformers as Support Vector Machines", Figure 1: two inputs in the plane.
"""

from __future__ import annotations

from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.plotting.layout import grid
from attsvm.plotting.style import GREY, label
from attsvm_lab.figures.accuracy import axis
from attsvm_lab.figures.figure import PLOT, Arrays, Check, scales
from attsvm_lab.figures.papers import TRANSFORMERS
from attsvm_lab.figures.transformers_as_svms.trajectories import (
    SOURCE,
    draw_trajectories,
    leaves_at,
    trajectories,
)

WINDOW = (-30, 40, -100, 100)
"""The axes of the published plot."""
PATHS = (15.5, -0.3)
"""Where the drawn paths of W z_i, which start at W = 0, leave it. K and Q had starts without a seed."""


@TRANSFORMERS.figure(
    "two-clouds",
    "Two parameterisations, two limits",
    shows=(
        "Training W turns to the rays W^mm z_i of the Frobenius program, training (K, Q) to those of "
        "the nuclear one; the two programs have visibly different rays."
    ),
    sizes=scales(steps=(2_000, 2_000, 2_000)),
    seconds=4,
)
def experiment(steps: int) -> Arrays:
    """Paths and rays of both trainings."""
    return trajectories(*att.datasets.two_clouds(), steps)


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Paths against rays, one panel per parameterisation, in the window of the published plot."""
    figure, (axes,) = grid(1, 2, 3.6)
    for ax, name, contrast in zip(axes, ("full", "factored"), ("nuclear", "Frobenius"), strict=True):
        draw_trajectories(ax, arrays, name, window=WINDOW)
        label(ax, -28, 88, f"dashed: the {contrast} rays", GREY)
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The points where the drawn rays, and the paths of W, leave the published plot, at y = ±100."""
    rows = []
    for name, norm, places in (("full", "Frobenius", (13.0, 3.5)), ("factored", "nuclear", (7.0, -7.0))):
        for i, (place, edge) in enumerate(zip(places, (100, -100), strict=True)):
            x, y = arrays[f"ray_{name}"][i]
            quantity = f"{norm} ray of z{i + 1}, x at y = {edge}".replace("-", "−")
            rows.append(Check(quantity, PLOT, SOURCE, place, edge * x / y, axis(*WINDOW[:2])))
    for i, (place, edge) in enumerate(zip(PATHS, (100, -100), strict=True)):
        ours = leaves_at(arrays["path_full"][i], edge)
        quantity = f"path of W z{i + 1}, x at y = {edge}".replace("-", "−")
        rows.append(Check(quantity, PLOT, SOURCE, place, ours, axis(*WINDOW[:2])))
    return rows
