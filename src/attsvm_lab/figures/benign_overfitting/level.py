"""The signal strength that generalisation needs in d dimensions: a level curve of the test loss.

"Benign Overfitting in Token Selection of Attention Mechanism", the heat map of losses over d and ‖μ‖.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, ORANGE, label
from attsvm_lab.claims.benign_overfitting import LR, STEPS, trained
from attsvm_lab.figures.accuracy import Accuracy, axis, sampled, within
from attsvm_lab.figures.figure import CONJECTURED, PLOT, Arrays, Check, scales
from attsvm_lab.figures.papers import BENIGN as PAPER

PUBLISHED = {500: 9.8, 1000: 12.4, 2000: 15.8, 3000: 19.7, 5000: 21.5}
"""‖μ‖ at which the published test loss is one half, by d."""
LEVEL, FASTER = 0.5, 12
CELL = 1.25
"""Half of a cell of the published map, in ‖μ‖."""
WHY = "the published curve has 0.36; at d of some thousands the order is not reached"
SOURCE = "Sakamoto and Sato 2025, heat map"


@PAPER.figure(
    "benign-level",
    "How strong a signal must be",
    shows=(
        "Test loss after 1,000 steps against the signal, by dimension (left), and the signal at which it is "
        "one half (right), ours and as read off the published heat map. The theory's order is d^(1/4)."
    ),
    notes=(
        "Steps are twelve times as long and as many times fewer. The heat map has cells of 125 in d and 2.5 "
        "in ‖μ‖, one run each."
    ),
    sizes=scales(
        runs=(1, 4, 20),
        around=(
            (0.75, 1.0, 1.3),
            (0.6, 0.75, 0.9, 1.05, 1.25, 1.5),
            (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0),
        ),
    ),
    seconds=10,
)
def experiment(runs: int, around: tuple[float, ...]) -> Arrays:
    """Test loss (d, signals, runs) at multiples of the published level, and those signals (d, signals)."""
    signals = np.array([[published * factor for factor in around] for published in PUBLISHED.values()])
    cases = [
        (d, float(signal), seed)
        for d, row in zip(PUBLISHED, signals, strict=True)
        for signal in row
        for seed in range(runs)
    ]
    fits = trained(cases, STEPS // FASTER, lr=FASTER * LR, record=[1])
    return {"signal": signals, "loss": fits.test_loss[:, -1].reshape(*signals.shape, runs)}


def crossing(signal: Float, loss: Float) -> float:
    """The signal at which a curve of losses meets the level, by linear interpolation in log ‖μ‖."""
    falling = np.minimum.accumulate(loss)
    return float(np.exp(np.interp(-LEVEL, -falling, np.log(signal))))


def _crossings(arrays: Arrays) -> Float:
    """The crossing of every run (d, runs)."""
    pairs = zip(arrays["signal"], arrays["loss"], strict=True)
    return np.array([[crossing(signal, curve) for curve in loss.T] for signal, loss in pairs])


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Curves on the left, their crossings on the right."""
    figure, ((left_ax, right_ax),) = grid(1, 2, 3.0)
    d, ours = np.array(list(PUBLISHED)), _crossings(arrays).mean(-1)
    for k, (size, signal) in enumerate(zip(d, arrays["signal"], strict=True)):
        left_ax.plot(signal, arrays["loss"][k].mean(-1), color=BLUE, alpha=0.3 + 0.15 * k, marker=".")
        label(left_ax, signal[-1], arrays["loss"][k, -1].mean(), f"{size:,}", BLUE)
    left_ax.axhline(LEVEL, color="black", lw=0.8, ls=":")
    left_ax.set(xscale="log")
    left_ax.set_xticks([10, 15, 20, 30], ["10", "15", "20", "30"])
    left_ax.minorticks_off()
    right_ax.plot(d, list(PUBLISHED.values()), "o", color=ORANGE)
    right_ax.plot(d, ours, "o-", color=BLUE)
    right_ax.plot(d, ours[2] * (d / d[2]) ** 0.25, color="black", lw=0.8, ls=":")
    label(right_ax, 3000, PUBLISHED[3000], "published ", ORANGE, ha="right", va="bottom")
    label(right_ax, d[-1], ours[-1], "ours ", BLUE, ha="right", va="bottom")
    label(right_ax, d[-1], ours[2] * (d[-1] / d[2]) ** 0.25, "$d^{1/4}$ ", "black", ha="right", va="top")
    right_ax.set(xscale="log", yscale="log", xlim=(300, 6000))
    right_ax.set_xticks([500, 1000, 2000, 5000], ["500", "1,000", "2,000", "5,000"])
    right_ax.set_yticks([10, 15, 20], ["10", "15", "20"])
    right_ax.minorticks_off()
    describe(left_ax, "test loss, by dimension d", "signal $\\Vert\\mu\\Vert$", "loss after 1,000 steps")
    describe(right_ax, "signal at which it is one half", "dimension d", "$\\Vert\\mu\\Vert$")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The level curve point by point, and its exponent."""
    ours = _crossings(arrays)
    rows = []
    for k, (d, published) in enumerate(PUBLISHED.items()):
        levels, means = ours[k], ours.mean(-1)
        rescaled = np.delete(
            ours * (means[k] / means)[:, None], k, axis=0
        )  # runs of all d have the same relative spread
        accuracy = axis(5, 100) + Accuracy(CELL, words="cells of 2.5")
        accuracy = accuracy + sampled(levels, 1, alike=list(rescaled)) if len(levels) > 1 else accuracy
        rows.append(Check(f"‖μ‖ at test loss ½, d = {d:,}", PLOT, SOURCE, published, levels.mean(), accuracy))
    exponent = float(np.polyfit(np.log(list(PUBLISHED)), np.log(ours.mean(-1)), 1)[0])
    quantity, source = "exponent of that ‖μ‖ in d", "the theory's order, SNR ~ d^(−1/4)"
    order = within(0.05, "an order, at finite d")
    return [*rows, Check(quantity, CONJECTURED, source, 0.25, exponent, order, WHY)]
