"""The optimizer's geometry inside the heads of trained encoders: margins in several norms, as recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.figures.figure import CONJECTURED, DERIVED, Arrays, Check, Float
from attsvm.figures.panels import describe
from attsvm.figures.papers import OURS
from attsvm.figures.recorded import facts, recorded
from attsvm.figures.style import colours

Named = dict[str, Any]
RULES = {
    "mirror1.1": ("mirror, p = 1.1", "l1.1"),
    "mirror2": ("GD (p = 2)", "nuclear"),
    "mirror3": ("mirror, p = 3", "l3"),
    "adam": ("Adam", "linf"),
    "sign": ("sign descent", "linf"),
    "spectral": ("spectral descent", "spectral"),
}
"""Each optimizer's name, and the norm of W in which the theory of one layer would have it lead."""
NORMS = ("Frobenius", "nuclear", "spectral", "l1.1", "l3", "linf")
START = "sentiment-3-mirror1.1-0/heads-0000"
"""The net before training, which is the same for all: they share the seed."""
DRAWS = 2_000
"""Resamples of the heads for an interval."""


SHOWS = (
    "Heads of the encoders of size 3. Each head's eight surest selections on held-out reviews make a "
    "program, certified in six norms. Left: the head's own margin in percent of the best one, mean and 95 % "
    "interval over nine heads, the optimizer's own norm in bold. Right: the cosine to the Frobenius program "
    "over training. No head is near the max-margin direction of its own selections."
)
NOTES = (
    "A hierarchy of SVMs, as the second paper hopes for, is not what these nets are after 7 to 28 epochs: "
    "mean margins are below two percent of the best, and Adam leads in every norm. Alignment does rise."
)


@OURS.figure(
    "head-geometry",
    "The optimizer's geometry inside the heads",
    shows=SHOWS,
    notes=NOTES,
    **facts("heads"),
)
def experiment() -> Arrays:
    """Margin of the trained heads over the best, and cosine to it, (3, optimizers, norms): mean and interval.

    Also the mean Frobenius cosine of each layer at the kept epochs.
    """
    heads, runs = recorded("heads")["heads"], recorded("transformers")["runs"]
    rules = [rule for rule in RULES if f"sentiment-3-{rule}-0/heads-last" in heads]
    last = [heads[f"sentiment-3-{rule}-0/heads-last"] for rule in rules]
    arrays: Arrays = {"rules": np.array(rules), "heads": np.array([len(found) for found in last])}
    same = recorded("heads")["same"]
    equal = [same[name] for rule in rules if (name := f"sentiment-3-{rule}-0") in same]
    for prefix, nets in (("", last), ("same ", equal)):
        for name in ("ratio", "cosine"):
            values = [[[head["margins"][n][name] for head in found] for n in NORMS] for found in nets]
            arrays[f"{prefix}{name}"] = np.array(_interval(np.array(values)))
        arrays[f"{prefix}mass"] = np.array([np.mean([head["mass"] for head in found]) for found in nets])
    arrays["same heads"] = np.array([len(found) for found in equal])
    every = [head["margins"] for group in (heads, same) for found in group.values() for head in found]
    arrays["certified"] = np.array([one["certified"] for found in every for one in found.values()])
    for rule in rules:
        files = [file for file in heads if file.startswith(f"sentiment-3-{rule}-0/") or file == START]
        epochs = [_epoch(file, runs[f"sentiment-3-{rule}-0"]) for file in files]
        at = np.argsort(epochs)
        arrays[f"epochs {rule}"] = np.sort(epochs)
        arrays[f"layers {rule}"] = np.array([_layers(heads[files[k]]) for k in at])
    return arrays


def _interval(values: Float) -> tuple[Float, Float, Float]:
    """Mean over the last axis, and its 95 % bootstrap interval."""
    drawn = np.random.default_rng(0).integers(values.shape[-1], size=(DRAWS, values.shape[-1]))
    low, high = np.quantile(values[..., drawn].mean(-1), [0.025, 0.975], axis=-1)
    return values.mean(-1), low, high


def _epoch(file: str, run: Named) -> int:
    stamp = file.rsplit("-", 1)[1]
    return int(run["epoch"][-1]) if stamp == "last" else int(stamp)


def _layers(found: list[Named]) -> list[float]:
    """Mean Frobenius cosine of each layer."""
    layers = sorted({head["layer"] for head in found})
    each = {
        layer: [h["margins"]["Frobenius"]["cosine"] for h in found if h["layer"] == layer] for layer in layers
    }
    return [float(np.mean(each[layer])) for layer in layers]


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Margins by optimizer and norm, on own and on equal selections; alignment of the layers over epochs."""
    figure = Canvas(figsize=(7.2, 6.0), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[1.1, 1])
    left, middle = parts[0].subplots(1, 2)
    right = parts[1].subplots(1, 1)
    _table(left, arrays, "ratio", "margin, % of the best: own selections")
    _table(middle, arrays, "same ratio", "equal selections")
    middle.set_yticks([])
    rules = [str(rule) for rule in arrays["rules"]]
    for rule, color in zip(rules, colours(len(rules)), strict=True):
        for layer, style in enumerate(("-", "--", ":")):
            name = None if layer else RULES[rule][0]
            curve = arrays[f"layers {rule}"][:, layer]
            right.plot(arrays[f"epochs {rule}"], curve, style, color=color, lw=1, label=name)
    right.set_ylim(bottom=0)
    right.legend(fontsize=6, frameon=False, ncols=3, loc="lower right")
    describe(right, "layers: first –, second --, last ···", "epoch", "cosine to the Frobenius program")
    return figure


def _table(ax: Axes, arrays: Arrays, name: str, title: str) -> None:
    mean, low, high = 100 * arrays[name]
    ax.imshow(mean / mean.max(0), cmap="cividis", vmin=0, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(mean):
        own = RULES[str(arrays["rules"][row])][1] == NORMS[column]
        words = f"{low[row, column]:.2f}–{high[row, column]:.2f}"
        color = "black" if value > 0.6 * mean[:, column].max() else "white"
        weight = "bold" if own else "normal"
        place: Named = {"ha": "center", "color": color, "fontweight": weight}
        ax.text(column, row, f"{value:.2f}", va="bottom", fontsize=7, **place)
        ax.text(column, row + 0.05, words, va="top", fontsize=4.5, **place)
    ax.set_xticks(range(len(NORMS)), NORMS, fontsize=7)
    ax.set_yticks(range(len(mean)), [RULES[str(rule)][0] for rule in arrays["rules"]], fontsize=7)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    describe(ax, title)


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Certificates; whether each optimizer leads in its norm; whether alignment rises with training."""
    rules = [str(rule) for rule in arrays["rules"]]
    found = [
        Check(
            "share of certified programs", DERIVED, "definition", 1.0, float(arrays["certified"].mean()), 0.0
        )
    ]
    for name, where in (("ratio", "own"), ("same ratio", "equal")):
        for row, rule in enumerate(rules):
            words, norm = RULES[rule]
            leads = float(arrays[name][0][:, NORMS.index(norm)].argmax() == row)
            what = f"{words} leads in the {norm} margin, {where} selections"
            found.append(Check(what, CONJECTURED, LAYER, 1.0, leads, 0.0, DEEP, True))
    for rule in rules:
        curve = arrays[f"layers {rule}"].mean(1)
        rises = float(curve[-1] > curve[0])
        found.append(
            Check(f"{RULES[rule][0]}: alignment rises", CONJECTURED, LAYER, 1.0, rises, 0.0, DEEP, True)
        )
    return found


LAYER = "theory of one layer, carried over"
DEEP = "no theorem: the heads of a deep net, far from saturation"
