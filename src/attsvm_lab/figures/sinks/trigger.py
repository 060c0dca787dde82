"""Attention sinks as max-margin selections: the published single layer, softmax and ReLU.

"Attention Sinks Are Provably Necessary in Softmax Transformers" (Ran-Milo 2026), the single layer.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREY, ORANGE, label
from attsvm_lab.figures.accuracy import within
from attsvm_lab.figures.figure import CONJECTURED, DERIVED, STATED, Arrays, Check
from attsvm_lab.figures.papers import SINKS
from attsvm_lab.figures.recorded import facts, recorded

KINDS = {"softmax": BLUE, "relu": ORANGE}
MARKS = (0, 1, -1)
"""Coordinates of BOS, the trigger and plain tokens."""
PAPER = "Ran-Milo 2026, the single layer"


@SINKS.figure(
    "sinks",
    "A sink is a max-margin selection",
    shows=(
        "A layer that must give the mean of its tokens at a trigger (here the eighth) and zero elsewhere. "
        "With softmax every other row puts all its attention on the first token, which says nothing; with "
        "ReLU attention such rows are empty. Right: the six entries of W_KᵀW_Q that matter, at the length of "
        "the max-margin program which selects the first token in those rows and ties the others at the "
        "trigger (lines, in closed form). Means of 1,000 texts; three seeds."
    ),
    notes=(
        "The published stopping rule ends after 700 to 950 steps, long before any limit, and Adam on four "
        "matrices has no theorem here: signs, ties and the empty rest of W are those of the program, the "
        "two lengths under either query are not yet equal."
    ),
    **facts("sinks"),
)
def experiment() -> Arrays:
    """Attention (T, T) of the first seed, BOS shares (seeds,) and W (seeds, d, d), of both kinds."""
    arrays: Arrays = {"program": closed_form(16)}
    for kind, runs in recorded("sinks")["runs"].items():
        arrays |= {
            f"attention_{kind}": np.array(runs[0]["attention"]),
            f"W_{kind}": np.array([run["W"] for run in runs]),
            f"bos_{kind}": np.array([run["mean BOS"] for run in runs]),
        }
    return arrays


def closed_form(d: int) -> Float:
    """The program of `datasets.trigger_means` where contents span their space: ‖W‖² = 4/3.

    A plain query gives BOS the logit 2/3 and other tokens −1/3; the trigger gives the opposite signs.
    """
    W = np.zeros((d, d))
    W[MARKS, -1] = 2 / 3, -1 / 3, -1 / 3
    W[:, 1] = -W[:, -1]
    return W


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Both maps of attention, and the entries of W beside the program's."""
    figure, ((soft, relu, right),) = grid(1, 3, 2.9)
    for ax, kind in ((soft, "softmax"), (relu, "relu")):
        ax.imshow(arrays[f"attention_{kind}"], cmap="Blues", vmin=0, vmax=1)
        ax.set_xticks([0, 7, 15], ["1", "8", "16"])
        ax.set_yticks([0, 7, 15], ["1", "8", "16"])
        describe(ax, f"{'ReLU' if kind == 'relu' else 'softmax'} attention", "token seen", "row")
    _entries(right, arrays)
    return figure


def _entries(ax: Axes, arrays: Arrays) -> None:
    best = arrays["program"]
    for place, (query, kind_of_query) in enumerate(((-1, "plain"), (1, "trigger"))):
        for k, mark in enumerate(MARKS):
            at = 4 * place + k
            ax.plot([at - 0.35, at + 0.35], [best[mark, query]] * 2, color=GREY, lw=2)
            for kind, color in KINDS.items():
                W = arrays[f"W_{kind}"]
                scaled = W * np.linalg.norm(best) / np.linalg.norm(W, axis=(1, 2), keepdims=True)
                shift = -0.12 if kind == "softmax" else 0.12
                ax.plot([at + shift] * len(W), scaled[:, mark, query], "o", ms=3.5, color=color)
        label(ax, 4 * place + 1, -1.02, f"{kind_of_query} query", GREY, ha="center")
    ax.axhline(0, color=GREY, lw=0.5)
    ax.set(ylim=(-1.1, 1.1))
    ax.set_xticks([0, 1, 2, 4, 5, 6], ["BOS", "trig.", "plain"] * 2, rotation=45)
    for kind, color, height in (("softmax", BLUE, 0.97), ("ReLU", ORANGE, 0.83)):
        label(ax, 2.3, height, kind, color)
    describe(ax, "logits by kind of token", "", "entry of $W_K^\\top W_Q$, scaled")


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The paper's statements on both kinds of attention, and the program's entries."""
    W, best = arrays["W_softmax"], arrays["program"]
    cosine = float(att.cosine(W, best).min())
    contents = np.linalg.norm(W[:, 2:-1], axis=(1, 2)) / np.linalg.norm(W, axis=(1, 2))
    tie = np.abs(W[:, 1, 1] - W[:, -1, 1]) / np.linalg.norm(W, axis=(1, 2))
    near, nothing = within(0.01, "one, as a limit"), within(0.01, "a hundredth of ‖W‖")
    rough = within(0.1, "the direction is that of the program, still on its way")
    bos, ours = "BOS in rows but the trigger's", "the program of the same rows"
    least, most = arrays["bos_softmax"].min(), arrays["bos_relu"].max()
    return [
        Check(f"softmax: {bos}, least mean of a seed", STATED, PAPER, 1.0, least, near),
        Check(f"ReLU: {bos}, largest mean", STATED, PAPER, 0.0, most, near),
        Check("least cosine of W_KᵀW_Q and the program", CONJECTURED, ours, 1.0, cosine, rough),
        Check("trigger's row: gap of tied keys / ‖W‖", DERIVED, ours, 0.0, tie.max(), nothing),
        Check("contents: share of ‖W‖", DERIVED, ours, 0.0, contents.max(), nothing),
    ]
