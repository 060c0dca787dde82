"""Movie reviews: encoders trained by mirror descent, as recorded."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from scipy.stats import t as student

from attsvm.figures.accuracy import digits, exactly, sampled
from attsvm.figures.figure import DERIVED, PRINTED, Arrays, Check
from attsvm.figures.panels import describe, grid
from attsvm.figures.papers import MIRROR
from attsvm.figures.recorded import facts, recorded
from attsvm.figures.style import BLUE, GREEN, GREY, ORANGE, label
from attsvm.numbers import Float

PS, SIZES = ("1.1", "2", "3"), (3, 4, 6)
SEEDS = 3
"""At most so many of every cell."""
COLORS = dict(zip(PS, (BLUE, ORANGE, GREEN), strict=True))
OTHERS = ("adam", "sign", "spectral")
PUBLISHED = {3: (83.47, 81.66, 82.57), 4: (83.36, 81.05, 82.40), 6: (82.57, 81.03, 80.65)}
"""Best-epoch test accuracy, percent, mean of ten trials, p = 1.1, 2, 3."""
SPREAD = {3: (0.09, 0.09, 0.10), 4: (0.13, 0.17, 0.12), 6: (0.15, 0.18, 0.13)}
"""Published standard deviations over the trials."""
TRIALS = {(3, 2): 9}
"""Ten, but for size 3 and p = 3."""
UNTIL = {3: (72, 80, 162), 4: (87, 88, 135), 6: (150, 58, 95)}
"""Published epochs to a train accuracy of 0.995; the 150 are 150.1 ± 298.6, one trial of ten at its cap."""
LARGE, PIVOTAL = 18_206 / 27_224, 0.439 - 0.312
"""Published for size 6, p = 1.1 against 2: ratio of the counts of |key weights| > 0.06, gain in the score."""


SHOWS = (
    "Encoders trained from scratch on 25,000 reviews with the published steps. As published, mirror descent "
    "with p = 1.1 ends above gradient descent (p = 2) at every size: by 1.5 and 1.6 points at sizes 4 and 6, "
    "trained to 0.995, and by 0.96 on three seeds of size 3, which were stopped. At size 6 it has fewer "
    "large key weights. Adam, sign and spectral descent are quicker, and better."
)
NOTES = (
    "One seed at sizes 4 and 6 and for p = 3; size 3 was stopped after 22 to 56 epochs of 72 to 162. Of the "
    "longer trainings every other epoch after the tenth was tested. Size 6, and size 4 with p = 2, end 1.0 "
    "to 1.6 points above the published means; we do not know why."
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
    names = [(size, f"mirror{p}", seed) for size in SIZES for p in PS for seed in range(SEEDS)]
    for size, rule, seed in [*names, *((3, rule, 0) for rule in OTHERS)]:
        if (run := runs.get(f"sentiment-{size}-{rule}-{seed}")) is not None:
            key = f"{size} {rule.removeprefix('mirror')} {seed}"
            arrays[f"test {key}"] = 100 * np.array(run["test_accuracy"])
            arrays[f"epoch {key}"], arrays[f"ended {key}"] = np.array(run["epoch"]), np.array(run["ended"])
            arrays[f"trained {key}"] = np.array(run["trained"])
            arrays[f"pivotal {key}"] = np.array(run["pivotal"])
            arrays[f"large {key}"] = np.array(run["last"]["large_key"])
            arrays[f"histogram {key}"] = np.array(run["last"]["histogram_key"])
    return arrays


def seeds(arrays: Arrays, size: int, p: str) -> list[str]:
    """What was trained of a cell: `size p seed`."""
    return [key for s in range(SEEDS) if f"test {(key := f'{size} {p} {s}')}" in arrays]


def best(arrays: Arrays, key: str, until: float = np.inf) -> float:
    """The best test accuracy among the tested epochs, as the paper reports it."""
    return float(arrays[f"test {key}"][arrays[f"epoch {key}"] <= until].max())


def gain(arrays: Arrays, size: int) -> tuple[Float, float]:
    """Best accuracy of p = 1.1 minus that of p = 2, seed by seed, and after how many epochs.

    Infinitely many where all of them were trained to their end, otherwise equally many.
    """
    ours, theirs = (seeds(arrays, size, p) for p in PS[:2])
    pairs = list(zip(ours, theirs, strict=False))
    every = [key for pair in pairs for key in pair]
    ended = all(arrays[f"ended {key}"] for key in every)
    until = np.inf if ended else min(arrays[f"epoch {key}"][-1] for key in every)
    return np.array([best(arrays, a, until) - best(arrays, b, until) for a, b in pairs]), float(until)


def interval(values: Float) -> tuple[float, float]:
    """Student's 95 % interval of a mean."""
    width = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean() - width), float(values.mean() + width)


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Curves of every size, best accuracies beside the published ones, key weights of sizes 4 and 6."""
    figure, (above, (cells, *weights)) = grid(2, 3, 5.2)
    for ax, size in zip(above, SIZES, strict=True):
        for p in PS:
            for k, key in enumerate(seeds(arrays, size, p)):
                words = None if k else f"p = {p}"
                ax.plot(arrays[f"epoch {key}"], arrays[f"test {key}"], color=COLORS[p], lw=0.9, label=words)
        ax.set_ylim(48, 88)
        describe(ax, f"size {size}", "epochs", "test accuracy, %")
    for rule in OTHERS:
        if f"test 3 {rule} 0" in arrays:
            above[0].plot(arrays[f"epoch 3 {rule} 0"], arrays[f"test 3 {rule} 0"], color=GREY, lw=0.8)
    label(above[0], 1, 86.5, "Adam, sign and spectral descent", GREY)
    above[0].legend(fontsize=7, frameon=False, loc="lower right")
    _cells(cells, arrays)
    for ax, size in zip(weights, (4, 6), strict=True):
        _weights(ax, arrays, size)
    return figure


def _weights(ax: Axes, arrays: Arrays, size: int) -> None:
    for p in PS:
        if (counts := arrays.get(f"histogram {size} {p} 0")) is not None:
            places = 0.005 * np.arange(len(counts))
            ax.step(places, np.maximum(counts, 0.5), where="post", color=COLORS[p], lw=1)
    ax.set_yscale("log")
    describe(ax, f"key weights, size {size}", "|w|", "weights per bin of 0.005")


def _cells(ax: Axes, arrays: Arrays) -> None:
    for k, p in enumerate(PS):
        for row, size in enumerate(SIZES):
            found = [best(arrays, key) for key in seeds(arrays, size, p)]
            place = row + 0.22 * (k - 1)
            ax.plot(np.full(len(found), place), found, ".", color=COLORS[p], ms=6)
            ax.plot(place, PUBLISHED[size][k], "o", mfc="none", mec=COLORS[p], ms=7, mew=0.9)
    ax.set_xticks(range(len(SIZES)), [f"size {size}" for size in SIZES])
    describe(ax, "best epoch (circles: published)", "", "test accuracy, %")


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The cells, the gain of p = 1.1 over p = 2, and what it does to weights and selections."""
    there = [size for size in SIZES if all(seeds(arrays, size, p) for p in PS[:2])]
    return [
        *(check for size in SIZES for k in range(len(PS)) for check in _cell(arrays, size, k)),
        *(check for size in there for check in _gain(arrays, size)),
        *(check for size in there if size == 6 for check in (_tail(arrays), _words(arrays))),
    ]


def _cell(arrays: Arrays, size: int, k: int) -> list[Check]:
    keys = seeds(arrays, size, PS[k])
    if not keys:
        return []
    found = [best(arrays, key) for key in keys]
    known = digits(2) + sampled(found, TRIALS.get((size, k), 10), SPREAD[size][k])
    ours, what = float(np.mean(found)), _named(size, k)
    return [Check(what, PRINTED, TABLE, PUBLISHED[size][k], ours, known, short=_short(arrays, size, k))]


def _named(size: int, k: int) -> str:
    return f"size {size}, p = {PS[k]}: best test accuracy, %"


def _short(arrays: Arrays, size: int, *ks: int) -> str:
    """How many epochs of the published ones a stopped training has; nothing where all came to their end."""
    keys = [(key, k) for k in ks for key in seeds(arrays, size, PS[k])]
    stopped = [(int(arrays[f"trained {key}"]), k) for key, k in keys if not arrays[f"ended {key}"]]
    return f"stopped after {min(stopped)[0]} epochs of {UNTIL[size][min(stopped)[1]]}" if stopped else ""


def _gain(arrays: Arrays, size: int) -> list[Check]:
    """A difference of two cells, no published item of its own."""
    gains, until = gain(arrays, size)
    published = PUBLISHED[size][0] - PUBLISHED[size][1]
    why = "at the end" if until == np.inf else f"after {until:.0f} epochs of both"
    known = digits(2) + digits(2) + sampled(gains, 10, float(np.hypot(*SPREAD[size][:2])))
    what, ours, short = (
        f"size {size}: gain of p = 1.1 over p = 2, points",
        float(gains.mean()),
        _short(arrays, size, 0, 1),
    )
    found = [Check(what, PRINTED, TABLE, published, ours, known, why, _named(size, 0), short=short)]
    if len(gains) > 1:
        above, what = float(interval(gains)[0] > 0), f"size {size}: that gain's 95 % interval is above zero"
        found.append(Check(what, DERIVED, "Student's interval", 1.0, above, exactly("yes or no")))
    return found


def _tail(arrays: Arrays) -> Check:
    large = [float(arrays[f"large 6 {p} 0"]) for p in PS[:2]]
    ratio = large[0] / max(large[1], 1.0)
    what = "size 6: key weights above 0.06, p = 1.1 over p = 2"
    return Check(
        what,
        PRINTED,
        TABLE,
        LARGE,
        ratio,
        exactly("two counts"),
        TAIL,
        short="one trial each, no spread known",
    )


def _words(arrays: Arrays) -> Check:
    score = [float(arrays[f"pivotal 6 {p} 0"][-1]) for p in PS[:2]]
    what, short = (
        "size 6: score of pivotal words, p = 1.1 minus p = 2",
        "one trial each, and sentences of our own",
    )
    return Check(what, PRINTED, TABLE, PIVOTAL, score[0] - score[1], digits(3), WORDS, short=short)


TABLE = "authors' saved results"
TAIL = "both reached a train accuracy of 0.995; published: 18,206 over 27,224"
WORDS = "nets before training score 0.25 to 0.71 on our sentences, so little is learnt from the score"
