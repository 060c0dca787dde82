"""Convergence past saturation: the limit seen to seven digits, beside the usual formula that stalls."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.figures.accuracy import log_digits, sampled, within
from attsvm.figures.figure import DERIVED, RUN, Arrays, Check, scales
from attsvm.figures.panels import band, describe, grid
from attsvm.figures.papers import OURS
from attsvm.figures.style import BLUE, GREY, ORANGE, label
from attsvm.figures.textbook import RATE, linear_head, textbook_descent


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
    kept = path.index > 0
    return {
        "steps": record,
        "ours": 1 - att.cosine(path.W[:, kept], solution.W),
        "usual": 1 - att.cosine(usual, solution.W),
        "norm_ours": path.norm()[:, kept],
        "norm_usual": att.frobenius.value(usual),
    }


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Median and quartiles of 1 − cosine against steps; norms beside it."""
    figure, ((left, right),) = grid(1, 2, 3.2)
    steps = arrays["steps"]
    for name, color, text in (("usual", ORANGE, "usual formula"), ("ours", BLUE, "relative to the winner")):
        for ax, each in ((left, arrays[name]), (right, arrays[f"norm_{name}"])):
            middle = band(ax, steps, each, color)
            ax.set(xscale="log", yscale="log")
            at, shift = PLACES[name, ax is left]
            k = min(int(at * len(steps)), len(steps) - 1)
            place = {"ha": "right", "va": "center", "textcoords": "offset points", "xytext": shift}
            label(ax, steps[k], middle[k], text, color, **place)
    half, most = len(steps) // 2, 3 * len(steps) // 4
    steps = steps[half:most]
    falling = 0.02 * np.median(arrays["ours"][:, half]) * (steps[0] / steps) ** 2
    left.loglog(steps, falling, ":", color=GREY)
    beside = {"ha": "right", "va": "top", "textcoords": "offset points", "xytext": (-4, 0)}
    label(left, steps[0], falling[0], "∝ 1/steps²", GREY, **beside)
    describe(left, "the direction: 1 − cos(W, $W^{mm}$)", STEPS, "1 − cosine, median and quartiles")
    describe(right, "the length: ‖W‖", STEPS, "Frobenius norm of W")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The error at the last step against an independent script, and the rate at which it falls."""
    steps = int(arrays["steps"][-1])
    what, rate = "exponent of the error, relative to the winner", within(0.15, SLOPE)
    slope = att.fit_rate(arrays["steps"], np.median(arrays["ours"], axis=0)).exponent
    found = [Check(what, DERIVED, "asymptotics of the run", -2.0, slope, rate)]
    for name, words, given in (("ours", "relative to the winner", 5.3e-7), ("usual", "usual formula", 0.13)):
        if steps == FULL:
            each, what = np.log10(arrays[name][:, -1]), f"log10(1 − cos) after {steps:,} steps, {words}"
            known = log_digits(given, 2) + sampled(each, 20, median=True)
            found.append(Check(what, RUN, SKETCH, np.log10(given), np.median(each), known))
    return found


PLACES = {
    ("ours", True): (0.5, (-6, -8)),
    ("usual", True): (1, (-6, 14)),
    ("ours", False): (1, (-14, -2)),
    ("usual", False): (1, (-4, -18)),
}
"""Where a curve is named, as a share of its length, and how many points away: clear of both at any scale."""

STEPS = "steps of normalised gradient descent"
FULL = 100_000
SKETCH = "independent script, 20 instances"
SLOPE = "W = steps · direction + a slowly growing offset: 1 − cosine falls like 1/steps² up to logarithms"
