"""Every optimizer has its norm: margins of seven trainings in seven norms.

After "Implicit Bias of Spectral Descent and Muon" (Fan et al. 2025), carried over to attention, where
it is a conjecture; the row of (K, Q) is the theorem of "Transformers as Support Vector Machines".
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import ON_DARK, ON_LIGHT
from attsvm_lab.figures.accuracy import exactly
from attsvm_lab.figures.figure import CONJECTURED, Arrays, Check, certified, scales
from attsvm_lab.figures.papers import OURS

N, T, D = 4, 5, 10
NORMS: tuple[att.Norm, ...] = (
    att.frobenius,
    att.linf,
    att.spectral,
    att.l1,
    att.Entrywise(1.75),
    att.Entrywise(3),
    att.nuclear,
)
OPTIMIZERS: dict[str, tuple[att.Norm, Any, Any]] = {
    "normalised GD": (att.frobenius, att.FullWeight(), att.steepest(att.frobenius, 0.1)),
    "sign descent": (att.linf, att.FullWeight(), att.steepest(att.linf, 0.1)),
    "spectral descent": (att.spectral, att.FullWeight(), att.steepest(att.spectral, 0.1)),
    "coordinate descent": (att.l1, att.FullWeight(), att.steepest(att.l1, 0.1)),
    "mirror, p = 1.75": (att.Entrywise(1.75), att.FullWeight(), att.mirror(1.75, 0.1)),
    "mirror, p = 3": (att.Entrywise(3), att.FullWeight(), att.mirror(3.0, 1.0)),
    "normalised GD on (K, Q)": (att.nuclear, att.KeyQuery(), att.steepest(att.frobenius, 0.1)),
    "Muon, momentum 0.9": (att.spectral, att.FullWeight(), att.steepest(att.spectral, 0.05, 0.9)),
}
"""The norm in which each is expected to maximise the margin, its weight, and its rule."""


@OURS.figure(
    "optimizer-norms",
    "Every optimizer has its norm",
    shows=(
        "Each training ends with nearly the best possible margin in one norm only, its own (bold): the "
        "choice of the optimizer is the choice of the norm. Medians over random data; all trainings "
        "select the same tokens."
    ),
    sizes=scales(
        runs=(4, 8, 50),
        steps=(3_000, 10_000, 100_000),
        optimizers=(tuple(OPTIMIZERS)[:4], tuple(OPTIMIZERS)[:7], tuple(OPTIMIZERS)),
    ),
    seconds=18,
)
def experiment(runs: int, steps: int, optimizers: tuple[str, ...]) -> Arrays:
    """Margin of each training in each norm over the best possible, (optimizers, norms, runs)."""
    tokens = equal_losers(runs)
    selected = np.broadcast_to(np.arange(T) == 0, (runs, N, T))
    best = [att.max_margin(tokens, selected, norm) for norm in NORMS]
    ratios, selections = [], []
    for optimizer in optimizers:
        _, weight, rule = OPTIMIZERS[optimizer]
        init = att.uniform(range(runs)) if isinstance(weight, att.KeyQuery) else None
        path = att.train(
            tokens, att.Linear(np.ones(1)), weight=weight, optimizer=rule, steps=steps, init=init, record=(1,)
        )
        ratios.append([att.margin_ratio(path, solution)[:, -1] for solution in best])
        selections.append((path.selected == selected).all((-2, -1)))
    return {
        "optimizers": np.array(optimizers),
        "ratio": np.array(ratios),
        "chosen": np.array(selections),
        "certified": np.array([solution.certified for solution in best]),
    }


def equal_losers(runs: int) -> att.Tokens:
    """Random unit keys and queries; token 0 scores 1, all others 0, so that every run selects token 0."""
    drawn, _ = att.datasets.sphere(N, T, D, seed=range(runs))
    scores = np.broadcast_to((np.arange(T) == 0).astype(float)[:, None], (runs, N, T, 1))
    return att.Tokens(drawn.keys, drawn.queries, values=scores)


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """The heat map with medians in the cells; the norm that each training should maximise is bold."""
    table, rows = np.median(arrays["ratio"], axis=-1), [str(row) for row in arrays["optimizers"]]
    figure, ((ax,),) = grid(1, 1, 1.0 + 0.36 * len(rows))
    image = ax.imshow(table, cmap="cividis", vmin=0.2, vmax=1.0, aspect="auto")
    for (row, column), ratio in np.ndenumerate(table):
        bold = "bold" if OPTIMIZERS[rows[row]][0] == NORMS[column] else "normal"
        color = ON_LIGHT if ratio > 0.65 else ON_DARK
        text = ax.text(column, row, f"{ratio:.3f}", ha="center", va="center", fontsize=9, color=color)
        text.set_fontweight(bold)
    ax.set_yticks(range(len(rows)), rows)
    ax.set_xticks(range(len(NORMS)), [str(norm) for norm in NORMS])
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0, labelsize=9)
    title = "margin of the trained W as a fraction of the best possible in the norm of the column"
    describe(ax, title, "margin measured in the norm", "trained by")
    bar = figure.colorbar(image, ax=ax, pad=0.01)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Every training is nearest to the best margin in its own norm, and leads the column of that norm."""
    table, rows = np.median(arrays["ratio"], axis=-1), [str(row) for row in arrays["optimizers"]]
    best, expected = arrays["chosen"].mean(), "expected: all other scores are equal"
    quantity, exact = "share of runs that select the best tokens", exactly("every run")
    checked = [Check(quantity, CONJECTURED, expected, 1.0, best, exact), certified(arrays)]
    for row, optimizer in enumerate(rows):
        norm = NORMS.index(OPTIMIZERS[optimizer][0])
        quantity = f"{optimizer}: best column is its own norm, {NORMS[norm]}"
        checked.append(
            Check(quantity, CONJECTURED, FAN, norm, table[row].argmax(), exactly("a column's number"))
        )
    owned = {NORMS.index(OPTIMIZERS[optimizer][0]) for optimizer in rows}
    return checked + [_leads(table, rows, column) for column in sorted(owned)]


def _leads(table: Float, rows: list[str], column: int) -> Check:
    """The training of a norm against the best other training in that norm."""
    owners = [row for row, optimizer in enumerate(rows) if OPTIMIZERS[optimizer][0] == NORMS[column]]
    competitors = np.delete(table[:, column], owners)
    lead = float(table[owners, column].max() - competitors.max(initial=0.0))
    quantity = f"{NORMS[column]}: shortfall of its own training behind the best other"
    return Check(quantity, CONJECTURED, FAN, 0.0, max(-lead, 0.0), exactly("it leads"))


FAN = "conjecture after Fan et al. 2025"
