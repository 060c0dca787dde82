"""Mirror descent with p = 1.1 and 3 beside gradient descent, seed by seed: margins, shapes and weights.

The two nets of a seed start from the same weights, and their heads are measured on selections that both make.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from attsvm.numbers import Float
from attsvm.plotting.layout import describe
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE
from attsvm_lab.figures.accuracy import exactly
from attsvm_lab.figures.figure import CONJECTURED, Arrays, Check
from attsvm_lab.figures.ours.head_ranks import interval
from attsvm_lab.figures.recorded import recorded

Record = dict[str, Any]
PS, BASE, SEEDS = ("1.1", "3"), "2", 3
"""The mirror descents, the descent they are compared with, and the largest number of seeds."""
GROUPS = {f"{p}, size {size}": (p, size) for p in PS for size in (3, 4, 6)}
"""p and size of the nets."""
MARGINS = {
    "W, Frobenius": ("Frobenius", "ratio"),
    "W, nuclear": ("nuclear", "ratio"),
    "W, l1.1": ("l1.1", "ratio"),
    "W, l3": ("l3", "ratio"),
    "K and Q, Frobenius": ("nuclear", "factors ratio"),
    "K and Q, l1.1": ("l1.1", "factors ratio"),
    "K and Q, l1.1, at most": ("l1.1", "factors most"),
    "K and Q, l3": ("l3", "factors ratio"),
}
"""A head's ratio to the best margin: of W in a norm, or of its factors by the product of their norms."""
COSINES = {
    f"{kind}cosine, {norm}": (norm, f"{kind}cosine")
    for kind in ("", "added ")
    for norm in ("Frobenius", "nuclear", "l1.1", "l3")
}
SHAPES = {
    "soft sparsity": "soft",
    "norm of W": "norm",
    "rank of W": "rank",
    "rank, added": "added rank",
    "spread": "spread",
    "spread, added": "added spread",
}
"""Of a head: soft sparsity 1/‖s‖² of its attention, ‖W‖_F, stable rank ‖W‖_F² / ‖W‖², and the spread of the
weights in K and Q, (Σ|w|)² / (n Σw²): 1 if all weights have one size, 1/n if only one is not zero."""
PATHS = {name: ("margins", *path) for name, path in (MARGINS | COSINES).items()} | {
    name: (key,) for name, key in SHAPES.items()
}
"""The keys of a measure in the record of a head."""
KINDS, BIN, SMALL, LARGE = ("key", "query", "value"), 0.005, 0.005, 0.06
"""Kinds of weights, the width of a histogram's bin, and the limits of small and of large weights."""
START = 384**-0.5
"""Initial weights are uniform between this and its negative."""


def names(group: str) -> list[list[str]]:
    """The two trainings of every seed."""
    p, size = GROUPS[group]
    return [[f"sentiment-{size}-mirror{x}-{seed}" for x in (p, BASE)] for seed in range(SEEDS)]


def experiment() -> Arrays:
    """By group: the seed of a head (n,), its measures (2, n), and counts of weights (2, seeds, bins)."""
    nets, runs = recorded("heads").get("pairs", {}), recorded("transformers")["runs"]
    arrays: Arrays = {}
    for group in GROUPS:
        both = [[f"{a} beside {b}", f"{b} beside {a}"] for a, b in names(group)]
        recorded_pairs = [pair for pair in both if all(name in nets for name in pair)]
        heads = [[head for pair in recorded_pairs for head in nets[pair[side]]] for side in (0, 1)]
        if heads[0]:
            seeds = [k for k, pair in enumerate(recorded_pairs) for _ in nets[pair[0]]]
            arrays[f"pair {group} seed"] = np.array(seeds)
            arrays |= {f"pair {group} {name}": values for name, values in _measured(heads).items()}
        finished = [pair for pair in names(group) if all(runs.get(name, {}).get("ended") for name in pair)]
        ends = [[runs[name]["last"] for name in pair] for pair in finished]
        for kind in KINDS if ends else ():
            for statistic in ("histogram", "large"):
                counts = [[pair[side][f"{statistic}_{kind}"] for pair in ends] for side in (0, 1)]
                arrays[f"pair {group} {statistic} {kind}"] = np.array(counts)
    return arrays


def _measured(heads: list[list[Record]]) -> dict[str, Float]:
    """Every measure that the heads have, (2, n)."""
    measures: dict[str, Float] = {}
    for name, path in PATHS.items():
        values = [[_at(head, path) for head in side] for side in heads]
        if not any(None in side for side in values):
            measures[name] = np.array(values)
    return measures


def _at(head: Record, path: tuple[str, ...]) -> Any:
    """The entry of a head's record at a path, or None."""
    value: Any = head
    for name in path:
        value = None if value is None else value.get(name)
    return value


def by_seed(arrays: Arrays, group: str, name: str) -> Float:
    """Means over the heads of each seed: (2, seeds)."""
    seeds, values = arrays[f"pair {group} seed"], arrays[f"pair {group} {name}"]
    return np.array([values[:, seeds == seed].mean(1) for seed in np.unique(seeds)]).T


def quotient(arrays: Arrays, group: str, name: str) -> Float:
    """The measure of p over that of p = 2, for each seed."""
    above, below = by_seed(arrays, group, name)
    return np.asarray(above / below)


def relative_quotient(arrays: Arrays, group: str, name: str, reference: str) -> Float:
    """The quotient of a measure over that of another one: 1 for a net that leads in both alike."""
    return quotient(arrays, group, name) / quotient(arrays, group, reference)


def weights(arrays: Arrays, group: str, kind: str) -> dict[str, Float]:
    """The numbers of small and of large weights of a kind, and their spread, (2, seeds).

    The spread (Σ|w|)² / (n Σw²) puts every weight at the centre of its bin of the histogram.
    """
    counts = arrays[f"pair {group} histogram {kind}"]
    middle = BIN * (np.arange(counts.shape[-1]) + 0.5)
    n, first, second = ((counts * middle**k).sum(-1) for k in range(3))
    return {
        "small": counts[..., 0],
        "large": arrays[f"pair {group} large {kind}"],
        "spread": first**2 / n / second,
    }


def first_step(p: float) -> float:
    """The spread of one short step of mirror descent from uniform weights, over that of gradient descent.

        Δw ∝ |w|^(2 − p) g,     (E|w|^q)² / E|w|^2q = (2q + 1) / (q + 1)²,     q = 2 − p

    It holds if p < 2.5 and gradients g do not depend on w: the effect of the step's shape alone.
    """
    q = 2 - p
    return (2 * q + 1) / (q + 1) ** 2


def quotient_label(group: str) -> str:
    """The quotients of a group in words."""
    return f"p = {GROUPS[group][0]} over p = {BASE}"


def _forest(ax: Axes, rows: list[tuple[str, Float, str]], title: str, xlabel: str) -> None:
    """Quotients of some measures: the seeds, and the interval of their mean, on a logarithmic axis."""
    for row, (_, values, color) in enumerate(rows):
        if len(values) > 1:
            ax.plot(interval(values), (row, row), color=color, lw=5, alpha=0.35, solid_capstyle="butt")
        ax.plot(values, np.full(len(values), row), "o", color=color, ms=3.5)
    ax.axvline(1, color=GREY, lw=0.8)
    ax.set_yticks(range(len(rows)), [name for name, *_ in rows], fontsize=7)
    ax.invert_yaxis()
    ax.set_xscale("log")
    low, high = ax.get_xlim()
    candidates = (0.25, 0.5, 1, 2, 4) if high > 4 * low else (0.6, 0.8, 1, 1.25)
    ticks = [x for x in candidates if low <= x <= high]
    ax.set_xticks(ticks, [f"{x:g}" for x in ticks], fontsize=8)
    ax.minorticks_off()
    describe(ax, title, xlabel)


def draw_margins(ax: Axes, arrays: Arrays, group: str) -> None:
    """Margins at equal selections: blue in the norms of p, orange in those of p = 2."""
    norm, theirs = f"l{GROUPS[group][0]}", ("K and Q, Frobenius", "W, nuclear")
    colours = {f"{matrix}, {norm}": BLUE for matrix in ("W", "K and Q")} | dict.fromkeys(theirs, ORANGE)
    names = [name for name in MARGINS if f"pair {group} {name}" in arrays and not name.endswith("at most")]
    if names:
        rows = [(name, quotient(arrays, group, name), colours.get(name, GREY)) for name in names]
        _forest(ax, rows, "margin by the best", quotient_label(group))


def draw_shapes(ax: Axes, arrays: Arrays, group: str) -> None:
    """Shapes of heads and spreads of their weights."""
    if names := [name for name in SHAPES if f"pair {group} {name}" in arrays]:
        rows = [(name, quotient(arrays, group, name), BLUE) for name in names]
        _forest(ax, rows, "shapes of heads", quotient_label(group))


def draw_weights(ax: Axes, arrays: Arrays, group: str) -> None:
    """Histograms of p over those of p = 2: mean over seeds, and from the least to the largest."""
    for kind, color in zip(KINDS, (BLUE, GREEN, ORANGE), strict=True):
        if (counts := arrays.get(f"pair {group} histogram {kind}")) is not None:
            enough = (counts >= ENOUGH).all((0, 1))
            seeds = np.where(enough, counts[0], np.nan) / np.where(enough, counts[1], np.nan)
            places = BIN * np.arange(counts.shape[-1])
            ax.step(places, seeds.mean(0), where="post", color=color, lw=1.2, label=kind)
            ax.fill_between(places, seeds.min(0), seeds.max(0), step="post", color=color, alpha=0.2, lw=0)
    ax.axhline(1, color=GREY, lw=0.8)
    ax.set_yscale("log")
    ticks = [x for x in (0.01, 0.1, 0.5, 1, 2, 5, 10) if ax.get_ylim()[0] <= x <= ax.get_ylim()[1]]
    ax.set_yticks(ticks, [f"{x:g}" for x in ticks])
    ax.minorticks_off()
    ax.tick_params(labelsize=8)
    ax.legend(fontsize=7, frameon=False)
    describe(ax, "weights by size", "|w|", f"count, {quotient_label(group)}")


def checks(arrays: Arrays) -> list[Check]:
    """At size 3: whether each p leads in the norm of its steps on K and Q, and the spread of what it adds."""
    rows = []
    for p, name, below, law in (
        ("1.1", "K and Q, l1.1", False, "p = 1.1 leads in the l1.1 margin of K and Q"),
        ("1.1", "K and Q, Frobenius", True, "p = 2 leads p = 1.1 in the Frobenius margin of K and Q"),
        ("1.1", "spread, added", True, "what p = 1.1 adds to K and Q is sparser"),
        ("1.1", "spread", True, "K and Q of p = 1.1 are sparser"),
        ("3", "K and Q, l3", False, "p = 3 leads in the l3 margin of K and Q"),
        ("3", "K and Q, Frobenius", True, "p = 2 leads p = 3 in the Frobenius margin of K and Q"),
        ("3", "spread, added", False, "what p = 3 adds to K and Q is denser"),
        ("3", "spread", False, "K and Q of p = 3 are denser"),
    ):
        group = f"{p}, size 3"
        if f"pair {group} {name}" not in arrays or len(values := quotient(arrays, group, name)) < 2:
            continue
        low, high = interval(values)
        why = f"{quotient_label(group)}: {low:.2f} to {high:.2f}, {len(values)} seeds"
        statement = f"size 3, interval over seeds: {law}"
        separated = float(high < 1 if below else low > 1)
        rows.append(Check(statement, CONJECTURED, LAW, 1.0, separated, exactly("yes or no"), why))
    return rows


LAW = "the law of halves, carried over to a deep net"
ENOUGH = 20
"""A bin is drawn if every net has at least so many weights in it."""
