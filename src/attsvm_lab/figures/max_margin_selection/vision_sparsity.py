"""A ViT on 2 × 2 patches of CIFAR-10: attention grows sparse while its weights grow, as recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.numbers import Float
from attsvm.plotting.layout import describe
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, PURPLE
from attsvm_lab.figures.accuracy import Accuracy, within
from attsvm_lab.figures.figure import CONJECTURED, Arrays, Check
from attsvm_lab.figures.papers import MAX_MARGIN
from attsvm_lab.figures.recorded import facts, recorded

PATCHES, SIDE, SEEDS = ("patches-adam", "patches-adam-1", "patches-adam-2"), 16, 3
"""Three seeds; the maps are those of the first."""
DIGITS = {
    "all": ("digits-adam-3e-4-{0}-150", GREY),
    "fixed, head trained": ("digits-adam-3e-3-{0}-150-last-query-key-head", BLUE),
    "fixed, at chance": ("digits-adam-3e-4-{0}-150-last-query-key", GREEN),
    "fixed after 20 epochs": ("digits-adam-3e-3-{0}-300-last-query-key-digits-adam-3e-4-{0}-20", PURPLE),
}
"""Nets on digits: all weights are trained, or only W_Q and W_K of the last block, on fixed tokens, with or
without the linear head."""
LEARNS = 0.5
"""Train accuracy from which a net on ten classes has learnt something; one at chance is no control."""


SHOWS = (
    "A ViT on 2 × 2 patches (T = 256), trained by Adam, three seeds. Attention of the class token in the "
    "last layer: its soft sparsity falls from 233, 239 and 233 tokens to 25, 16 and 29 within three epochs "
    "while the key-query norm rises. Then both rise: at the end it is 75, 62 and 75, and the norm has "
    "about doubled since. A larger norm alone does not make attention sparser. On digits, right, three "
    "seeds, queries and keys of the last layer on tokens that stay: with the head trained (train accuracy "
    "0.64 to 0.72) it falls from 14 or 15 tokens to 1.13 or 1.15 in 20 to 40 epochs, then rises to 1.26 to "
    "1.43 while the norm goes on growing. With the head fixed, too, it falls all the way, but these nets "
    "stay at chance (0.10). Below, maps of four test images."
)
NOTES = (
    "A net of width 192, depth 6 and 3 heads, Adam at 1e-4, three seeds of 400 epochs; the "
    "paper has ViT-base, 400 epochs at 3e-3. We know its figure from recollection and the authors' slides, "
    "and remember no turn after three epochs: a smaller net and smaller steps turn, what its own do is not "
    "known."
)


@MAX_MARGIN.figure(
    "vision-sparsity",
    "Attention of a vision transformer over epochs",
    shows=SHOWS,
    notes=NOTES,
    **facts("transformers"),
)
def experiment() -> Arrays:
    """Of every recorded net (3, epochs): epoch, norm, soft sparsity; maps (epochs, pictures, 16, 16)."""
    runs, arrays = recorded("transformers")["runs"], {}
    nets = {f"patches {seed}": name for seed, name in enumerate(PATCHES)}
    nets |= {f"{kind} {seed}": DIGITS[kind][0].format(seed) for kind in DIGITS for seed in range(SEEDS)}
    for name, run in ((name, runs[net]) for name, net in nets.items() if net in runs):
        arrays[name] = np.array([[0, *run["epoch"]], run["norm_last"], run["soft_sparsity"]])
        arrays[f"learnt {name}"] = np.array(run["train_accuracy"][-1])
    first = runs[PATCHES[0]]
    maps_by_epoch = {int(name): grey for name, grey in first["maps"].items() if name != "last"}
    maps_by_epoch[first["trained"]] = first["maps"]["last"]
    epochs = sorted(maps_by_epoch)
    maps = np.array([maps_by_epoch[epoch] for epoch in epochs]).reshape(len(epochs), -1, SIDE, SIDE)
    return arrays | {"shown": np.array(epochs), "maps": maps}


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Both curves, and the two of nets on digits against each other; maps over epochs below."""
    columns, rows = len(arrays["shown"]), arrays["maps"].shape[1]
    figure = Canvas(figsize=(7.2, 5.0), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[1, 1.3])
    above, below = halves
    curves, control = above.subplots(1, 2)
    norm_axis = curves.twinx()
    for epochs, norm, soft in by_seed(arrays, "patches"):
        curves.plot(epochs, soft, color=BLUE, lw=0.9)
        norm_axis.plot(epochs, norm, color=ORANGE, lw=0.9)
    _control(control, arrays)
    curves.set_xscale("symlog", linthresh=1)  # the turn comes after three epochs of 400
    curves.set_xticks([0, 1, 3, 10, 30, 100, 400], ["0", "1", "3", "10", "30", "100", "400"])
    for ax in (curves, norm_axis, control):
        ax.spines["top"].set_visible(False)
        ax.tick_params(labelsize=8)
    describe(curves, "last layer, class token", "epochs", "soft sparsity 1/‖s‖² (blue)")
    norm_axis.set_ylabel("key-query norm (orange)", fontsize=9)
    axes = below.subplots(rows, columns, squeeze=False)
    for (row, column), ax in np.ndenumerate(axes):
        ax.imshow(arrays["maps"][column, row], cmap="magma", vmin=0, vmax=255)
        ax.set_xticks([])
        ax.set_yticks([])
        if row == 0:
            ax.set_title(f"epoch {arrays['shown'][column]}", fontsize=8)
    return figure


def _control(ax: Axes, arrays: Arrays) -> None:
    for name, (_, color) in DIGITS.items():
        for seed, (_, norm, soft) in enumerate(by_seed(arrays, name)):
            ax.plot(norm, soft, color=color, lw=0.9, label=None if seed else name)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks([0.5, 1, 2, 5, 20], ["0.5", "1", "2", "5", "20"])
    ax.set_xticks([], minor=True)
    ax.spines["right"].set_visible(False)
    ax.legend(fontsize=7, frameon=False, title="digits: tokens of the last layer", title_fontsize=7)
    describe(ax, "", "key-query norm", "soft sparsity")


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Changes from start to end, and their correlation over epochs, on the seed where they hold least.

    The same for digits with fixed tokens: a net with its head trained, and one that stays at chance.
    """
    nets = by_seed(arrays, "patches")
    yes, near = within(0.0, "yes or no"), within(0.5, "nearer to −1 than to 0")
    falls = min(float(soft[-1] < soft[0]) for _, _, soft in nets)
    rises = min(float(norm[-1] > norm[0]) for _, norm, _ in nets)
    rows = [
        ("soft sparsity falls from start to end", 1.0, falls, yes),
        ("the key-query norm rises from start to end", 1.0, rises, yes),
        (
            "rank correlation of the two over epochs",
            -1.0,
            max(rank_correlation(*net[1:]) for net in nets),
            near,
        ),
    ]
    checked = [_check(*row, TURN, "of a smaller net at smaller steps") for row in rows]
    return checked + [
        row for name in ("fixed, head trained", "fixed, at chance") for row in _fixed(arrays, name)
    ]


def _fixed(arrays: Arrays, name: str) -> list[Check]:
    """Rows of the nets on digits whose tokens stay: they speak of training only if the net learns."""
    nets = by_seed(arrays, name)
    if not nets:
        return []
    learnt = min(float(arrays[f"learnt {name} {seed}"]) for seed in range(len(nets)))
    short = "" if learnt >= LEARNS else f"train accuracy {learnt:.2f}: this net learns nothing"
    falls = min(float(soft[-1] < soft[0]) for _, _, soft in nets)
    worst = max(rank_correlation(*net[1:]) for net in nets)
    yes, near = within(0.0, "yes or no"), within(0.5, "nearer to −1 than to 0")
    return [
        _check(f"digits, {name}: soft sparsity falls from start to end", 1.0, falls, yes, FIXED, short),
        _check(f"digits, {name}: rank correlation, worst of three seeds", -1.0, worst, near, FIXED, short),
    ]


def by_seed(arrays: Arrays, name: str) -> list[Float]:
    """The arrays of all recorded seeds of a net."""
    return [arrays[f"{name} {seed}"] for seed in range(SEEDS) if f"{name} {seed}" in arrays]


def _check(
    quantity: str, reference: float, ours: float, accuracy: Accuracy, why: str, short: str = ""
) -> Check:
    return Check(quantity, CONJECTURED, SHOWN, reference, ours, accuracy, why, short=short)


def rank_correlation(a: Float, b: Float) -> float:
    """Spearman's rank correlation."""
    return float(np.corrcoef(a.argsort().argsort(), b.argsort().argsort())[0, 1])


SHOWN = "recalled from the paper's figure, which we have not seen again"
TURN = "here soft sparsity falls for three epochs only and then rises again, while the norm goes on growing"
FIXED = "the tokens that the last block sees stay at those of the initial weights"
