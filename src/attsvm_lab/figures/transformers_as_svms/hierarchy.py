"""A hierarchy of SVMs: each layer tends to the program of the queries that the layers above read.

"Transformers as Support Vector Machines" names several layers as an open problem; the programs are ours.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.plotting.layout import band, describe, grid
from attsvm.plotting.style import GREY, colours, label
from attsvm_lab.claims.hierarchy import least_margins, margin_ratios, read_queries
from attsvm_lab.claims.stacked_attention import forward, train
from attsvm_lab.figures.accuracy import within
from attsvm_lab.figures.figure import CONJECTURED, DERIVED, Arrays, Check, scales
from attsvm_lab.figures.papers import TRANSFORMERS

STACKS = {"two": (2, False), "three": (3, True)}
"""Depth, and whether outputs are added to a residual stream."""
TITLES = {"two": "two layers", "three": "three layers, residual stream"}
SLOW = within(0.06, "what the start leaves at lengths of 100 to 700: the first layer is the slowest")
FAR = 0.5
"""Margin ratio that the program of all queries does not reach."""


@TRANSFORMERS.figure(
    "hierarchy",
    "A hierarchy of SVMs",
    shows=(
        "Attention layers trained together, every token a query of all layers but the last: each layer takes "
        "the best margin of the queries whose outputs the layers above read, not of all queries (dashed). "
        "All layers share one least margin, so that a layer is as long as its program is hard."
    ),
    notes=(
        "The paper names several layers as an open problem and has no such figure. Attention above 0.001 "
        "counts as read; the program of layer 2 separates the outputs that it reads from the others."
    ),
    sizes=scales(draws=(12, 40, 200), steps=(800, 1_000, 4_000)),
    seconds=12,
)
def experiment(draws: int, steps: int) -> Arrays:
    """Margin ratios (draws, k, L) of read queries and of all, and the layers' least margins at the end."""
    tokens, v = att.datasets.sphere(4, 4, 8, seed=range(draws))
    record = np.unique(np.geomspace(10, steps, 10).round().astype(int))
    arrays: Arrays = {"steps": record}
    for name, (depth, residual) in STACKS.items():
        start = 0.1 * np.random.default_rng(0).standard_normal((draws, depth, 8, 8))
        weights = train(tokens, v, start, record.tolist(), residual=residual)
        stages = [(W, forward(tokens, W, residual)) for W in np.moveaxis(weights, 1, 0)]
        read = [read_queries(layers, residual) for _, layers in stages]
        every = [np.ones_like(queries) for queries in read[-1]]
        pairs = list(zip(stages, read, strict=True))
        arrays[f"ratio_{name}"] = np.stack([margin_ratios(*stage, one) for stage, one in pairs], axis=1)
        arrays[f"all_{name}"] = np.stack([margin_ratios(*stage, every) for stage, _ in pairs], axis=1)
        least = least_margins(*stages[-1], read[-1])
        arrays[f"least_{name}"] = least[np.isfinite(least).all(-1)]  # the others have a layer without rows
    return arrays


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Margin ratios by layer for both stacks; then the least margins of two layers against each other."""
    figure, ((two, three, right),) = grid(1, 3, 3.0)
    for ax, name in ((two, "two"), (three, "three")):
        _ratios(ax, arrays, name)
    two.set_ylabel("margin ratio, median and middle half", fontsize=9)
    first, second = arrays["least_two"].T
    top = 1.05 * max(first.max(), second.max())
    right.plot([0, top], [0, top], color=GREY, lw=1)
    right.plot(first, second, ".", color=colours(2)[0], ms=5)
    right.set(xlim=(0, top), ylim=(0, top))
    describe(right, "two layers: least margins", "layer 1", "layer 2")
    return figure


def _ratios(ax: Axes, arrays: Arrays, name: str) -> None:
    depth = STACKS[name][0]
    for k, color in enumerate(colours(depth)):
        band(ax, arrays["steps"], arrays[f"ratio_{name}"][..., k], color, lw=1.5)
        label(ax, 0.97, 0.58 - 0.08 * k, f"layer {k + 1}", color, xycoords="axes fraction", ha="right")
    ax.plot(arrays["steps"], np.median(arrays[f"all_{name}"][..., 0], axis=0), "--", color=GREY, lw=1)
    label(ax, 0.97, 0.66, "layer 1, all queries", GREY, xycoords="axes fraction", ha="right")
    ax.set(xscale="log", ylim=(-0.1, 1.05))
    describe(ax, TITLES[name], "normalised steps of length one")


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Every layer at its own program, the first not at that of all queries, and one least margin for both."""
    rows = []
    for name, (depth, _) in STACKS.items():
        ends = np.median(arrays[f"ratio_{name}"][:, -1], axis=0)
        for k in range(depth):
            quantity = f"{TITLES[name]}: median margin ratio of layer {k + 1}"
            rows.append(Check(quantity, CONJECTURED, PICTURE, 1.0, ends[k], SLOW))
        far = np.median(arrays[f"all_{name}"][:, -1, 0])
        quantity = f"{TITLES[name]}: the same of layer 1 for all queries"
        rows.append(Check(quantity, CONJECTURED, UNREAD, 0.0, far, within(FAR, "far from one")))
    least = arrays["least_two"]
    quantity = "two layers: median ratio of the least margins"
    one = within(0.03, "margins of 300 to 500 differ by constants")
    rows.append(Check(quantity, DERIVED, SUM, 1.0, np.median(least[:, 0] / least[:, 1]), one))
    return rows


PICTURE = "the paper's picture of several layers, with programs of ours"
UNREAD = "queries that no layer reads are not trained to select"
SUM = "one step over all layers solves the sum of their programs"
