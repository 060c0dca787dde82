"""Three regimes of signal and noise: accuracy and loss on the training labels and on fresh inputs.

"Benign Overfitting in Token Selection of Attention Mechanism", Figure on accuracies and losses.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

from attsvm.numbers import Float
from attsvm.plotting.layout import band, describe, grid, label_end
from attsvm.plotting.style import BLUE, GREEN, ORANGE, PURPLE
from attsvm_lab.claims.benign_overfitting import (
    BENIGN,
    BETWEEN,
    FRESH,
    HARMFUL,
    IGNORED,
    LR,
    RIGHT,
    STEPS,
    WRONG,
    N,
    trained,
)
from attsvm_lab.figures.accuracy import counted, digits, within
from attsvm_lab.figures.figure import DERIVED, PRINTED, Arrays, Check, scales
from attsvm_lab.figures.papers import BENIGN as PAPER

SETTINGS = {
    "harmful": (HARMFUL, ORANGE),
    "benign": (BENIGN, BLUE),
    "between": (BETWEEN, PURPLE),
    "ignored": (IGNORED, GREEN),
}
"""d and ‖μ‖, and the colour."""
PUBLISHED = {
    ("benign", "train"): (1.0, 3),
    ("benign", "test"): (0.996, 3),
    ("harmful", "train"): (1.0, 3),
    ("harmful", "test"): (0.867, 3),
    ("between", "train"): (0.9, 2),
    ("between", "test"): (1.0, 3),
}
"""Accuracies of one run after 1,000 steps, and their decimals."""
FASTER = 4
SHARED = "the same, with ten training inputs among the test inputs, as published"
SOURCE = "Sakamoto and Sato 2025, the runs of their code"


@PAPER.figure(
    "benign-regimes",
    "Harmful, benign, ignored",
    shows=(
        "A fifth of the labels is wrong. With a weak signal training fits them and learns nothing (orange); "
        "with a moderate one it fits them and generalises, later (blue); a strong one ignores them "
        "(green), for a while (purple). Dotted: the losses of attention on the tokens of each regime. "
        "Lines: medians; bands: the middle half."
    ),
    notes=(
        "Steps are four times as long as published and a quarter as many: losses at equal time differ by "
        "less than 1e-3. The published runs share one seed between training and test data, so that ten of "
        "their 1,000 test inputs are training inputs, two of them with the wrong label: at most 0.002 of "
        "their accuracy. Ours are fresh."
    ),
    sizes=scales(runs=(3, 10, 50)),
    seconds=20,
)
def experiment(runs: int) -> Arrays:
    """Accuracies and losses of training and test (runs, k) by setting, and published steps (k,)."""
    record = np.unique(np.geomspace(1, STEPS // FASTER, 24).astype(int)).tolist()
    arrays: Arrays = {}
    for name, (setting, _) in SETTINGS.items():
        cases = [(*setting, seed) for seed in range(runs)]
        fits = trained(cases, STEPS // FASTER, lr=FASTER * LR, record=record)
        arrays |= {f"train_{name}": fits.train, f"test_{name}": fits.test}
        arrays |= {f"loss_{name}": fits.loss, f"test_loss_{name}": fits.test_loss}
    return arrays | {"steps": FASTER * fits.steps}


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Accuracy and loss, of training on the left, of fresh inputs on the right."""
    figure, rows = grid(2, 2, 5.0)
    drawn = arrays["steps"] >= 1
    steps = arrays["steps"][drawn]
    for row, kinds in zip(rows, (("train", "test"), ("loss", "test_loss")), strict=True):
        for ax, kind in zip(row, kinds, strict=True):
            for name, (_, color) in SETTINGS.items():
                end = band(ax, steps, arrays[f"{kind}_{name}"][:, drawn], color)[-1]
                if kind == "test_loss":
                    label_end(
                        ax, steps[-1], end, name, color, {"between": 6.0, "ignored": -6.0}.get(name, 0.0)
                    )
            ax.set(xscale="log", xlim=(steps[0], steps[-1]))
    (train, test), (loss, test_loss) = rows
    for ax, levels in ((loss, _plateaux().values()), (test_loss, (RIGHT,))):
        for level in levels:
            ax.axhline(level, color="black", lw=0.8, ls=":")
    describe(train, "training labels, a fifth of them wrong", "", "accuracy")
    describe(test, "fresh inputs", "", "accuracy")
    describe(loss, "", "steps of 0.005", "loss")
    describe(test_loss, "", "steps of 0.005", "loss")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The published accuracies, and the plateaux of the losses."""
    rows = []
    for (name, kind), (published, decimals) in PUBLISHED.items():
        (d, signal), _ = SETTINGS[name]
        accuracies = arrays[f"{kind}_{name}"][:, -1]
        split, inputs = ("training", N) if kind == "train" else ("test", FRESH)
        quantity = f"d = {d:,}, ‖μ‖ = {signal:g}: {split} accuracy after 1,000 steps"
        mean = float(accuracies.mean())
        precision = digits(decimals) + counted(mean, inputs * len(accuracies), published, inputs)
        recipe = None
        if (name, kind) == ("benign", "test"):
            shared = float(_shared(arrays["train_benign"][:, -1], accuracies).mean())
            recipe = Check(SHARED, PRINTED, SOURCE, published, shared, precision)
            rows.append(recipe)
        rows.append(Check(quantity, PRINTED, SOURCE, published, mean, precision, recipe=recipe))
    near = within(0.01, "the loss of attention on one token, without noise")
    for name, level in _plateaux().items():
        ours = float(np.median(arrays[f"loss_{name}"][:, -1]))
        rows.append(
            Check(f"{name}: training loss after 1,000 steps", DERIVED, "closed form", level, ours, near)
        )
    ours = float(np.median(arrays["test_loss_ignored"][:, -1]))
    rows.append(Check("ignored: test loss after 1,000 steps", DERIVED, "closed form", RIGHT, ours, near))
    return rows


def _shared(train: Float, test: Float) -> Float:
    """Test accuracies as published: ten of 1,000 inputs are training inputs, two of them with a wrong label.

    Training fits right labels. A test input whose wrong label was fitted is misclassified.
    """
    fitted = (train - (1 - WRONG)) / WRONG
    return np.asarray((990 * test + 8 + 2 * (1 - fitted)) / 1000)


def _plateaux() -> dict[str, float]:
    """Training losses with attention on x₁ for right labels and on x₃ (weak = 0.1), or x₁, for wrong ones."""
    weak, against = (float(np.logaddexp(0, -f)) for f in (0.1 * 0.5**0.5, -(0.5**0.5)))
    return {"benign": (1 - WRONG) * RIGHT + WRONG * weak, "ignored": (1 - WRONG) * RIGHT + WRONG * against}
