"""Head and prompt together: two steps generalise; longer training tends to the program, with its threshold.

"Benign Overfitting in Single-Head Attention": gradient descent, and the max-margin classifier.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, label
from attsvm_lab import datasets
from attsvm_lab.claims.benign_overfitting import JOINT_LR, MANY, descended, joint
from attsvm_lab.figures.accuracy import Accuracy, counted, digits, exactly, sampled
from attsvm_lab.figures.figure import DERIVED, RUN, Arrays, Check, scales
from attsvm_lab.figures.papers import BENIGN as PAPER

SNR = (0.3, 0.48, 0.7, 0.95, 1.3, 1.9, 2.8, 4.0, 5.7)
RATIOS = (0.5, 0.8, 1.25, 2.0)
REFERENCE = {0.48: 0.85, 0.95: 1.0, 1.9: 1.0, 5.7: 0.89}
"""Test accuracy after two steps of an independent script, one draw."""
WEIGHTS = {"right": 0.59, "wrong": 0.04}
"""The script's mean attention on the signal after two steps at n = 200, d = 40,000, SNR √n = 2.12."""
SOURCE = "independent script, one draw"
THRESHOLD = float(np.sqrt(2 / (1 - MANY["flipped"])))


@PAPER.figure(
    "two-steps-and-after",
    "Two steps, and after",
    shows=(
        "Left: accuracy on fresh inputs after 2 and more steps of gradient descent on head and prompt, n = "
        "100, d = 11,000; all training labels are fitted. Dotted: the threshold of the max-margin program, "
        "√(2/(1 − η)) in SNR·√n. Below it training unlearns what two steps learnt; far above it steps of "
        "0.025 are too long. Right: the program itself over all selections, certified, n = 20, d = 4,000: "
        "share of right labels that select their signal, and accuracy on fresh inputs, against the signal "
        "in units of the threshold."
    ),
    notes="The paper's constants are not known. The threshold is ours; nobody had run the program.",
    sizes=scales(runs=(1, 5, 20), steps=(200, 2_000, 10_000), snr=((0.48, 0.95, 1.9, 5.7), SNR, SNR)),
    seconds=30,
)
def experiment(runs: int, steps: int, snr: tuple[float, ...]) -> Arrays:
    """Test accuracy (snr, runs, k) at steps (k,), and of the program (ratios, runs) with its selections."""
    recorded_steps = [2, 20, steps]
    descents = [[descended(seed, s, JOINT_LR, steps, recorded_steps) for seed in range(runs)] for s in snr]
    programs = [[joint(seed, ratio) for seed in range(runs)] for ratio in RATIOS]
    return {
        "snr": np.array(snr),
        "steps": np.array(recorded_steps),
        "test": np.array([[run["test"][1:] for run in row] for row in descents]),
        "right": np.array([[program.right for program in row] for row in programs]),
        "program": np.array([[program.test for program in row] for row in programs]),
        "certified": np.array([[program.best.certified for program in row] for row in programs]),
        "weight": np.array([_weights(seed) for seed in range(runs)]),
    }


def _weights(seed: int) -> list[float]:
    """Mean attention on the signal after two steps, of right and of wrong labels, n = 200."""
    tokens, v = datasets.signal_beside_noise(seed=seed, in_span=True)
    rule = att.gd(JOINT_LR)
    path = att.train(tokens, att.Linear(v), optimizer=rule, train_head=rule, steps=2, record=[2])
    along = tokens.keys[..., :2]
    right = np.where(along[..., 0].any(-1), 1, -1) == tokens.labels
    on_signal = path.attention[-1][along.any(-1)]
    return [float(on_signal[right].mean()), float(on_signal[~right].mean())]


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Descent on the left, the program on the right."""
    figure, ((left_ax, right_ax),) = grid(1, 2, 3.0)
    for k, (steps, color) in enumerate(zip(arrays["steps"], (BLUE, GREEN, ORANGE), strict=True)):
        curve = arrays["test"][..., k].mean(-1)
        left_ax.plot(arrays["snr"], curve, color=color, marker=".")
        label(left_ax, arrays["snr"][0], curve[0], f"{steps:,} steps ", color, ha="right", va="center")
    left_ax.axvline(THRESHOLD, color="black", lw=0.8, ls=":")
    left_ax.set(xscale="log", xlim=(arrays["snr"][0] / 3, arrays["snr"][-1] * 1.2), ylim=(0.4, 1.03))
    left_ax.set_xticks([0.5, 1, 2, 5], ["0.5", "1", "2", "5"])
    left_ax.minorticks_off()
    for name, color, text in (("program", ORANGE, "fresh inputs right"), ("right", GREY, "signal selected")):
        right_ax.plot(RATIOS, arrays[name].mean(-1), "o-", color=color)
        label(right_ax, RATIOS[0], arrays[name].mean(-1)[0] + 0.04, text, color)
    right_ax.axvline(1, color="black", lw=0.8, ls=":")
    right_ax.set(xscale="log", ylim=(-0.05, 1.08))
    right_ax.set_xticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS])
    right_ax.minorticks_off()
    describe(left_ax, "gradient descent on head and prompt", "SNR·√n", "test accuracy")
    describe(right_ax, "the max-margin program, R → ∞", "signal / threshold", "share")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The independent script, and the program on both sides of its threshold."""
    rows = []
    runs = arrays["test"].shape[1]
    short = "" if runs > 2 else "more runs: how they spread is not known"
    for snr, reference in REFERENCE.items():
        values = arrays["test"][list(arrays["snr"]).index(snr), :, 0]
        mean, quantity = float(values.mean()), f"SNR·√n = {snr}: test accuracy after two steps"
        accuracy = digits(2) + counted(mean, 1000 * runs, reference, 1000) + _run_spread(values)
        rows.append(Check(quantity, RUN, SOURCE, reference, mean, accuracy, short=short))
    for k, (name, reference) in enumerate(WEIGHTS.items()):
        values, quantity = arrays["weight"][:, k], f"attention on the signal after two steps, {name} labels"
        rows.append(
            Check(
                quantity, RUN, SOURCE, reference, values.mean(), digits(2) + _run_spread(values), short=short
            )
        )
    sides = {"below": np.array(RATIOS) < 1, "above": np.array(RATIOS) > 1}
    for side, cells in sides.items():
        quantity = f"{side} the threshold: right labels that select their signal"
        ours = float(arrays["right"][cells].mean())
        rows.append(Check(quantity, DERIVED, "counting", side == "above", ours, exactly("every input")))
    quantity = "share of programs certified over all selections"
    ours = float(arrays["certified"].mean())
    return [*rows, Check(quantity, DERIVED, "by construction", 1.0, ours, exactly("every program"))]


def _run_spread(values: np.ndarray) -> Accuracy:
    """The accuracy of one more run; without a spread where there is one run only."""
    return sampled(values, 1) if len(values) > 1 else Accuracy()
