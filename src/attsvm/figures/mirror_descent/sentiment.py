"""Movie reviews: encoders trained by mirror descent, as recorded."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from scipy.stats import t as student

from attsvm.figures.figure import DERIVED, PRINTED, Arrays, Check, Float
from attsvm.figures.panels import describe, grid
from attsvm.figures.papers import MIRROR
from attsvm.figures.recorded import facts, recorded
from attsvm.figures.style import BLUE, GREEN, GREY, ORANGE, label

PS, SIZES = ("1.1", "2", "3"), (3, 4, 6)
SEEDS = {3: 3, 4: 1, 6: 1}
COLORS = dict(zip(PS, (BLUE, ORANGE, GREEN), strict=True))
OTHERS = ("adam", "sign", "spectral")
PUBLISHED = {3: (83.47, 81.66, 82.57), 4: (83.36, 81.05, 82.40), 6: (82.57, 81.03, 80.65)}
"""Best-epoch test accuracy, percent, mean of ten trials, p = 1.1, 2, 3."""
UNTIL = {3: (72, 80, 162), 4: (87, 88, 135), 6: (150, 58, 95)}
"""Published epochs to a train accuracy of 0.995."""
LARGE, PIVOTAL = 18_206 / 27_224, 0.439 - 0.312
"""Published for size 6, p = 1.1 against 2: ratio of the counts of |key weights| > 0.06, gain in the score."""


SHOWS = (
    "Encoders trained from scratch on 25,000 reviews with the published steps. At size 3 mirror descent with "
    "p = 1.1 is ahead of gradient descent (p = 2) for every seed, as published. Sizes 4 and 6 and p = 3 were "
    "stopped long before their end and decide nothing; Adam, sign and spectral descent are quicker, and "
    "better."
)
NOTES = (
    "Nine minutes of one GPU for all cells: 22 to 28 epochs of size 3, 13 to 16 of size 4, 8 to 11 of size "
    "6, where the published trials take 58 to 162. At sizes 4 and 6 p = 1.1 is not ahead of p = 2 by then."
)


@MIRROR.figure(
    "sentiment",
    "Movie reviews by mirror descent",
    shows=SHOWS,
    notes=NOTES,
    **facts("transformers"),
)
def experiment() -> Arrays:
    """Test accuracy by epoch, key weights and pivotal words of every run, from the record."""
    runs = recorded("transformers")["runs"]
    arrays: Arrays = {}
    names = [(size, f"mirror{p}", seed) for size in SIZES for p in PS for seed in range(SEEDS[size])]
    for size, rule, seed in [*names, *((3, rule, 0) for rule in OTHERS)]:
        if (run := runs.get(f"sentiment-{size}-{rule}-{seed}")) is not None:
            key = f"{size} {rule.removeprefix('mirror')} {seed}"
            arrays[f"test {key}"] = 100 * np.array(run["test_accuracy"])
            arrays[f"pivotal {key}"] = np.array(run["pivotal"])
            arrays[f"large {key}"] = np.array(run["last"]["large_key"])
            arrays[f"histogram {key}"] = np.array(run["last"]["histogram_key"])
    return arrays


def curves(arrays: Arrays, size: int, p: str) -> list[Float]:
    """Test accuracy of every seed."""
    return [arrays[key] for s in range(3) if (key := f"test {size} {p} {s}") in arrays]


def gain(arrays: Arrays, size: int) -> tuple[Float, int]:
    """Best accuracy of p = 1.1 minus that of p = 2, seed by seed, after equally many epochs; how many."""
    pairs = list(zip(curves(arrays, size, "1.1"), curves(arrays, size, "2"), strict=True))
    epochs = min(len(curve) for pair in pairs for curve in pair)
    return np.array([a[:epochs].max() - b[:epochs].max() for a, b in pairs]), epochs


def interval(values: Float) -> tuple[float, float]:
    """Student's 95 % interval of a mean."""
    width = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - width), float(values.mean() + width)


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Curves of size 3, best accuracies beside the published ones, key weights of size 3."""
    figure, ((left, middle, right),) = grid(1, 3, 2.9)
    for p in PS:
        for seed, curve in enumerate(curves(arrays, 3, p)):
            words = None if seed else f"p = {p}"
            left.plot(1 + np.arange(len(curve)), curve, color=COLORS[p], lw=1, label=words)
        counts = arrays[f"histogram 3 {p} 0"]
        right.step(
            0.005 * np.arange(len(counts)), np.maximum(counts, 0.5), where="post", color=COLORS[p], lw=1
        )
    for rule in OTHERS:
        curve = arrays[f"test 3 {rule} 0"]
        left.plot(1 + np.arange(len(curve)), curve, color=GREY, lw=0.8)
    label(left, 1, 86.5, "Adam, sign and spectral descent", GREY)
    left.set_ylim(48, 88)
    left.legend(fontsize=7, frameon=False, loc="lower right")
    right.set_yscale("log")
    describe(left, "size 3, every seed", "epochs", "test accuracy, %")
    describe(right, "key weights, size 3", "|w|", "weights per bin of 0.005")
    _cells(middle, arrays)
    return figure


def _cells(ax: Axes, arrays: Arrays) -> None:
    for k, p in enumerate(PS):
        for row, size in enumerate(SIZES):
            best = [curve.max() for curve in curves(arrays, size, p)]
            place = row + 0.22 * (k - 1)
            ax.plot(np.full(len(best), place), best, ".", color=COLORS[p], ms=6)
            ax.plot(place, PUBLISHED[size][k], "o", mfc="none", mec=COLORS[p], ms=7, mew=0.9)
    ax.set_xticks(range(len(SIZES)), [f"size {size}" for size in SIZES])
    describe(ax, "best epoch (circles: published)", "", "test accuracy, %")


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The nine cells, the gain of p = 1.1 over p = 2, and what it does to weights and selections."""
    found = []
    for size in SIZES:
        for k, p in enumerate(PS):
            runs = curves(arrays, size, p)
            mean = float(np.mean([curve.max() for curve in runs]))
            epochs, early = min(map(len, runs)), size != 3 or p == "3"
            why = f"{epochs} epochs; published: about {UNTIL[size][k]}, to a train accuracy of 0.995"
            what = f"size {size}, p = {p}: best test accuracy, %"
            found.append(Check(what, PRINTED, TABLE, PUBLISHED[size][k], mean, 1.0, why, early))
    for size in SIZES:
        gains, epochs = gain(arrays, size)
        published = PUBLISHED[size][0] - PUBLISHED[size][1]
        what = f"size {size}: gain of p = 1.1 over p = 2, points"
        why = f"its sign, after {epochs} epochs of both; {SEEDS[size]} of ten trials"
        found.append(Check(what, PRINTED, TABLE, published, float(gains.mean()), published, why, size != 3))
    low, _ = interval(gain(arrays, 3)[0])
    found.append(
        Check(
            "size 3: that gain's 95 % interval is above zero",
            DERIVED,
            "Student's interval",
            1.0,
            float(low > 0),
            0.0,
        )
    )
    large, pivotal = (_means(arrays, name) for name in ("large", "pivotal"))
    return [
        *found,
        Check(
            "key weights above 0.06, p = 1.1 over p = 2",
            PRINTED,
            TABLE,
            LARGE,
            large[0] / large[1],
            0.3,
            TAIL,
            True,
        ),
        Check(
            "score of pivotal words, p = 1.1 minus p = 2",
            PRINTED,
            TABLE,
            PIVOTAL,
            pivotal[0] - pivotal[1],
            0.12,
            WORDS,
        ),
    ]


def _means(arrays: Arrays, name: str) -> list[float]:
    """Mean over the seeds of size 3 at the last epoch, for p = 1.1 and 2."""
    return [float(np.mean([arrays[f"{name} 3 {p} {s}"].flat[-1] for s in range(3)])) for p in PS[:2]]


TABLE = "authors' saved results"
TAIL = (
    "published: size 6 at the end of training; ours: size 3 after 24 to 28 epochs, where p = 1.1 has more "
    "weights near zero and more large ones"
)
WORDS = "size 3, sentences of our own; nets before training score 0.25 to 0.71 on them, so little is learnt"
