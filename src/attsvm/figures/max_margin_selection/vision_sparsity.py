"""A ViT on 2 × 2 patches of CIFAR-10: attention grows sparse while its weights grow, as recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas

from attsvm.figures.accuracy import within
from attsvm.figures.figure import CONJECTURED, Arrays, Check
from attsvm.figures.panels import describe
from attsvm.figures.papers import MAX_MARGIN
from attsvm.figures.recorded import facts, recorded
from attsvm.figures.style import BLUE, ORANGE
from attsvm.numbers import Float

RUN, SIDE = "patches-adam", 16


SHOWS = (
    "A ViT on 2 × 2 patches (T = 256), trained by Adam. Attention of the class token in the last layer: its "
    "soft sparsity falls from 233 tokens to 20 within four epochs while the key-query norm rises. After that "
    "both rise: a larger norm alone does not make attention sparser. Below, maps of four test images."
)
NOTES = (
    "A net of width 192, depth 6 and 3 heads, 17 epochs of Adam at 1e-4; the paper has ViT-base, 400 epochs "
    "at 3e-3. We know its figure from recollection and the authors' slides, and remember no turn after epoch "
    "4: nothing here confirms or contradicts it yet."
)


@MAX_MARGIN.figure(
    "vision-sparsity",
    "Attention of a vision transformer over epochs",
    shows=SHOWS,
    notes=NOTES,
    **facts("transformers"),
)
def experiment() -> Arrays:
    """Soft sparsity and norm by epoch (from 0), maps (epochs, pictures, 16, 16), from the record."""
    run = recorded("transformers")["runs"][RUN]
    named = {int(name): grey for name, grey in run["maps"].items() if name != "last"}
    named[run["trained"]] = run["maps"]["last"]
    shown = sorted(named)
    return {
        "epoch": np.array([0, *run["epoch"]]),
        "soft_sparsity": np.array(run["soft_sparsity"]),
        "norm": np.array(run["norm_last"]),
        "test": np.array(run["test_accuracy"]),
        "shown": np.array(shown),
        "maps": np.array([named[epoch] for epoch in shown]).reshape(len(shown), -1, SIDE, SIDE),
    }


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Both curves above, maps of four pictures over epochs below."""
    columns, rows = len(arrays["shown"]), arrays["maps"].shape[1]
    figure = Canvas(figsize=(7.2, 5.0), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[1, 1.3])
    above, below = parts
    left = above.subplots(1, 1)
    left.plot(arrays["epoch"], arrays["soft_sparsity"], color=BLUE)
    right = left.twinx()
    right.plot(arrays["epoch"], arrays["norm"], color=ORANGE)
    for ax in (left, right):
        ax.spines["top"].set_visible(False)
        ax.tick_params(labelsize=8)
    describe(left, "last layer, class token", "epochs", "soft sparsity 1/‖s‖² (blue)")
    right.set_ylabel("key-query norm (orange)", fontsize=9)
    axes = below.subplots(rows, columns, squeeze=False)
    for (row, column), ax in np.ndenumerate(axes):
        ax.imshow(arrays["maps"][column, row], cmap="magma", vmin=0, vmax=255)
        ax.set_xticks([])
        ax.set_yticks([])
        if row == 0:
            ax.set_title(f"epoch {arrays['shown'][column]}", fontsize=8)
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """From start to end, and epoch by epoch."""
    sparsity, norm = arrays["soft_sparsity"], arrays["norm"]
    short = f"{arrays['epoch'][-1]} of 400 epochs of another net"
    return [
        Check(what, CONJECTURED, SHOWN, wanted, ours, within(bound, words), TURN, short=short)
        for what, wanted, ours, bound, words in (
            (
                "soft sparsity falls from start to end",
                1.0,
                float(sparsity[-1] < sparsity[0]),
                0.0,
                "yes or no",
            ),
            ("the key-query norm rises from start to end", 1.0, float(norm[-1] > norm[0]), 0.0, "yes or no"),
            (
                "rank correlation of the two over epochs",
                -1.0,
                _ranks(sparsity, norm),
                0.5,
                "nearer to −1 than to 0",
            ),
        )
    ]


def _ranks(a: Float, b: Float) -> float:
    return float(np.corrcoef(a.argsort().argsort(), b.argsort().argsort())[0, 1])


SHOWN = "recalled from the paper's figure, which we have not seen again"
TURN = "here soft sparsity falls for four epochs only and then rises again, while the norm goes on growing"
