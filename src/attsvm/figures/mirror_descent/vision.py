"""A ViT on CIFAR-10: mirror descent with p = 1.1 beside Adam, as recorded."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

from attsvm.figures.accuracy import axis, sampled
from attsvm.figures.figure import PLOT, Arrays, Check
from attsvm.figures.panels import describe, grid
from attsvm.figures.papers import MIRROR
from attsvm.figures.recorded import facts, recorded
from attsvm.figures.style import BLUE, ORANGE

RULES = {"p = 1.1": ("vision-mirror1.1", BLUE), "Adam": ("vision-adam", ORANGE)}
FIRST = {"p = 1.1": 0.26, "Adam": 0.46}
"""Published test accuracy after epoch 1, read off the curve."""
BIN = {"p = 1.1": 235_000, "Adam": 110_000}
"""Published number of key weights below 0.005, read off the histogram after 1,000 epochs."""
KINDS = ("query", "key", "value")
LATER = {"p = 1.1": (150, 0.79), "Adam": (50, 0.79)}


SHOWS = (
    "The published ViT (48 pixels, patches of 4, width 512, depth 6) with the published steps, 16 and 17 "
    "epochs, one seed. Both start where the published curves do; Adam is far ahead of mirror descent with "
    "p = 1.1."
)
NOTES = (
    "Three minutes of one GPU, shared with another training: 16 epochs of 1,000. What the paper shows at the "
    "end, equal accuracy and sparser key weights, is beyond them."
)


@MIRROR.figure(
    "vision",
    "A vision transformer by mirror descent",
    shows=SHOWS,
    notes=NOTES,
    **facts("transformers"),
)
def experiment() -> Arrays:
    """Test accuracy by epoch and weights at the end, from the record."""
    runs = recorded("transformers")["runs"]
    arrays: Arrays = {}
    for rule, (name, _) in RULES.items():
        arrays[f"test {rule}"] = np.array(runs[name]["test_accuracy"])
        arrays[f"epoch {rule}"] = np.array(runs[name]["epoch"])
        for kind in KINDS:
            arrays[f"{kind} {rule}"] = np.array(runs[name]["last"][f"histogram_{kind}"])
    return arrays


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """The curves with the published points; histograms of query, key and value weights."""
    figure, ((left, *above), below) = grid(2, 2, 5.0)
    axes = dict(zip(KINDS, (*above, *below), strict=True))
    for rule, (_, color) in RULES.items():
        left.plot(arrays[f"epoch {rule}"], arrays[f"test {rule}"], color=color, label=rule)
        left.plot([1, LATER[rule][0]], [FIRST[rule], LATER[rule][1]], "o", mfc="none", mec=color, ms=6)
        for kind, ax in axes.items():
            counts = arrays[f"{kind} {rule}"] / 1000
            ax.step(0.005 * np.arange(len(counts)), counts, where="post", color=color, lw=1)
        axes["key"].plot(0.0025, BIN[rule] / 1000, "o", mfc="none", mec=color, ms=6)
    left.set_xscale("log")
    left.legend(fontsize=8, frameon=False)
    describe(left, "circles: published", "epochs", "test accuracy")
    for kind, ax in axes.items():
        more = " (circles: published, 1,000 epochs)" if kind == "key" else ""
        describe(ax, f"{kind} weights{more}", "|w|", "thousands per bin of 0.005")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """First epochs, and key weights near zero."""
    found = []
    for rule in RULES:
        test, small = float(arrays[f"test {rule}"][0]), float(arrays[f"key {rule}"][0])
        epochs = f"{arrays[f'epoch {rule}'][-1]} of 1,000 epochs"
        once = sampled([test], 1)
        first, bins = f"{rule}: test accuracy after epoch 1", f"{rule}: key weights below 0.005"
        found += [
            Check(first, PLOT, READ, FIRST[rule], test, axis(0.2, 0.85) + once, short=once.words),
            Check(bins, PLOT, READ, BIN[rule], small, axis(0, 250_000), EARLY, short=epochs),
        ]
    return found


READ = "read off the published plot"
EARLY = "published after 1,000 epochs; after 16 the histogram is still that of the initial weights"
