"""Movie reviews: encoders trained by mirror descent, as recorded."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, label
from attsvm_lab.figures.accuracy import Accuracy, digits, exactly, sampled
from attsvm_lab.figures.figure import DERIVED, PRINTED, Arrays, Check
from attsvm_lab.figures.mirror_descent.trials import (
    PS,
    PUBLISHED,
    SEEDS,
    SHARED,
    SIZES,
    UNMASKED,
    best,
    gain,
    interval,
    own_starts,
    shared_start,
    start_spread,
)
from attsvm_lab.figures.papers import MIRROR
from attsvm_lab.figures.recorded import facts, recorded

PAIRS = (("1.1", "2"), ("1.1", "3"), ("2", "3"))
COLORS = dict(zip(PS, (BLUE, ORANGE, GREEN), strict=True))
OTHERS = ("adam", "sign", "spectral")
KINDS = ("key", "query", "value")
LARGE = dict(zip(KINDS, ((18_206, 27_224), (13_964, 14_654), (7_643, 10_127)), strict=True))
PIVOTAL = 0.439 - 0.312
"""Published for size 6, p = 1.1 and 2: counts of weights with |w| > 0.06 in one trial; gain in the score."""


SHOWS = (
    "Encoders trained from scratch on 25,000 reviews with the published steps to a train accuracy of "
    "0.995. As published, mirror descent with p = 1.1 ends above gradient descent (p = 2) at every size: "
    "by 1.15, 1.27 and 1.63 points at sizes 3, 4 and 6, three initialisations each, and above p = 3 in all"
    " nine pairs. At size 6 it has fewer large weights of keys and queries. Adam, sign and spectral descent "
    "are quicker, and better (one seed in this figure)."
)
NOTES = (
    "All 27 trainings came to their end. After the tenth epoch every other one was tested, of p = 3 after "
    "the 80th every tenth, where it is a point and more below its best. The published trials of a cell "
    "share their initial weights: their spread is that of order and dropout. Initial weights spread ours "
    "two to three times as far; at the level of all rows of this page every cell agrees, but a cell accepts "
    "most of the other published ones, too, and could not have failed. At size 4 we do not find p = 3 above "
    "p = 2. Fewer large weights were published for keys, queries and values of one trial; ours decide that "
    "for keys and queries, and spread too far to tell the three published ratios apart. For size 6 the "
    "authors' notebook prints, to all digits, what it had saved a month before for "
    "another net, which takes the mean over all places without a mask; beside ours are those it had saved "
    "for this net."
)


@MIRROR.figure(
    "sentiment", "Movie reviews by mirror descent", shows=SHOWS, notes=NOTES, **facts("transformers")
)
def experiment() -> Arrays:
    """Test accuracy by epoch, key weights and pivotal words of every run, from the record."""
    runs = recorded("transformers")["runs"]
    arrays: Arrays = {}
    names = [
        (size, f"mirror{p}", seed) for size in SIZES for p in PS for seed in (*range(SEEDS), *SHARED[1:])
    ]
    for size, rule, seed in [*names, *((3, rule, 0) for rule in OTHERS)]:
        of = "-0" if seed in SHARED[1:] else ""  # the initial weights of seed 0
        if (run := runs.get(f"sentiment-{size}-{rule}-{seed}{of}")) is not None:
            key = f"{size} {rule.removeprefix('mirror')} {seed}"
            arrays[f"test {key}"] = 100 * np.array(run["test_accuracy"])
            arrays[f"epoch {key}"], arrays[f"ended {key}"] = np.array(run["epoch"]), np.array(run["ended"])
            arrays[f"trained {key}"] = np.array(run["trained"])
            arrays[f"pivotal {key}"] = np.array(run["pivotal"])
            arrays[f"large {key}"] = np.array([run["last"][f"large_{kind}"] for kind in KINDS])
            arrays[f"histogram {key}"] = np.array(run["last"]["histogram_key"])
    return arrays


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Curves of every size, best accuracies beside the published ones, key weights of sizes 4 and 6."""
    figure, (above, (cells, *weights)) = grid(2, 3, 5.2)
    for ax, size in zip(above, SIZES, strict=True):
        for p in PS:
            for k, key in enumerate(own_starts(arrays, size, p)):
                legend = None if k else f"p = {p}"
                ax.plot(arrays[f"epoch {key}"], arrays[f"test {key}"], color=COLORS[p], lw=0.9, label=legend)
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
            place = row + 0.26 * (k - 1)
            for keys, mark, shift in ((own_starts, ".", 0.0), (shared_start, "_", 0.08)):
                accuracies = [best(arrays, key) for key in keys(arrays, size, p)]
                if keys is own_starts or len(accuracies) > 1:
                    ax.plot(np.full(len(accuracies), place + shift), accuracies, mark, color=COLORS[p], ms=5)
            ax.plot(place, PUBLISHED[size, p].best[0], "o", mfc="none", mec=COLORS[p], ms=7, mew=0.9)
    ax.set_xticks(range(len(SIZES)), [f"size {size}" for size in SIZES])
    describe(ax, "best epoch (–: one initialisation)", "", "test accuracy, % (○: published)")


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The cells, the gain of p = 1.1 over p = 2, and the large weights and pivotal words of size 6."""
    sizes = [size for size in SIZES if all(own_starts(arrays, size, p) for p in PS[:2])]
    return [
        *(check for size in SIZES for p in PS for check in _cell(arrays, size, p)),
        *(check for size in SIZES for ps in PAIRS for check in _gain(arrays, size, ps)),
        *(check for size in sizes if size == 6 for check in (*_tails(arrays), _pivotal_words(arrays))),
    ]


def _cell(arrays: Arrays, size: int, p: str) -> list[Check]:
    """A published mean is from one initialisation; the spread between initialisations is known from ours."""
    keys = own_starts(arrays, size, p)
    if not keys:
        return []
    accuracies = [best(arrays, key) for key in keys]
    precision = digits(2) + _initialisation_spread(arrays, len(accuracies))
    theirs, ours = PUBLISHED[size, p].best[0], float(np.mean(accuracies))
    short = _short(arrays, size, p)
    if not short and len(accuracies) == 1:
        short = "one initialisation of ours beside one of theirs"
    rows = [Check(_title(size, p), PRINTED, TABLE, theirs, ours, precision, ONE, short=short)]
    if size == 6:
        quantity, printed = f"{_title(size, p)}, as printed", UNMASKED[p].best[0]
        rows.append(Check(quantity, PRINTED, TABLE, printed, ours, precision, OTHER, short="of another net"))
    return rows


def _title(size: int, p: str) -> str:
    return f"size {size}, p = {p}: best test accuracy, %"


def _initialisation_spread(arrays: Arrays, ours: int) -> Accuracy:
    """The accuracy of a published mean as one more initialisation; the spread is pooled over the cells."""
    spread, freedom = start_spread(arrays)
    if not freedom:
        return Accuracy(error=math.inf, words="one initialisation, no spread known")
    text = f"99.7 % of initialisations, whose spread {freedom} degrees of freedom tell"
    return Accuracy(error=spread * math.sqrt(1 / ours + 1), freedom=freedom, words=text)


def _short(arrays: Arrays, size: int, *ps: str) -> str:
    """The epochs of a stopped training beside the published ones, in words; "" where all are complete."""
    keys = [(key, p) for p in ps for key in own_starts(arrays, size, p)]
    stopped = [(int(arrays[f"trained {key}"]), p) for key, p in keys if not arrays[f"ended {key}"]]
    if not stopped:
        return ""
    epochs, p = min(stopped)
    return f"stopped after {epochs} epochs of {PUBLISHED[size, p].epochs[0]:.0f}"


def _gain(arrays: Arrays, size: int, ps: tuple[str, str]) -> list[Check]:
    """The published order of two p, tested from equal initial weights, where our interval decides it.

    The published cells have different initial weights, so that their difference is known to a point only and
    is not compared.
    """
    lower, higher = sorted(ps, key=lambda p: PUBLISHED[size, p].best[0])
    gains, until = gain(arrays, size, ps=(higher, lower))
    if len(gains) < 2 or until < math.inf:
        return []
    low, high = interval(gains)
    if low <= 0 <= high:
        return []  # our seeds do not decide the order
    published = PUBLISHED[size, higher].best[0] - PUBLISHED[size, lower].best[0]
    why = f"{gains.mean():.2f} points, {low:.2f} to {high:.2f}; published {published:.2f}"
    statement = f"size {size}: the 95 % interval of the gain of p = {higher} over p = {lower} is above zero"
    return [Check(statement, DERIVED, "Student's interval", 1.0, low > 0, exactly("yes or no"), why)]


def _tails(arrays: Arrays) -> list[Check]:
    """Ratios of the counts of large weights; their spread is pooled over keys, queries and values.

    And, where our interval decides it, that there are fewer of them, as published for all three.
    """
    large = [np.array([arrays[f"large {key}"] for key in own_starts(arrays, 6, p)], float) for p in PS[:2]]
    seeds = min(map(len, large))
    ratios = dict(zip(KINDS, (large[0][:seeds] / np.maximum(large[1][:seeds], 1.0)).T, strict=True))
    checks = []
    for kind, ratio in ratios.items():
        low, high = LARGE[kind]
        short = "" if kind == "key" else "ours spread by more than the published ratios of the kinds differ"
        short = short if seeds > 1 else "one trial each, no spread known"
        quantity = f"size 6: {kind} weights above 0.06, p = 1.1 over p = 2"
        spread = sampled(ratio, 1, alike=[ratios[other] for other in KINDS if other != kind])
        why, mean = f"both reached a train accuracy of 0.995; published: {low:,} over {high:,}", ratio.mean()
        checks.append(Check(quantity, PRINTED, TABLE, low / high, mean, spread, why, short=short))
    return [*checks, *(check for kind, ratio in ratios.items() for check in _fewer(kind, ratio))]


def _fewer(kind: str, ratio: Float) -> list[Check]:
    least, most = interval(np.log(np.maximum(ratio, 1e-9))) if len(ratio) > 1 else (-math.inf, math.inf)
    if least <= 0 <= most:
        return []  # our seeds do not decide it
    statement = f"size 6: the 95 % interval of the ratio of large {kind} weights is below one"
    why = f"{math.exp(least):.2f} to {math.exp(most):.2f}"
    return [Check(statement, DERIVED, "Student's interval", 1.0, most < 0, exactly("yes or no"), why)]


def _pivotal_words(arrays: Arrays) -> Check:
    score = [np.mean([arrays[f"pivotal {key}"][-1] for key in own_starts(arrays, 6, p)]) for p in PS[:2]]
    quantity, short = "size 6: score of pivotal words, p = 1.1 minus p = 2", "sentences of our own"
    return Check(quantity, PRINTED, TABLE, PIVOTAL, score[0] - score[1], digits(3), WORDS, short=short)


TABLE = "authors' saved results"
ONE = "the published trials share one initialisation, ours do not: a draw of it is what both means differ by"
OTHER = (
    "these cells of the authors' notebook were renamed and not run again: to all digits they hold what it "
    "saved on 2024-08-29 for the mean over all places, without a mask"
)
WORDS = (
    "nets before training score 0.19 to 0.72 on our sentences, and 0.11 to 0.72 on the published ones, so "
    "little is learnt from the score"
)
