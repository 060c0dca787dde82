"""The end of training against the width d: at the best tokens, at a local optimum, or at neither.

"Transformers as Support Vector Machines", bar figures of global and local convergence.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, label
from attsvm_lab import programs
from attsvm_lab.figures.accuracy import counted, digits
from attsvm_lab.figures.figure import RUN, Arrays, Check, scales
from attsvm_lab.figures.papers import TRANSFORMERS

STARTS = 10_000
"""First seed of the starting points: the data take the seeds 0, 1, …"""
WIDTHS = {2: (2, 3, 4, 5, 10, 20), 5: (4, 5, 10, 20, 40)}
"""Per number of examples n; T = 5."""
N, T, D = 5, 5, 40
TWIN = {
    "global": {2: (0.96, 0.94, 0.98, 0.96, 0.98, 1.00), 5: (0.63, 0.72, 0.86, 0.96, 0.99)},
    "local": {2: (0.99, 1.00, 0.99, 0.99, 1.00, 1.00), 5: (0.97, 0.97, 1.00, 0.99, 1.00)},
    "saturated": {2: (0.89, 0.99, 1, 1, 1, 1), 5: (1, 1, 1, 1, 1)},
    "support": {2: (0, 0, 0, 0.01, 0.04, 0.29), 5: (0, 0, 0, 0.02, 0.23)},
}
"""Shares of an independent computation on other draws, 100 trials, 1,000 steps, for the widths above."""
WORDS = {
    "global": "ends at the best tokens",
    "local": "ends locally optimal",
    "saturated": "least attention > 0.9",
    "support": "Assumption B.1 holds",
}


@TRANSFORMERS.figure(
    "where-it-ends",
    "Where training ends, against the width",
    shows=(
        "Wider tokens make training global: with n = 5 the share that ends at the best tokens rises "
        "from about 0.6 at d = 4 to nearly 1 at d = 40. Almost every run ends locally optimal, and "
        "Assumption B.1 (every token supports) is far from necessary for a global end."
    ),
    notes=(
        "The bars of the paper give no sizes, trial counts or percentages that could be recovered; the "
        "numbers are compared with an independent computation of the same experiment."
    ),
    sizes=scales(runs=(12, 100, 500), steps=(1_000, 1_000, 1_000)),
    long_runs=True,
    seconds=14,
)
def experiment(runs: int, steps: int) -> Arrays:
    """Per (n, d) and run, booleans (runs,): global, local (global included), saturated, support (B.1).

    All sizes are padded to the largest, so that one compiled program trains them.
    """
    sizes = [(n, d) for n, widths in WIDTHS.items() for d in widths]
    problems = [_padded(n, d, runs) for n, d in sizes]
    keys, queries, labels, mask, v, init = (np.concatenate(values) for values in zip(*problems, strict=True))
    tokens, rule = att.Tokens(keys, queries, labels, mask), att.steepest(att.frobenius, 0.1)
    path = att.train(tokens, att.Linear(v), optimizer=rule, steps=steps, init=init, record=2)
    arrays: Arrays = {}
    for name, values in _ends(path, v).items():
        by_size = np.split(values, len(sizes))
        arrays |= {
            f"{name}_{n}_{d}": runs_of_size for (n, d), runs_of_size in zip(sizes, by_size, strict=True)
        }
    return arrays


def _padded(n: int, d: int, runs: int) -> tuple[Any, ...]:
    """Unit-sphere problems and their starts, padded to the largest shape without a change of descent.

    Keys get zero coordinates, in which W never moves. Queries and W have coordinates in the span of the
    queries, on which logits and gradients depend. Added examples have one token, and so no gradient.
    """
    tokens, v = att.datasets.sphere(n, T, d, seed=range(runs))
    start = att.uniform(range(STARTS, STARTS + runs))({"W": (d, d)})["W"]
    basis = np.linalg.qr(tokens.queries.swapaxes(1, 2))[0]
    mask = np.zeros((runs, N, T), bool)
    mask[:, :n], mask[:, n:, 0] = True, True
    return (
        _with_block(np.zeros((runs, N, T, D)), tokens.keys),
        _with_block(np.zeros((runs, N, N)), tokens.queries @ basis),
        _with_block(np.ones((runs, N)), tokens.labels),
        mask,
        _with_block(np.zeros((runs, D)), v),
        _with_block(np.zeros((runs, D, N)), start @ basis),
    )


def _with_block(array: Float, block: Float) -> Float:
    """The array with its first entries along every axis replaced by the block."""
    array[tuple(slice(length) for length in block.shape)] = block
    return array


def _ends(path: att.Path, v: Float) -> dict[str, Any]:
    kind = att.classify(path, v)
    return {
        "global": kind == "global",
        "local": np.isin(kind, ("global", "local")),
        "saturated": path.attention[:, -1].max(-1).min(-1) > 0.9,
        "support": programs.all_tokens_support(att.max_margin(path.tokens, att.best_tokens(path.tokens, v))),
    }


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Shares in percent against d, with binomial standard errors; one panel per n."""
    figure, (axes,) = grid(1, 2, 3.2)
    for ax, (n, widths) in zip(axes, WIDTHS.items(), strict=True):
        for shift, name, color in ((-0.27, "global", ORANGE), (0.0, "local", BLUE), (0.27, "support", GREEN)):
            _bars(ax, [arrays[f"{name}_{n}_{d}"] for d in widths], shift, color)
        for x, d in enumerate(widths):
            neither = 100 * (1 - arrays[f"local_{n}_{d}"].mean())
            label(ax, x, 106, f"{neither:.0f} %", GREY, ha="center")
        ax.set(ylim=(0, 133), yticks=range(0, 101, 20), xticks=range(len(widths)), xticklabels=widths)
        describe(ax, f"n = {n} inputs, T = 5", "width d of a token", "% of the trials")
        label(ax, 0.01, 0.96, "global", ORANGE, xycoords="axes fraction")
        label(ax, 0.17, 0.96, "local (global included)", BLUE, xycoords="axes fraction")
        label(ax, 0.60, 0.96, "Assumption B.1 holds", GREEN, xycoords="axes fraction")
        label(ax, 0.01, 0.89, "not local:", GREY, xycoords="axes fraction")
    return figure


def _bars(ax: Axes, groups: list[Any], shift: float, color: str) -> None:
    share = np.array([group.mean() for group in groups])
    error = np.sqrt(share * (1 - share) / len(groups[0]))
    x = np.arange(len(groups)) + shift
    ax.bar(x, 100 * share, 0.25, yerr=100 * error, color=color, error_kw={"lw": 0.8})


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Shares against an independent computation, and the paper's message: more global for larger d."""
    rows = []
    for name, outcome in WORDS.items():
        for n, widths in WIDTHS.items():
            for d, share in zip(widths, TWIN[name][n], strict=True):
                ours = arrays[f"{name}_{n}_{d}"]
                accuracy = digits(2) + counted(float(ours.mean()), len(ours), share, 100)
                rows.append(Check(f"{outcome}, n = {n}, d = {d}", RUN, SOURCE, share, ours.mean(), accuracy))
    return rows


SOURCE = "independent NumPy run"
