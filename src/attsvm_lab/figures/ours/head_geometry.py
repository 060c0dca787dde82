"""The optimizer's geometry inside the heads of trained encoders: pairs of nets, and layers, as recorded."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE
from attsvm_lab.figures.accuracy import exactly
from attsvm_lab.figures.figure import CONJECTURED, Arrays, Check, certified
from attsvm_lab.figures.ours import head_pairs
from attsvm_lab.figures.papers import OURS
from attsvm_lab.figures.recorded import facts, recorded

COLORS = {"1.1": BLUE, "2": ORANGE, "3": GREEN, "start": GREY}
SIZES = (3, 4, 6)
MEASURES = ("attention", "margin", "cosine")
"""By layer, on a head's own selections: the largest attention, the ratio to the best Frobenius margin, and
the cosine to its program."""


SHOWS = (
    "Encoders of size 3 trained to 0.995 by mirror descent with p = 1.1, and with p = 3, divided by those "
    "with p = 2 of the same initial weights: three seeds and the 95 % interval of their mean. Shares of "
    "the certified best margin on eight selections that both nets make, of W in a norm and of K and Q by "
    "the product of theirs; shapes of heads and of what training added; how many weights have a size. "
    "Below, by layer, on a head's own selections: the surest attention, and the cosine to the Frobenius "
    "program."
)
NOTES = (
    "A hierarchy of SVMs, as the second paper hopes for, is not what these nets are: mean margins stay "
    "about two percent of the best, and cosines a tenth. Three seeds do not tell p = 1.1 or 3 from p = 2 "
    "by any margin. What does is the spread of K and Q, less for p = 1.1 and more for p = 3, as the law "
    "would have it. What was added is sparser than that of p = 2 for both: steps of p = 3 move the "
    "smallest weights most. With p = 1.1 large weights are more at this size, not fewer."
)


@OURS.figure(
    "head-geometry", "The optimizer's geometry inside the heads", shows=SHOWS, notes=NOTES, **facts("heads")
)
def experiment() -> Arrays:
    """The pairs, whether their programs are certified, and MEASURES by layer before and after training.

    `layers SIZE P`: (seeds, layers, measures).
    """
    record, pairs = recorded("heads"), head_pairs.experiment()
    margins = [head["margins"] for heads in record["pairs"].values() for head in heads]
    certified = [program["certified"] for by_norm in margins for program in by_norm.values()]
    layers = {
        f"layers {size} {p}": by_norm for size in SIZES for p in COLORS if len(by_norm := seeds(size, p))
    }
    return pairs | layers | {"certified": np.array(certified)}


def seeds(size: int, p: str) -> Float:
    """MEASURES by layer of every seed, (seeds, layers, 3); p = "start": before training."""
    name = "sentiment-{}-mirror1.1-{}/heads-0000" if p == "start" else f"sentiment-{{}}-mirror{p}-{{}}"
    records = (recorded("heads")["layers"].get(name.format(size, seed)) for seed in range(head_pairs.SEEDS))
    return np.array([layers for layers in records if layers])


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Pairs at size 3, a row for each p; layers of sizes 3 and 6."""
    groups = [group for group, (_, size) in head_pairs.GROUPS.items() if size == 3]
    present = [group for group in groups if f"pair {group} seed" in arrays]
    figure, rows = grid(len(present) + 1, 3, 2.6 * len(present) + 2.3)
    drawings = (head_pairs.draw_margins, head_pairs.draw_shapes, head_pairs.draw_weights)
    for group, axes in zip(present, rows, strict=False):
        for drawing, ax in zip(drawings, axes, strict=True):
            drawing(ax, arrays, group)
    panels = ((3, "attention"), (6, "attention"), (3, "cosine"))
    for ax, (size, measure) in zip(rows[-1], panels, strict=True):
        _layers(ax, arrays, size, measure)
    return figure


def _layers(ax: Axes, arrays: Arrays, size: int, measure: str) -> None:
    for p, color in COLORS.items():
        for k, measures in enumerate(arrays.get(f"layers {size} {p}", ())):
            text = None if k else "before training" if p == "start" else f"p = {p}"
            places = np.arange(1, len(measures) + 1)
            ax.plot(places, measures[:, MEASURES.index(measure)], ".-", color=color, lw=0.9, label=text)
    ax.set_ylim(bottom=0)
    ax.set_xticks(range(1, size + 1))
    if size == SIZES[-1] and ax.lines:  # its first layer leaves space for the legend
        ax.legend(fontsize=7, frameon=False, loc="upper right")
    title = "surest attention" if measure == "attention" else "cosine to the program"
    describe(ax, f"size {size}", "layer", title)


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Certificates, whether alignment rises with training, and the checks of the pairs."""
    rows = [certified(arrays)]
    for p in ("1.1", "2", "3"):
        initial, final = (arrays.get(f"layers 3 {x}") for x in ("start", p))
        if initial is not None and final is not None:
            least, most = final[..., 2].mean(1).min(), initial[..., 2].mean(1).max()
            why = f"cosines of {len(final)} seeds: at least {least:.3f}, before training at most {most:.3f}"
            statement = f"size 3, p = {p}: alignment has risen on every seed"
            rows.append(Check(statement, CONJECTURED, LAYER, 1.0, least > most, exactly("yes or no"), why))
    return rows + head_pairs.checks(arrays)


LAYER = "theory of one head, carried over to a deep net"
