"""Two parameterisations, two limits: W follows the Frobenius, (K, Q) the nuclear program.

"Transformers as Support Vector Machines", Figure 1: two inputs in the plane.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

from attsvm import datasets
from attsvm.figures.figure import Arrays, Check, Figure
from attsvm.figures.style import BLUE, ORANGE, canvas, label
from attsvm.norms import frobenius, nuclear
from attsvm.program.max_margin import max_margin
from attsvm.training.heads import Linear
from attsvm.training.optimizers import steepest
from attsvm.training.train import train
from attsvm.training.weights import FullWeight, KeyQuery


def experiment(steps: int) -> Arrays:
    """Rays W z_i of both programs and paths of both trainings, (k, 2) per input."""
    tokens, v = datasets.two_clouds()
    rng = np.random.default_rng(0)
    start = (0.1 * rng.standard_normal((2, 2)), np.zeros((2, 2)))
    trainings = {
        "full": train(
            tokens, Linear(v), weight=FullWeight(), optimizer=steepest(frobenius, 0.1), steps=steps
        ),
        "factored": train(
            tokens, Linear(v), weight=KeyQuery(), optimizer=steepest(frobenius, 0.1), steps=steps, init=start
        ),
    }
    arrays: Arrays = {}
    for name, path, norm in (
        ("full", trainings["full"], frobenius),
        ("factored", trainings["factored"], nuclear),
    ):
        solution = max_margin(tokens, path.selected, norm)
        arrays[f"path_{name}"] = np.einsum("kde,ne->nkd", path.W, tokens.queries)
        arrays[f"ray_{name}"] = np.einsum("de,ne->nd", solution.W, tokens.queries)
        arrays[f"gap_{name}"] = np.array(solution.certificate.gap)
    return arrays


def draw(arrays: Arrays) -> Canvas:
    """Paths against rays, one panel per parameterisation."""
    figure, axes = canvas(2)
    titles = {"full": "train W  →  Frobenius program", "factored": "train (K, Q)  →  nuclear program"}
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        for path, ray, color, i in zip(
            arrays[f"path_{name}"], arrays[f"ray_{name}"], (BLUE, ORANGE), (1, 2), strict=True
        ):
            reach = np.abs(path).max() / np.abs(ray).max()
            ax.plot(*(np.outer([0, reach], ray).T), color=color, lw=4, alpha=0.25)
            ax.plot(*path.T, color=color, lw=1.4)
            label(
                ax, path[-1, 0], path[-1, 1], f"W z$_{i}$", color, xytext=(4, 0), textcoords="offset points"
            )
        ax.set_title(title)
        ax.set_xlabel("first coordinate of W z")
    axes[0].set_ylabel("second coordinate of W z")
    return figure


def checks(arrays: Arrays) -> list[Check]:
    """The slopes of the drawn rays, read off the published plot to about 2 % of its axis."""
    source = "Transformers as SVMs, Fig. 1 (read off the plot)"
    full, factored = arrays["ray_full"], arrays["ray_factored"]
    return [
        Check("Frobenius ray of z1, slope", source, 7.7, full[0, 1] / full[0, 0], 0.3),
        Check("Frobenius ray of z2, x at y = −100", source, 3.5, -100 * full[1, 0] / full[1, 1], 0.5),
        Check("nuclear ray of z1, slope", source, 14.0, factored[0, 1] / factored[0, 0], 0.7),
        Check("nuclear ray of z2, x at y = −100", source, -7.0, -100 * factored[1, 0] / factored[1, 1], 0.5),
    ]


SHOWS = (
    "Training W ends on the Frobenius ray of its program, training (K, Q) on the nuclear one; "
    "the two rays differ."
)
FIGURE = Figure(
    "two-clouds",
    "Two parameterisations, two limits",
    SHOWS,
    experiment,
    {"quick": {"steps": 500}, "default": {"steps": 2_000}, "paper": {"steps": 2_000}},
    draw,
    checks,
)
