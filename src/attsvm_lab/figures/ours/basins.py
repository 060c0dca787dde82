"""The locally optimal selections at which runs from random starts end, as recorded."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, label
from attsvm_lab.figures.accuracy import exactly
from attsvm_lab.figures.figure import CONJECTURED, Arrays, Check
from attsvm_lab.figures.papers import OURS
from attsvm_lab.figures.recorded import facts, recorded

COLORS = {"margin": BLUE, "score": ORANGE, "angle": GREEN, "shuffled": GREY}

SHOWS = (
    "Prompts on random tokens, trained from many starts with uniform directions; all locally optimal "
    "selections are known. Rank correlation, within a draw, between how often runs end at a selection and a "
    "number known before training: its margin, the score of its tokens, the solid angle of the directions "
    "that attend to it. From short starts the score counts; the longer they are, the more angle and "
    "margin do. Grey: shuffled."
)


@OURS.figure("basins", "Which locally optimal selection wins", shows=SHOWS, **facts("basins"))
def experiment() -> Arrays:
    """sizes (k, 3), scales (s,), and rank (k, s, predictors, 3): mean correlation with its interval."""
    cells = recorded("basins")["cells"]
    sizes = list(dict.fromkeys((cell["n"], cell["T"], cell["d"]) for cell in cells))
    scales = sorted({cell["start"] for cell in cells})
    ranks = {((c["n"], c["T"], c["d"]), c["start"]): c["rank"] for c in cells}
    return {
        "sizes": np.array(sizes),
        "scales": np.array(scales),
        "rank": np.array([[ranks[size, scale] for scale in scales] for size in sizes], float),
    }


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """One panel per size: correlations against the scale of the start."""
    figure, (axes,) = grid(1, len(arrays["sizes"]), 2.9)
    for ax, (n, T, d), rank in zip(axes, arrays["sizes"], arrays["rank"], strict=True):
        for k, (name, color) in enumerate(COLORS.items()):
            value, low, high = rank[:, k].T
            ax.errorbar(
                arrays["scales"], value, [value - low, high - value], color=color, marker="o", ms=3, lw=1.3
            )
            if ax is axes[0]:
                label(ax, 0.11, 0.98 - 0.08 * k, name, color, va="top")
        ax.axhline(0, color=GREY, lw=0.6)
        ax.set(xscale="log", ylim=(-0.3, 1.0))
        describe(ax, f"n = {n}, T = {T}, d = {d}", "scale of the start")
    axes[0].set_ylabel("rank correlation with the\nshare of runs that end there", fontsize=9)
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """With longer starts the score predicts less and the angle more; a shuffled order predicts nothing."""
    names, rows, exact = list(COLORS), [], exactly("yes or no")
    for (n, T, d), rank in zip(arrays["sizes"], arrays["rank"], strict=True):
        size, short, long = f"n = {n}, T = {T}, d = {d}", rank[0, :, 0], rank[-1, :, 0]
        score, angle, shuffled = (names.index(name) for name in ("score", "angle", "shuffled"))
        covers_zero = (rank[:, shuffled, 1] <= 0) & (rank[:, shuffled, 2] >= 0)
        for statement, holds in (
            ("from short starts the score leads", short[:3].argmax() == score),
            ("from long starts it says less than from short ones", long[score] < short[score]),
            ("from long starts the angle says more than from short ones", long[angle] > short[angle]),
            ("all intervals of the shuffled order hold zero", covers_zero.all()),
        ):
            rows.append(Check(f"{size}: {statement}", CONJECTURED, OWN, 1.0, holds, exact))
    return rows


OWN = "what starts near zero follows the first gradient, what starts far its own direction"
