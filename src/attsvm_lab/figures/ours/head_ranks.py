"""The ranks of what optimizers of W_Q and W_K add to the heads of a trained encoder, as recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from scipy.stats import t as student

from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, PURPLE, label
from attsvm_lab.figures.accuracy import exactly
from attsvm_lab.figures.figure import CONJECTURED, Arrays, Check
from attsvm_lab.figures.papers import OURS
from attsvm_lab.figures.recorded import facts, recorded

RULES = {
    "adam+gd": ("gradient descent", "nuclear", BLUE),
    "adam+sign": ("sign descent", "", PURPLE),
    "adam": ("Adam", "", GREY),
    "adam+adamw": ("AdamW", "", "#000000"),
    "adam+schatten4-heads": ("Schatten-4 steps", "Frobenius", GREEN),
    "adam+muon": ("Muon, heads together", "spectral", ORANGE),
    "adam+muon-heads": ("Muon, head by head", "spectral", "#E69F00"),
}
"""Optimizer of W_Q and W_K, everything else by Adam: name, norm by the law of halves, colour."""
WHOLE = {"mirror2": "gradient descent, whole net", "spectral": "Muon without momentum, all blocks"}
"""Nets of one optimizer."""
SEEDS = 3
MEASURES = ("stable rank", "effective rank", "length")
"""Of the matrix that training added to a head: ‖W‖_F² / ‖W‖², (Σσ)² / Σσ², ‖W‖_F."""
NORMS, DRAWS = ("nuclear", "Frobenius", "spectral"), 2_000
FACTS = ("epochs", "loss", "best", "stop")

SHOWS = (
    "Encoders on movie reviews, three seeds each, trained to the same loss; only W_Q and W_K have different "
    "optimizers, with steps of one length. What training added to a head, W(end) − W(start), has almost one "
    "direction under gradient descent and more than twenty under Muon, with Schatten-4 steps between them: "
    "the order of the norms that the law of halves names. Left: its singular values, mean over heads; right: "
    "its stable rank, seeds and 95 % interval."
)
NOTES = (
    "The ranks are there after the first epoch: they tell how the steps are shaped, not that a max-margin "
    "direction is reached. Nine heads, one task, steps not tuned."
)


@OURS.figure(
    "head-ranks", "What an optimizer writes into a head", shows=SHOWS, notes=NOTES, **facts("factors")
)
def experiment() -> Arrays:
    """Of every optimizer (seeds, …): singular values over the largest, ranks, lengths, epochs, accuracies.

    heads: (seeds, heads, 3), the MEASURES of each head; first: epoch, train loss, test accuracy and the means
    of the measures over heads, after the first epoch.
    """
    runs, arrays = recorded("factors")["runs"], {}
    for rule in (*RULES, *WHOLE):
        trained = [runs[name] for k in range(SEEDS) if (name := f"sentiment-3-{rule}-{k}") in runs]
        if trained:
            arrays[f"spectrum {rule}"] = np.array([run["spectrum"] for run in trained])
            arrays[f"heads {rule}"] = np.array([run["heads"] for run in trained])
            arrays[f"first {rule}"] = np.array([run["curve"][0] for run in trained])
            for name in FACTS:
                arrays[f"{name} {rule}"] = np.array([run[name] for run in trained])
    return arrays


def seeds(arrays: Arrays, rule: str, measure: str) -> Float:
    """One number for each seed: the mean over heads."""
    return np.asarray(arrays[f"heads {rule}"][:, :, MEASURES.index(measure)].mean(1))


def interval(values: Float) -> tuple[float, float]:
    """Student's 95 % interval of a geometric mean over seeds, whose logarithms are assumed normal."""
    logs = np.log(values)
    half_width = student.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    return float(np.exp(logs.mean() - half_width)), float(np.exp(logs.mean() + half_width))


def margins(kind: str) -> dict[str, dict[str, tuple[int, Float]]]:
    """Optimizer → norm → number of heads, and (4, 3): mean and 95 % bootstrap interval over heads and seeds.

    The four: percentage of the certified best margin and cosine to its program, of W and of what was added.
    kind: `own` selections of each net, or the `same` selections for all nets of a seed.
    """
    nets = recorded("factors").get("margins", {}).get(kind, {})
    intervals: dict[str, dict[str, tuple[int, Float]]] = {}
    for rule in (*RULES, *WHOLE):
        heads = [head for k in range(SEEDS) for head in nets.get(f"sentiment-3-{rule}-{k}", ())]
        for norm in NORMS if heads else ():
            values = np.array([head[norm][:4] for head in heads], float) * [100, 1, 100, 1]
            intervals.setdefault(rule, {})[norm] = len(heads), bootstrap(values)
    return intervals


def bootstrap(values: Float) -> Float:
    """(…, 3): the mean of values (n, …) and the ends of its 95 % bootstrap interval."""
    drawn = np.random.default_rng(0).integers(len(values), size=(DRAWS, len(values)))
    ends = np.quantile(values[drawn].mean(1), [0.025, 0.975], axis=0)
    return np.array([values.mean(0), *ends]).T


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Singular values by optimizer, and stable ranks with their intervals."""
    figure, ((spectra, ranks),) = grid(1, 2, 3.2)
    present = {rule: style for rule, style in RULES.items() if f"heads {rule}" in arrays}
    _spectra(spectra, arrays, present)
    ranked(ranks, [(*style, seeds(arrays, rule, "stable rank")) for rule, style in present.items()], TICKS)
    describe(ranks, "its stable rank, and the law's norm", "‖W‖²_F / ‖W‖² of what was added")
    return figure


TICKS = (1, 2, 5, 10, 20, 40)


LABELS = (
    ("Muon", (12, 0.72), ORANGE),
    ("Schatten-4", (3.6, 0.26), GREEN),
    ("Adam(W), sign", (9, 0.145), "#000000"),
    ("gradient\ndescent", (1.9, 0.055), BLUE),
)
"""Labels of the curves, with their positions."""


def _spectra(ax: Axes, arrays: Arrays, rules: Mapping[str, Any]) -> None:
    for rule, (_, _, color) in rules.items():
        spectra = arrays[f"spectrum {rule}"]
        places = np.arange(1, spectra.shape[1] + 1)
        ax.fill_between(places, spectra.min(0), spectra.max(0), color=color, alpha=0.25, lw=0)
        ax.plot(places, spectra.mean(0), color=color, lw=1.5)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(0.007, 1.1)
    for text, (x, y), color in LABELS:
        label(ax, x, y, text, color)
    describe(ax, "what training added to a head", "k", "k-th singular value, by the largest")


def ranked(ax: Axes, rows: list[tuple[str, str, str, Float]], ticks: Sequence[float]) -> None:
    """Draw a row for each optimizer: its name, the law's norm, its colour, and one rank for each seed."""
    names = []
    for row, (name, norm, color, values) in enumerate(rows):
        if len(values) > 1:
            ax.plot(interval(values), (row, row), color=color, lw=5, alpha=0.35, solid_capstyle="butt")
        ax.plot(values, np.full(len(values), row), "o", color=color, ms=4)
        names.append(f"{name}\n→ {norm}" if norm else name)
    ax.set_yticks(range(len(names)), names, fontsize=8)
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.set_xlim(1, ticks[-1])
    ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Whether the intervals of the ranks are disjoint, in the order of the norms that the law names."""
    orders = (
        ("adam+gd", "adam+schatten4-heads"),
        ("adam+schatten4-heads", "adam+muon-heads"),
        ("adam+gd", "adam+muon"),
        ("mirror2", "spectral"),
    )
    names = {rule: name for rule, (name, *_) in RULES.items()} | WHOLE
    rows = []
    for low, high in orders:
        if not all(len(arrays.get(f"heads {rule}", ())) > 1 for rule in (low, high)):
            continue
        for measure in MEASURES[:2]:
            separated = interval(seeds(arrays, low, measure))[1] < interval(seeds(arrays, high, measure))[0]
            statement = f"{measure}: interval of {names[low]} below that of {names[high]}"
            rows.append(Check(statement, CONJECTURED, LAW, 1.0, separated, exactly("yes or no")))
    return rows


LAW = "the law of halves, carried over to a deep net"
