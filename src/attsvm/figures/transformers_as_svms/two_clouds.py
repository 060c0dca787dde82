"""Two parameterisations, two limits: W follows the Frobenius, (K, Q) the nuclear program.

"Transformers as Support Vector Machines", Figure 1: two inputs in the plane.
"""

from __future__ import annotations

from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.figures.figure import PLOT, Arrays, Check
from attsvm.figures.papers import TRANSFORMERS
from attsvm.figures.style import GREY, canvas, label
from attsvm.figures.transformers_as_svms.trajectories import SOURCE, draw_trajectories, trajectories


@TRANSFORMERS.figure(
    "two-clouds",
    "Two parameterisations, two limits",
    shows=(
        "Training W turns to the rays W^mm z_i of the Frobenius program, training (K, Q) to those of "
        "the nuclear one; the two programs have visibly different rays."
    ),
    sizes={"quick": {"steps": 2_000}, "default": {"steps": 2_000}, "paper": {"steps": 2_000}},
    seconds=4,
)
def experiment(steps: int) -> Arrays:
    """Paths and rays of both trainings."""
    return trajectories(*att.datasets.two_clouds(), steps)


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Paths against rays, one panel per parameterisation, in the window of the published plot."""
    figure, axes = canvas(2, height=3.6)
    for ax, name, other in zip(axes, ("full", "factored"), ("nuclear", "Frobenius"), strict=True):
        draw_trajectories(ax, arrays, name, window=(-16, 16, -100, 100))
        label(ax, -15, 88, f"dashed: the {other} rays", GREY)
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The slopes of the drawn rays, read off the published plot."""
    full, factored = arrays["ray_full"], arrays["ray_factored"]
    because = "a slope read where the ray leaves the plot, x to 0.5 of an axis of 100"
    return [
        Check("Frobenius ray of z1, slope", PLOT, SOURCE, 7.7, full[0, 1] / full[0, 0], 0.3, because),
        Check(
            "Frobenius ray of z2, x at y = −100",
            PLOT,
            SOURCE,
            3.5,
            -100 * full[1, 0] / full[1, 1],
            0.5,
            because,
        ),
        Check("nuclear ray of z1, slope", PLOT, SOURCE, 14.0, factored[0, 1] / factored[0, 0], 0.7, because),
        Check(
            "nuclear ray of z2, x at y = −100",
            PLOT,
            SOURCE,
            -7.0,
            -100 * factored[1, 0] / factored[1, 1],
            0.5,
            because,
        ),
    ]
