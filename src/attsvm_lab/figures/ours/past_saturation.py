"""Convergence past saturation: the limit to seven digits, beside the usual formula, which stalls."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.plotting.layout import band, describe, grid
from attsvm.plotting.style import BLUE, GREY, ORANGE, label
from attsvm_lab import programs
from attsvm_lab.figures.accuracy import log_digits, sampled, within
from attsvm_lab.figures.figure import DERIVED, RUN, Arrays, Check, scales
from attsvm_lab.figures.papers import OURS
from attsvm_lab.figures.textbook import RATE, linear_head, textbook_descent


@OURS.figure(
    "past-saturation",
    "Convergence past saturation",
    shows=(
        "The usual softmax gradient cancels at ‖W‖ ≈ 120 and training drifts away on rounding noise; "
        "relative to the winning token it goes on, and 1 − cosine to the certified limit falls like "
        "1/steps²."
    ),
    sizes=scales(runs=(5, 8, 100), steps=(10_000, 100_000, 100_000)),
    seconds=17,
)
def experiment(runs: int, steps: int) -> Arrays:
    """1 − cosine to the certified program of the attended tokens, (runs, k), for both formulas."""
    tokens, v = att.datasets.sphere(6, 8, 10, seed=range(runs))
    record = np.unique(np.geomspace(10, steps, 60).astype(int))
    rule = att.steepest(att.frobenius, RATE)
    path = att.train(tokens, att.Linear(v), optimizer=rule, steps=steps, record=record.tolist())
    solution = att.max_margin(tokens, path.selected)
    start = np.zeros((runs, tokens.d, tokens.e))
    usual = textbook_descent(tokens, linear_head(tokens, v), (start,), record)
    drawn = path.index > 0
    return {
        "steps": record,
        "ours": 1 - att.cosine(path.W[:, drawn], solution.W),
        "usual": 1 - att.cosine(usual, solution.W),
        "norm_ours": path.norm()[:, drawn],
        "norm_usual": att.frobenius.value(usual),
    }


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Median and quartiles of 1 − cosine against steps; norms beside it."""
    figure, ((direction, length),) = grid(1, 2, 3.2)
    steps = arrays["steps"]
    for name, color, text in (("usual", ORANGE, "usual formula"), ("ours", BLUE, "relative to the winner")):
        for ax, values in ((direction, arrays[name]), (length, arrays[f"norm_{name}"])):
            middle = band(ax, steps, values, color)
            ax.set(xscale="log", yscale="log")
            at, shift = PLACES[name, ax is direction]
            k = min(int(at * len(steps)), len(steps) - 1)
            place = {"ha": "right", "va": "center", "textcoords": "offset points", "xytext": shift}
            label(ax, steps[k], middle[k], text, color, **place)
    middle_record, most = len(steps) // 2, 3 * len(steps) // 4
    steps = steps[middle_record:most]
    falling = 0.02 * np.median(arrays["ours"][:, middle_record]) * (steps[0] / steps) ** 2
    direction.loglog(steps, falling, ":", color=GREY)
    offset = {"ha": "right", "va": "top", "textcoords": "offset points", "xytext": (-4, 0)}
    label(direction, steps[0], falling[0], "∝ 1/steps²", GREY, **offset)
    describe(direction, "the direction: 1 − cos(W, $W^{mm}$)", STEPS, "1 − cosine, median and quartiles")
    describe(length, "the length: ‖W‖", STEPS, "Frobenius norm of W")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The error at the last step against an independent script, and the rate at which it falls."""
    steps = int(arrays["steps"][-1])
    quantity, rate = "exponent of the error, relative to the winner", within(0.15, SLOPE)
    slope = programs.fit_rate(arrays["steps"], np.median(arrays["ours"], axis=0)).exponent
    rows = [Check(quantity, DERIVED, "asymptotics of the run", -2.0, slope, rate)]
    for name, formula, reference in (
        ("ours", "relative to the winner", 5.3e-7),
        ("usual", "usual formula", 0.13),
    ):
        if steps == FULL:
            values = np.log10(arrays[name][:, -1])
            quantity = f"log10(1 − cos) after {steps:,} steps, {formula}"
            accuracy = log_digits(reference, 2) + sampled(values, 20, median=True)
            rows.append(Check(quantity, RUN, SKETCH, np.log10(reference), np.median(values), accuracy))
    return rows


PLACES = {
    ("ours", True): (0.5, (-6, -8)),
    ("usual", True): (1, (-6, 14)),
    ("ours", False): (1, (-14, -2)),
    ("usual", False): (1, (-4, -18)),
}
"""Position of a curve's name, as a share of its length, and its offset in points: free at every scale."""

STEPS = "steps of normalised gradient descent"
FULL = 100_000
SKETCH = "independent script, 20 instances"
SLOPE = "W = steps · direction + a slowly growing offset: 1 − cosine falls like 1/steps² up to logarithms"
