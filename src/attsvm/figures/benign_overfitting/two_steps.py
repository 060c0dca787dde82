"""Head and prompt together: two steps generalise, longer training goes to the program, which has a threshold.

"Benign Overfitting in Single-Head Attention": gradient descent, and the max-margin classifier.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.claims.benign_overfitting_joint import LR, MANY, descended, joint
from attsvm.figures.accuracy import Accuracy, counted, digits, exactly, sampled
from attsvm.figures.figure import DERIVED, RUN, Arrays, Check, scales
from attsvm.figures.panels import describe, grid
from attsvm.figures.papers import BENIGN as PAPER
from attsvm.figures.style import BLUE, GREEN, GREY, ORANGE, label

SNR = (0.3, 0.48, 0.7, 0.95, 1.3, 1.9, 2.8, 4.0, 5.7)
RATIOS = (0.5, 0.8, 1.25, 2.0)
GIVEN = {0.48: 0.85, 0.95: 1.0, 1.9: 1.0, 5.7: 0.89}
"""Test accuracy after two steps of an independent script, one draw."""
WEIGHTS = {"right": 0.59, "wrong": 0.04}
"""Its mean attention on the signal after two steps at n = 200, d = 40,000, SNR √n = 2.12."""
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
    """Test accuracy (snr, runs, k) at steps (k,); of the program (ratios, runs): what it says."""
    kept = [2, 20, steps]
    found = [[descended(seed, one, LR, steps, kept) for seed in range(runs)] for one in snr]
    solved = [[joint(seed, ratio) for seed in range(runs)] for ratio in RATIOS]
    return {
        "snr": np.array(snr),
        "steps": np.array(kept),
        "test": np.array([[run["test"][1:] for run in row] for row in found]),
        "right": np.array([[one.right for one in row] for row in solved]),
        "program": np.array([[one.test for one in row] for row in solved]),
        "certified": np.array([[one.best.certified for one in row] for row in solved]),
        "weight": np.array([_weights(seed) for seed in range(runs)]),
    }


def _weights(seed: int) -> list[float]:
    """Mean attention on the signal after two steps, of right and of wrong labels, n = 200."""
    tokens, v = att.datasets.signal_beside_noise(seed=seed, in_span=True)
    rule = att.gd(LR)
    path = att.train(tokens, att.Linear(v), optimizer=rule, train_head=rule, steps=2, record=[2])
    along = tokens.keys[..., :2]
    right = np.where(along[..., 0].any(-1), 1, -1) == tokens.labels
    on_signal = path.attention[-1][along.any(-1)]
    return [float(on_signal[right].mean()), float(on_signal[~right].mean())]


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Descent on the left, the program on the right."""
    figure, ((left, right),) = grid(1, 2, 3.0)
    for k, (steps, color) in enumerate(zip(arrays["steps"], (BLUE, GREEN, ORANGE), strict=True)):
        curve = arrays["test"][..., k].mean(-1)
        left.plot(arrays["snr"], curve, color=color, marker=".")
        label(left, arrays["snr"][0], curve[0], f"{steps:,} steps ", color, ha="right", va="center")
    left.axvline(THRESHOLD, color="black", lw=0.8, ls=":")
    left.set(xscale="log", xlim=(arrays["snr"][0] / 3, arrays["snr"][-1] * 1.2), ylim=(0.4, 1.03))
    left.set_xticks([0.5, 1, 2, 5], ["0.5", "1", "2", "5"])
    left.minorticks_off()
    for name, color, what in (("program", ORANGE, "fresh inputs right"), ("right", GREY, "signal selected")):
        right.plot(RATIOS, arrays[name].mean(-1), "o-", color=color)
        label(right, RATIOS[0], arrays[name].mean(-1)[0] + 0.04, what, color)
    right.axvline(1, color="black", lw=0.8, ls=":")
    right.set(xscale="log", ylim=(-0.05, 1.08))
    right.set_xticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS])
    right.minorticks_off()
    describe(left, "gradient descent on head and prompt", "SNR·√n", "test accuracy")
    describe(right, "the max-margin program, R → ∞", "signal / threshold", "share")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The independent script, and the program on both sides of its threshold."""
    found = []
    runs = arrays["test"].shape[1]
    few = "" if runs > 2 else "more runs: how they spread is not known"
    for snr, given in GIVEN.items():
        each = arrays["test"][list(arrays["snr"]).index(snr), :, 0]
        mean, what = float(each.mean()), f"SNR·√n = {snr}: test accuracy after two steps"
        known = digits(2) + counted(mean, 1000 * runs, given, 1000) + _between(each)
        found.append(Check(what, RUN, SOURCE, given, mean, known, short=few))
    for k, (name, given) in enumerate(WEIGHTS.items()):
        each, what = arrays["weight"][:, k], f"attention on the signal after two steps, {name} labels"
        found.append(Check(what, RUN, SOURCE, given, each.mean(), digits(2) + _between(each), short=few))
    sides = {"below": np.array(RATIOS) < 1, "above": np.array(RATIOS) > 1}
    for side, here in sides.items():
        what = f"{side} the threshold: right labels that select their signal"
        ours = float(arrays["right"][here].mean())
        found.append(Check(what, DERIVED, "counting", side == "above", ours, exactly("every input")))
    what = "share of programs certified over all selections"
    ours = float(arrays["certified"].mean())
    return [*found, Check(what, DERIVED, "by construction", 1.0, ours, exactly("every program"))]


def _between(each: np.ndarray) -> Accuracy:
    """What one more run would differ by."""
    return sampled(each, 1) if len(each) > 1 else Accuracy()
