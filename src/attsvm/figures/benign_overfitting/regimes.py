"""Three regimes of signal and noise: what training does to the training labels and to fresh inputs.

"Benign Overfitting in Token Selection of Attention Mechanism", Figure on accuracies and losses.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

from attsvm.claims.benign_overfitting import (
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
from attsvm.figures.accuracy import counted, digits, within
from attsvm.figures.figure import DERIVED, PRINTED, Arrays, Check, scales
from attsvm.figures.panels import band, beside, describe, grid
from attsvm.figures.papers import BENIGN as PAPER
from attsvm.figures.style import BLUE, GREEN, ORANGE, PURPLE
from attsvm.numbers import Float

SETTINGS = {
    "harmful": (HARMFUL, ORANGE),
    "benign": (BENIGN, BLUE),
    "between": (BETWEEN, PURPLE),
    "ignored": (IGNORED, GREEN),
}
"""d and ‖μ‖, and the colour."""
GIVEN = {
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
    seen = arrays["steps"] >= 1
    steps = arrays["steps"][seen]
    for row, kinds in zip(rows, (("train", "test"), ("loss", "test_loss")), strict=True):
        for ax, kind in zip(row, kinds, strict=True):
            for name, (_, color) in SETTINGS.items():
                end = band(ax, steps, arrays[f"{kind}_{name}"][:, seen], color)[-1]
                if kind == "test_loss":
                    beside(ax, steps[-1], end, name, color, {"between": 6.0, "ignored": -6.0}.get(name, 0.0))
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
    found = []
    for (name, kind), (given, decimals) in GIVEN.items():
        (d, signal), _ = SETTINGS[name]
        each = arrays[f"{kind}_{name}"][:, -1]
        which, inputs = ("training", N) if kind == "train" else ("test", FRESH)
        what, mean = f"d = {d:,}, ‖μ‖ = {signal:g}: {which} accuracy after 1,000 steps", float(each.mean())
        known = digits(decimals) + counted(mean, inputs * len(each), given, inputs)
        recipe = None
        if (name, kind) == ("benign", "test"):
            shared = float(_shared(arrays["train_benign"][:, -1], each).mean())
            recipe = Check(SHARED, PRINTED, SOURCE, given, shared, known)
            found.append(recipe)
        found.append(Check(what, PRINTED, SOURCE, given, mean, known, recipe=recipe))
    near = within(0.01, "the loss of attention on one token, without noise")
    for name, level in _plateaux().items():
        ours = float(np.median(arrays[f"loss_{name}"][:, -1]))
        found.append(
            Check(f"{name}: training loss after 1,000 steps", DERIVED, "closed form", level, ours, near)
        )
    ours = float(np.median(arrays["test_loss_ignored"][:, -1]))
    found.append(Check("ignored: test loss after 1,000 steps", DERIVED, "closed form", RIGHT, ours, near))
    return found


def _shared(train: Float, test: Float) -> Float:
    """Test accuracies as published: ten of 1,000 inputs are training inputs, two of them with a wrong label.

    Right labels are fitted; a wrong one that is fitted is a test input that is missed.
    """
    fitted = (train - (1 - WRONG)) / WRONG
    return np.asarray((990 * test + 8 + 2 * (1 - fitted)) / 1000)


def _plateaux() -> dict[str, float]:
    """Training losses where right labels are on x₁ and wrong ones on x₃ (weak = 0.1), or on x₁, too."""
    weak, against = (float(np.logaddexp(0, -f)) for f in (0.1 * 0.5**0.5, -(0.5**0.5)))
    return {"benign": (1 - WRONG) * RIGHT + WRONG * weak, "ignored": (1 - WRONG) * RIGHT + WRONG * against}
