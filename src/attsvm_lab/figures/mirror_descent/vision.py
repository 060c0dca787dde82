"""A ViT on CIFAR-10: mirror descent with p = 1.1 beside Adam, as recorded."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, ORANGE
from attsvm_lab.figures.accuracy import axis, sampled
from attsvm_lab.figures.figure import PLOT, Arrays, Check
from attsvm_lab.figures.papers import MIRROR
from attsvm_lab.figures.recorded import facts, recorded

RULES = {"p = 1.1": ("vision-mirror1.1", BLUE), "Adam": ("vision-adam", ORANGE)}
FIRST = {"p = 1.1": 0.26, "Adam": 0.46}
"""The published test accuracy after epoch 1, read off the curve."""
BIN = {"p = 1.1": 235_000, "Adam": 110_000}
"""Published number of key weights below 0.005, read off the histogram after 1,000 epochs."""
KINDS = ("query", "key", "value")
LATER = {"p = 1.1": (150, 0.79), "Adam": (50, 0.79)}
"""Published epoch and test accuracy, read off the curve."""
MET = 200
"""Epochs from which the published curves coincide."""


SHOWS = (
    "The published ViT (48 pixels, patches of 4, width 512, depth 6) with the published steps, 200 epochs, "
    "one seed. Both curves go near the published points, and after 200 epochs they have met. Of its query, "
    "key and value weights p = 1.1 then has more near zero than at the start, Adam fewer, and Adam has "
    "about three times as many large ones."
)
NOTES = (
    "Sixteen minutes of one GPU for both. The published histograms are of 1,000 epochs and further apart. "
    "One seed beside one published trial: no number is called equal or different."
)


@MIRROR.figure(
    "vision", "A vision transformer by mirror descent", shows=SHOWS, notes=NOTES, **facts("transformers")
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
    figure, ((curves, *above), below) = grid(2, 2, 5.0)
    axes = dict(zip(KINDS, (*above, *below), strict=True))
    for rule, (_, color) in RULES.items():
        curves.plot(arrays[f"epoch {rule}"], arrays[f"test {rule}"], color=color, label=rule)
        curves.plot([1, LATER[rule][0]], [FIRST[rule], LATER[rule][1]], "o", mfc="none", mec=color, ms=6)
        for kind, ax in axes.items():
            counts = arrays[f"{kind} {rule}"] / 1000
            ax.step(0.005 * np.arange(len(counts)), counts, where="post", color=color, lw=1)
        axes["key"].plot(0.0025, BIN[rule] / 1000, "o", mfc="none", mec=color, ms=6)
    curves.set_xscale("log")
    curves.legend(fontsize=8, frameon=False)
    describe(curves, "circles: published", "epochs", "test accuracy")
    for kind, ax in axes.items():
        note = " (circles: published, 1,000 epochs)" if kind == "key" else ""
        describe(ax, f"{kind} weights{note}", "|w|", "thousands per bin of 0.005")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Points of the curves, the epoch at which they meet, and key weights near zero."""
    rows, curves = [], {}
    for rule in RULES:
        epochs = arrays[f"epoch {rule}"]
        curves[rule] = dict(zip(epochs.tolist(), arrays[f"test {rule}"].tolist(), strict=True))
        for epoch, published in ((1, FIRST[rule]), LATER[rule]):
            if epoch in curves[rule]:
                rows.append(
                    _point(f"{rule}: test accuracy after epoch {epoch}", published, curves[rule][epoch])
                )
        bins, small = f"{rule}: key weights below 0.005", float(arrays[f"key {rule}"][0])
        short = f"{epochs[-1]} of 1,000 epochs"
        rows.append(Check(bins, PLOT, READ, BIN[rule], small, axis(0, 250_000), EARLY, short=short))
    if all(MET in curve for curve in curves.values()):
        gap = curves["Adam"][MET] - curves["p = 1.1"][MET]
        rows.append(_point(f"Adam less p = 1.1: test accuracy after epoch {MET}", 0.0, gap))
    return rows


def _point(quantity: str, published: float, ours: float) -> Check:
    single = sampled([ours], 1)
    return Check(quantity, PLOT, READ, published, ours, axis(0.235, 0.85) + single, short=single.words)


READ = "read off the published plot"
EARLY = "published after 1,000 epochs"
