"""Shares of benign, harmful and unfitted runs over signal and number of tokens: a recorded study.

Beyond "Benign Overfitting in Single-Head Attention", whose theory has two tokens.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas
from scipy.special import gammaln

from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, ORANGE, label
from attsvm_lab.figures.accuracy import within
from attsvm_lab.figures.figure import DERIVED, Arrays, Check
from attsvm_lab.figures.papers import BENIGN as PAPER
from attsvm_lab.figures.recorded import facts, recorded

RECORD = "benign_overfitting"
COLOURS = {2: BLUE, 4: GREEN, 8: ORANGE}
LONG, SHORT = 0.03, 0.003
N, WRONG = 30, 0.1
PANELS = (
    ("after two steps of 0.03", "early", LONG),
    ("after 500 steps of 0.03", "outcome", LONG),
    ("after 1,500 steps of 0.003", "outcome", SHORT),
)


@PAPER.figure(
    "benign-phases",
    "Benign, harmful, unfitted",
    shows=(
        "Share of runs that fit every label, a tenth of them wrong, and are right on 0.95 or more of fresh "
        "inputs, for 2, 4 and 8 tokens; dashed: share that misses a label; bands: 95 % intervals; n = 30, d "
        "= 3,000. Two steps generalise from a signal on that grows with the tokens like √T or a little "
        "faster. Long training needs what the max-margin program needs (dotted: share of draws in which "
        "both of its classes use their signals), nearly whatever T is, and loses strong signals only where "
        "steps are long."
    ),
    **facts(RECORD),
)
def experiment() -> Arrays:
    """Shares (snr, 3), value and interval, by outcome, number of tokens and step length; snr (k,)."""
    cells = recorded(RECORD)["cells"]
    arrays: Arrays = {"snr": np.array(sorted({cell["snr"] for cell in cells}))}
    for _, kind, lr in PANELS:
        for T in COLOURS:
            selected = sorted(
                (c for c in cells if c["T"] == T and c["lr"] == lr), key=lambda cell: cell["snr"]
            )
            for outcome in ("benign", "unfitted"):
                absent, quantity = (0.0, 0.0, 0.0), f"{kind} = {outcome}"
                arrays[_name(kind, outcome, T, lr)] = np.array(
                    [cell.get(quantity, absent) for cell in selected]
                )
    return arrays


def _name(kind: str, outcome: str, T: int, lr: float) -> str:
    return f"{kind} {outcome} {T} {lr:g}"


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """After two steps, after long ones, after short ones."""
    figure, (axes,) = grid(1, 3, 2.8)
    for ax, (title, kind, lr) in zip(axes, PANELS, strict=True):
        for T, color in COLOURS.items():
            value, low, high = arrays[_name(kind, "benign", T, lr)].T
            ax.fill_between(arrays["snr"], low, high, color=color, alpha=0.25, lw=0)
            ax.plot(arrays["snr"], value, color=color)
            ax.plot(arrays["snr"], arrays[_name(kind, "unfitted", T, lr)][:, 0], color=color, ls="--", lw=0.8)
        if kind == "outcome":
            fine = np.geomspace(arrays["snr"][0], arrays["snr"][-1], 200)
            ax.plot(fine, program(fine), color="black", lw=0.8, ls=":")
        ax.set(xscale="log", ylim=(-0.02, 1.03))
        ax.set_xticks([0.25, 0.5, 1, 2, 4, 8], ["¼", "½", "1", "2", "4", "8"])
        ax.minorticks_off()
        describe(ax, title, "SNR·√n")
    describe(axes[0], PANELS[0][0], "SNR·√n", "share of runs")
    for k, (T, color) in enumerate(COLOURS.items()):
        label(axes[0], 0.27, 0.9 - 0.1 * k, f"T = {T}", color)
    return figure


def program(snr: Float) -> Float:
    """Share of draws in which both classes use their signals in the max-margin program: SNR² n_c > 1."""
    plus, minus = np.indices((N + 1, N + 1))
    wrong = np.maximum(N - plus - minus, 0)
    log_count = gammaln(N + 1) - gammaln(plus + 1) - gammaln(minus + 1) - gammaln(wrong + 1)
    probability = np.exp(log_count + (plus + minus) * np.log((1 - WRONG) / 2) + wrong * np.log(WRONG))
    least = np.where(plus + minus <= N, np.minimum(plus, minus), -1)
    return np.array([probability[least > N / ratio**2].sum() for ratio in snr])


def half_crossing(snr: Float, share: Float) -> float:
    """The SNR at which a rising share first passes one half, by linear interpolation in log SNR."""
    k = int((share >= 0.5).argmax())
    return float(np.exp(np.interp(0.5, share[k - 1 : k + 1], np.log(snr[k - 1 : k + 1]))))


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The SNR at which half of the runs are benign: beside the program's threshold, and beside √T."""
    tolerance = within(0.2, "the program to first order in n/d; descent after finite time")
    fine = np.geomspace(1, 4, 2000)
    expected, rows = half_crossing(fine, program(fine)), []
    for lr, length in ((LONG, "long"), (SHORT, "short")):
        ours = half_crossing(arrays["snr"], arrays[_name("outcome", "benign", 2, lr)][:, 0])
        quantity = f"T = 2, {length} steps: SNR·√n at which half of the runs are benign"
        rows.append(
            Check(quantity, DERIVED, "the program, SNR² n_c > 1 in both classes", expected, ours, tolerance)
        )
    first = [half_crossing(arrays["snr"], arrays[_name("early", "benign", T, LONG)][:, 0]) for T in COLOURS]
    exponent = float(np.polyfit(np.log(list(COLOURS)), np.log(first), 1)[0])
    quantity, order = "after two steps: exponent of that SNR in T", within(0.25, "an order, from T = 2, 4, 8")
    return [*rows, Check(quantity, DERIVED, "even attention: signal 1/T, noise √T/T", 0.5, exponent, order)]
