"""One input, three tokens in the plane: one score decides whether a local optimum exists.

"Max-Margin Token Selection in Attention Mechanism", Figures 1a and 1b.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import grid
from attsvm.plotting.style import BLUE, GREY, ORANGE, label
from attsvm_lab.figures.accuracy import digits, exactly
from attsvm_lab.figures.figure import PRINTED, RUN, Arrays, Check, scales
from attsvm_lab.figures.max_margin_selection.protocol import (
    COST,
    SCRIPT,
    descend,
    published_loop,
    stack,
    with_and_without_constants,
)
from attsvm_lab.figures.papers import MAX_MARGIN

THIRD_SCORES = (0.9, 0.0)
STARTS = tuple(y for _, y in att.datasets.published.SINGLE_INPUT_STARTS)
ADDED = 1e-9
"""The constant that the published loop adds to the length of a gradient before it divides by it."""


@MAX_MARGIN.figure(
    "single-input",
    "One input: local against global",
    shows=(
        "Six runs from the open circles against the rays of the two certified programs. With c = 0.9 "
        "token 3 supports the program of token 2 and scores as much as it, so token 2 is not locally "
        "optimal and every run goes up; with c = 0 it is locally optimal and keeps the two lowest "
        "starts."
    ),
    notes=(
        "The published loop divides by ‖∇L‖ + 1e-9 and freezes where the gradient falls below that, at "
        "‖p‖ ≈ 22 (crosses), still off its ray for c = 0.9. Without the constant the same runs go on "
        "and reach cosine 0.9997 after 1,000 steps; with it we find the ends of an independent script "
        "to every digit."
    ),
    sizes=scales(steps=(1_000, 1_000, 20_000)),
    seconds=3,
)
def experiment(steps: int) -> Arrays:
    """Prompts (2, 6, k, 2) for both third scores and six starts, and the cosines to the two programs.

    published (2, 6, 2): the prompts of the notebook's loop, with its constant, after 1,000 steps.
    """
    tokens = stack([att.datasets.single_input(c)[0] for c in THIRD_SCORES for _ in STARTS])
    start = np.array([[0.0, y] for _ in THIRD_SCORES for y in STARTS])
    head, shape = np.ones(1), (len(THIRD_SCORES), len(STARTS), -1)
    path = descend(tokens, head, [*range(301), 1_000, steps], start[..., None])
    frozen, _ = published_loop(tokens, head, start, 1_000, (ADDED, None))
    arrays: Arrays = {"steps": path.index, "prompts": path.W.reshape(*shape, 2)}
    arrays |= {"published": frozen[-1].reshape(*shape[:2], 2)}
    for token in (0, 1):
        program = att.max_margin(tokens.run(0), [token])
        arrays[f"program_{token}"] = program.W[:, 0]
        arrays[f"cosine_{token}"] = att.cosine(path.W, program.W).reshape(shape)
    return arrays


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Six paths and the rays of the two programs, one panel per third score."""
    figure, (axes,) = grid(1, 2, 3.9)
    titles = ("c = 0.9: every start selects token 1", "c = 0: two starts select token 2")
    for ax, paths, ends, title in zip(axes, arrays["prompts"], arrays["published"], titles, strict=True):
        _panel(ax, paths, (arrays["program_0"], arrays["program_1"]), local=ax is axes[1])
        ax.plot(*ends.T, "x", color="black", ms=4, mew=0.9, zorder=3)
        ax.set_title(title)
    axes[0].set_ylabel("p₂")
    label(axes[0], 0, 20, "the published loop\nfreezes at ×", "black")
    label(axes[0], 1, -2.3, "p(0)", GREY)
    return figure


def _panel(ax: Axes, paths: Float, programs: tuple[Float, Float], local: bool) -> None:
    second = "$p^{mm}$(token 2)\n" + ("locally optimal" if local else "not locally optimal")
    names = ("$p^{mm}$(token 1)\nglobally optimal", second)
    for program, color, name in zip(programs, (BLUE, ORANGE), names, strict=True):
        end = 27 * program / np.linalg.norm(program)
        ax.plot([0, end[0]], [0, end[1]], color=color, lw=5, alpha=0.25)
        x, y = (13, 12) if color == BLUE else (26.5, 1.5)
        label(ax, x, y, name, color, ha="right")
    for path in paths:
        color = BLUE if path[-1, 1] > path[-1, 0] else ORANGE
        ax.plot(*path.T, color=color, lw=1.3)
        ax.plot(*path[0], "o", ms=4, mfc="white", mec=color)
    ax.set(xlabel="p₁", aspect="equal", xlim=(-8, 27), ylim=(-5, 27))


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The printed costs, and the runs after 1,000 steps with and without the constant."""
    rows = []
    for token, published in enumerate((0.49505, 0.5)):
        cost = 0.5 * float((arrays[f"program_{token}"] ** 2).sum())
        rows.append(Check(f"token {token + 1}: ½‖p‖²", PRINTED, COST, published, cost, digits(5)))
    at = int(np.searchsorted(arrays["steps"], 1_000))
    reached = arrays["cosine_0"][1, :, at] > 0.999, arrays["cosine_1"][1, :, at] > 0.999
    six = exactly("a count of six runs")
    rows += [
        Check("c = 0: starts that end at the global program", RUN, SCRIPT, 4, reached[0].sum(), six),
        Check("c = 0: starts that end at the local program", RUN, SCRIPT, 2, reached[1].sum(), six),
    ]
    unfrozen = arrays["cosine_0"][0, :, at]
    frozen = att.cosine(arrays["published"][0][..., None], arrays["program_0"][:, None])
    for name, published, pick in (("least", 0.994, np.min), ("largest", 0.996, np.max)):
        quantity = f"c = 0.9: {name} cosine to the global program"
        rows += with_and_without_constants(quantity, published, (pick(frozen), pick(unfrozen)), 3)
    for run, height in ((4, 0.68), (5, -0.85)):
        quantity = f"c = 0, p(0) = (0, {STARTS[run]:g}): p₂ after 1,000 steps"
        ends = arrays["published"][1, run, 1], arrays["prompts"][1, run, at, 1]
        rows += with_and_without_constants(quantity, height, ends, 2)
    return rows
