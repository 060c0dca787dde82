"""A ViT on 2 × 2 patches of CIFAR-10: attention grows sparse while its weights grow, as recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.numbers import Float
from attsvm.plotting.panels import describe
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, PURPLE
from attsvm_lab.figures.accuracy import Accuracy, within
from attsvm_lab.figures.figure import CONJECTURED, Arrays, Check
from attsvm_lab.figures.papers import MAX_MARGIN
from attsvm_lab.figures.recorded import facts, recorded

PATCHES, SIDE, SEEDS = ("patches-adam", "patches-adam-1", "patches-adam-2"), 16, 3
"""Three seeds; the maps are those of the first."""
DIGITS = {
    "all": ("digits-adam-3e-4-{0}-150", GREY),
    "fixed from the start": ("digits-adam-3e-4-{0}-150-last-query-key", GREEN),
    "fixed after 20 epochs": ("digits-adam-3e-3-{0}-300-last-query-key-digits-adam-3e-4-{0}-20", PURPLE),
}
"""Nets on digits: all weights are trained, or only W_Q and W_K of the last block, on fixed tokens."""


SHOWS = (
    "A ViT on 2 × 2 patches (T = 256), trained by Adam, three seeds. Attention of the class token in the "
    "last layer: its soft sparsity falls from 233, 239 and 233 tokens to 25, 16 and 29 within three epochs "
    "while the key-query norm rises. Then both rise: at the end it is 75, 62 and 75, and the norm has "
    "about doubled since. A larger norm alone does not make attention sparser. On digits, right, three "
    "seeds: where only queries and keys of the last layer are trained, on tokens that stay, it falls with "
    "the norm all the way; after 20 epochs of everything it rises first and falls then. Below, maps of "
    "four test images."
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
    ax.set_xticks([0.5, 1, 2, 5], ["0.5", "1", "2", "5"])
    ax.set_xticks([], minor=True)
    ax.spines["right"].set_visible(False)
    ax.legend(fontsize=7, frameon=False, title="digits: tokens of the last layer", title_fontsize=7)
    describe(ax, "", "key-query norm", "soft sparsity")


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Changes from start to end, and their correlation over epochs, on the seed where they hold least.

    The correlation also for digits with fixed tokens.
    """
    nets, fixed = by_seed(arrays, "patches"), by_seed(arrays, "fixed from the start")
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
    if fixed:
        quantity = "digits, fixed tokens: rank correlation, worst of three seeds"
        checked.append(_check(quantity, -1.0, max(rank_correlation(*net[1:]) for net in fixed), near, FIXED))
    return checked


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
FIXED = "W_Q and W_K of the last block are trained from their initial weights, everything else stays there"
