"""The optimizer's geometry inside the heads of trained encoders: margins in several norms, as recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.figures.accuracy import exactly
from attsvm.figures.figure import CONJECTURED, DERIVED, Arrays, Check
from attsvm.figures.ours import head_pairs
from attsvm.figures.ours.head_ranks import bootstrap
from attsvm.figures.panels import describe
from attsvm.figures.papers import OURS
from attsvm.figures.recorded import facts, recorded
from attsvm.figures.style import colours

Named = dict[str, Any]
RULES = {
    "mirror1.1": ("mirror, p = 1.1", ""),
    "mirror2": ("GD (p = 2)", "nuclear"),
    "mirror3": ("mirror, p = 3", ""),
    "adam": ("Adam", ""),
    "sign": ("sign descent", ""),
    "spectral": ("spectral descent", "spectral"),
}
"""Each optimizer's name, and the norm of W in which the law of halves would have it lead, where it is known:
W_Q and W_K are trained, and least products of their lp norms have no closed form unless p = 2."""
NORMS = ("Frobenius", "nuclear", "spectral", "l1.1", "l3", "linf")
START = "sentiment-3-mirror1.1-0/heads-0000"
"""The net before training, which is the same for all: they share the seed."""


MIRRORS = ("mirror1.1", "mirror2", "mirror3")
GROUPS: dict[str, tuple[int, tuple[str, ...], tuple[str, ...]]] = {
    "own": (3, tuple(RULES), NORMS),
    "equal": (3, tuple(RULES), NORMS),
    "equal 4": (4, MIRRORS, ("Frobenius", "nuclear", "l1.1", "l3")),
    "equal 6": (6, MIRRORS, ("Frobenius", "nuclear", "l1.1", "l3")),
}
"""Size, optimizers and norms of each comparison: on own selections, or on those that all of them make."""


SHOWS = (
    "Above, encoders of size 3 trained to 0.995 by mirror descent with p = 1.1, divided by those with p = "
    "2 of the same initial weights: three seeds and the 95 % interval of their mean. Shares of the "
    "certified best margin on eight selections that both nets make, of W in a norm and of K and Q by the "
    "product of theirs; shapes of heads and of what training added; how many weights have a size. Below "
    "left, six optimizers, one seed: a head's margin in percent of the best, mean and 95 % interval over "
    "heads, in bold the optimizer's norm by the law of halves. Right: the cosine to the Frobenius program "
    "over training."
)
NOTES = (
    "A hierarchy of SVMs, as the second paper hopes for, is not what these nets are: mean margins stay "
    "below two percent of the best, and an optimizer that leads does so in nearly all norms at once. "
    "Three seeds do not tell p = 1.1 from p = 2 by any margin. What does is the spread of what was added "
    "to K and Q, about half: sparser, and more so than the shape of one step gives. But at this size "
    "large weights are more, not fewer."
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

    For each of GROUPS; also the mean Frobenius cosine of each layer of size 3 at the kept epochs.
    """
    record = recorded("heads")
    heads, same, last = record["heads"], record["same"], record["last"]
    arrays: Arrays = {}
    for group, (size, rules, norms) in GROUPS.items():
        names = {rule: f"sentiment-{size}-{rule}-0" for rule in rules}
        found = {rule: heads.get(f"{name}/heads-last", ()) for rule, name in names.items()}
        if group != "own":
            found = {rule: same.get(name, ()) for rule, name in names.items()}
        arrays |= _compared(group, {rule: nets for rule, nets in found.items() if nets}, norms)
    pairs = record.get("pairs", {}).get("nets", {})
    every = [head["margins"] for kind in (heads, same, pairs) for found in kind.values() for head in found]
    arrays["certified"] = np.array([one["certified"] for found in every for one in found.values()])
    for rule in arrays["own rules"]:
        files = [file for file in heads if file.startswith(f"sentiment-3-{rule}-0/") or file == START]
        epochs = [_epoch(file, last[f"sentiment-3-{rule}-0"]) for file in files]
        at = np.argsort(epochs)
        arrays[f"epochs {rule}"] = np.sort(epochs)
        arrays[f"layers {rule}"] = np.array([_layers(heads[files[k]]) for k in at])
    return arrays | head_pairs.experiment()


def _compared(group: str, nets: dict[str, list[Named]], norms: tuple[str, ...]) -> Arrays:
    """What the heads of some optimizers have, nothing where there are none."""
    if not nets:
        return {}
    out: Arrays = {f"{group} rules": np.array(list(nets)), f"{group} norms": np.array(norms)}
    for name in ("ratio", "cosine"):
        values = [[[head["margins"][n][name] for head in net] for n in norms] for net in nets.values()]
        out[f"{group} {name}"] = bootstrap(np.moveaxis(np.array(values), -1, 0)).T
    out[f"{group} mass"] = np.array([np.mean([head["mass"] for head in net]) for net in nets.values()])
    return out | {f"{group} heads": np.array([len(net) for net in nets.values()])}


def _epoch(file: str, last: int) -> int:
    stamp = file.rsplit("-", 1)[1]
    return last if stamp == "last" else int(stamp)


def _layers(found: list[Named]) -> list[float]:
    """Mean Frobenius cosine of each layer."""
    layers = sorted({head["layer"] for head in found})
    each = {
        layer: [h["margins"]["Frobenius"]["cosine"] for h in found if h["layer"] == layer] for layer in layers
    }
    return [float(np.mean(each[layer])) for layer in layers]


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Pairs of p = 1.1 and 2; margins by optimizer and norm on equal selections; alignment over epochs."""
    figure = Canvas(figsize=(7.2, 5.6), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[1, 1.1])
    ways = (head_pairs.draw_margins, head_pairs.draw_shapes, head_pairs.draw_weights)
    for draws, ax in zip(ways, parts[0].subplots(1, 3, width_ratios=[1, 1, 1.2]), strict=True):
        draws(ax, arrays, "3")
        ax.spines[["top", "right"]].set_visible(False)
    left, right = parts[1].subplots(1, 2, width_ratios=[1.2, 1])
    _table(left, arrays, "equal", "one seed: margin, %")
    rules = [str(rule) for rule in arrays["own rules"]]
    for rule, color in zip(rules, colours(len(rules)), strict=True):
        for layer, style in enumerate(("-", "--", ":")):
            name = None if layer else RULES[rule][0]
            curve = arrays[f"layers {rule}"][:, layer]
            right.plot(arrays[f"epochs {rule}"], curve, style, color=color, lw=1, label=name)
    right.set_ylim(bottom=0)
    right.legend(fontsize=6, frameon=False, ncols=2, loc="lower right")
    right.tick_params(labelsize=8)
    right.spines[["top", "right"]].set_visible(False)
    describe(right, "layers: first –, second --, last ···", "epoch", "cosine to the Frobenius program")
    return figure


def _table(ax: Axes, arrays: Arrays, group: str, title: str) -> None:
    describe(ax, title)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    if f"{group} ratio" not in arrays:
        return
    mean, low, high = 100 * arrays[f"{group} ratio"]
    rules, norms = ([str(x) for x in arrays[f"{group} {name}"]] for name in ("rules", "norms"))
    ax.imshow(mean / mean.max(0), cmap="cividis", vmin=0, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(mean):
        own = RULES[rules[row]][1] == norms[column]
        words = f"{low[row, column]:.2f}–{high[row, column]:.2f}"
        color = "black" if value > 0.6 * mean[:, column].max() else "white"
        place: Named = {"ha": "center", "color": color, "fontweight": "bold" if own else "normal"}
        ax.text(column, row, f"{value:.2f}", va="bottom", fontsize=7, **place)
        ax.text(column, row + 0.05, words, va="top", fontsize=4.5, **place)
    ax.set_xticks(range(len(norms)), norms, fontsize=7)
    ax.set_yticks(range(len(mean)), [RULES[rule][0] for rule in rules], fontsize=7)


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Certificates; whether each optimizer leads in its norm; whether alignment rises with training."""
    share = float(arrays["certified"].mean())
    found = [
        Check("share of certified programs", DERIVED, "definition", 1.0, share, exactly("every program"))
    ]
    for group, (size, _, _) in GROUPS.items():
        if f"{group} ratio" in arrays:
            found += _leads(arrays, group, f"size {size}, {group.split()[0]} selections")
    for rule in arrays["own rules"]:
        curve = arrays[f"layers {rule}"].mean(1)
        what, rises = f"{RULES[str(rule)][0]}: alignment rises", float(curve[-1] > curve[0])
        found.append(Check(what, CONJECTURED, LAYER, 1.0, rises, exactly("yes or no"), DEEP))
    return found + head_pairs.checks(arrays)


def _leads(arrays: Arrays, group: str, where: str) -> list[Check]:
    """Whether an optimizer has the largest mean margin in the norm that the law names."""
    rules, norms = ([str(x) for x in arrays[f"{group} {name}"]] for name in ("rules", "norms"))
    found = []
    for row, rule in enumerate(rules):
        words, norm = RULES[rule]
        if not norm:
            continue
        leads = float(arrays[f"{group} ratio"][0][:, norms.index(norm)].argmax() == row)
        what = f"{words} leads in the {norm} margin, {where}"
        found.append(Check(what, CONJECTURED, LAYER, 1.0, leads, exactly("yes or no"), DEEP))
    return found


LAYER = "theory of one head, carried over"
DEEP = "no theorem: the heads of a deep net, far from saturation"
