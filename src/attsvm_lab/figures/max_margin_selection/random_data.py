"""Random data: how often training selects the best tokens, a locally optimal selection, or neither.

"Max-Margin Token Selection in Attention Mechanism", the experiment on random data.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, label
from attsvm_lab import programs
from attsvm_lab.figures.accuracy import counted, digits
from attsvm_lab.figures.figure import RUN, Arrays, Check, scales
from attsvm_lab.figures.max_margin_selection.protocol import descend
from attsvm_lab.figures.papers import MAX_MARGIN

T = 5
WIDTHS = {1: (2, 3, 5, 10, 20), 2: (4, 8, 16, 32)}
PUBLISHED = {  # share of runs, by number of inputs and width d
    "global": {1: (1.00, 0.99, 0.98, 1.00, 1.00), 2: (0.77, 0.82, 0.94, 0.99)},
    "local": {1: (1.00, 1.00, 0.99, 1.00, 1.00), 2: (0.99, 1.00, 1.00, 1.00)},
    "separable": {1: (1.00,) * 5, 2: (0.90, 1.00, 1.00, 1.00)},
    "all_support": {1: (0.0, 0.0, 0.04, 0.24, 0.60), 2: (0.0, 0.0, 0.03, 0.14)},
}
TRIALS = 200
"""Number of runs of each of these shares."""
NAMES = {
    "global": "best tokens",
    "local": "locally optimal",
    "separable": "best tokens separable",
    "all_support": "all tokens support",
}
PLACES = {
    1: {"global": (0.0, 0.86), "local": (0.0, 1.04), "all_support": (0.9, 0.25)},
    2: {"global": (0.5, 0.72), "local": (0.0, 1.04), "separable": (0.0, 0.61), "all_support": (1.5, 0.25)},
}
"""Position of the name of each share, by number of inputs."""


@MAX_MARGIN.figure(
    "random-data",
    "Random data: global, local, neither",
    shows=(
        "Unit tokens, random head and labels, 2,000 normalised steps. Practically every run ends at a "
        "locally optimal selection; the share that selects the best tokens grows with d, long before "
        "all tokens support the program. Circles: an independent script; bands: one standard error."
    ),
    notes=(
        "The independent share 0.60 of runs with all tokens supporting (n = 1, d = 20) is 2.8 of its "
        "standard errors too high: 20,000 programs give 0.501."
    ),
    sizes=scales(runs=(50, 200, 5_000), steps=(1_000, 2_000, 2_000), inputs=((2,), (1, 2), (1, 2))),
    seconds=9,
)
def experiment(runs: int, steps: int, inputs: Sequence[int]) -> Arrays:
    """Counts of runs, by kind and number of inputs n, one per width d: arrays `kind_n` (widths,)."""
    arrays: Arrays = {"runs": np.array(runs), "inputs": np.array(inputs)}
    for n in inputs:
        tokens, v, start = _problems(n, runs)
        kind = att.classify(descend(tokens, v, [steps], start), v)
        best = att.max_margin(tokens, att.best_tokens(tokens, v))
        outcomes = {"global": kind == "global", "local": np.isin(kind, ("global", "local"))}
        outcomes |= {
            "separable": best.separable,
            "all_support": best.separable & programs.all_tokens_support(best),
        }
        for name, flags in outcomes.items():
            arrays[f"{name}_{n}"] = flags.reshape(len(WIDTHS[n]), runs).sum(-1)
    return arrays


def _problems(n: int, runs: int) -> tuple[att.Tokens, Float, Float]:
    """Tokens, heads and starts of all widths as runs of the largest one."""
    widths, seeds = WIDTHS[n], range(runs)
    drawn = [att.datasets.prompt_sphere(n, T, d, seed=seeds) for d in widths]
    starts = [att.gaussian(seeds, 0.01)({"W": (d, 1)})["W"][..., 0] for d in widths]

    def join(arrays: list[Float]) -> Float:
        # Zeros appended to the last axis change no product, so all widths train at once.
        pads = ([(0, 0)] * (array.ndim - 1) + [(0, max(widths) - array.shape[-1])] for array in arrays)
        return np.concatenate(list(map(np.pad, arrays, pads)))

    labels = np.concatenate([tokens.labels for tokens, _ in drawn])
    keys, v = join([tokens.keys for tokens, _ in drawn]), join([head for _, head in drawn])
    return att.Tokens(keys, labels=labels), v, join(starts)[..., None]


def error(share: Float, runs: int) -> Float:
    """Standard error of binomial shares after Agresti and Coull, so that a share of 0 has an error, too."""
    shrunk = (np.asarray(share) * runs + 2) / (runs + 4)
    return np.asarray(np.sqrt(shrunk * (1 - shrunk) / runs))


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Shares against the width d, one panel per number of inputs."""
    figure, (axes,) = grid(1, len(arrays["inputs"]), 3.2)
    for ax, n in zip(axes, map(int, arrays["inputs"]), strict=True):
        _panel(ax, arrays, n, WIDTHS[n])
        ax.set_title(f"{n} input{'s' if n > 1 else ''} of {T} tokens")
    axes[0].set_ylabel("share of runs")
    label(axes[-1], 0.0, 0.52, "○ independent script", GREY)
    return figure


def _panel(ax: Axes, arrays: Arrays, n: int, widths: tuple[int, ...]) -> None:
    runs = int(arrays["runs"])
    for name, color in (("all_support", GREEN), ("separable", GREY), ("local", ORANGE), ("global", BLUE)):
        share = arrays[f"{name}_{n}"] / runs
        band = error(share, runs)
        x = np.arange(len(widths))
        ax.fill_between(x, share - band, np.minimum(share + band, 1), color=color, alpha=0.2, lw=0)
        ax.plot(x, share, color=color, ls=":" if name == "separable" else "-")
        ax.plot(x, PUBLISHED[name][n], "o", ms=4.5, mfc="white", mec=color)
        if name in PLACES[n]:
            label(ax, *PLACES[n][name], NAMES[name] + (" (dotted)" if name == "separable" else ""), color)
    ax.set(xticks=x, xticklabels=[str(d) for d in widths], xlabel="width d", ylim=(-0.03, 1.1))


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Every share beside the share of 200 independent runs."""
    runs, checked = int(arrays["runs"]), []
    for name, rows in PUBLISHED.items():
        for n, shares in ((int(n), rows[int(n)]) for n in arrays["inputs"]):
            ours = arrays[f"{name}_{n}"] / runs
            for d, published, share in zip(WIDTHS[n], shares, ours, strict=True):
                accuracy = digits(2) + counted(float(share), runs, published, TRIALS)
                quantity = f"{NAMES[name]}, n = {n}, T = {T}, d = {d}"
                checked.append(Check(quantity, RUN, SOURCE, published, share, accuracy))
    return checked


SOURCE = "independent script, 200 runs each (the paper's own sizes and shares were not recovered)"
