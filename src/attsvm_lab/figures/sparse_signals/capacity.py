"""Capacity: the number of examples in which one prompt can select a planted token, and its law."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas
from scipy.stats import binom, norm

from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, PURPLE, label
from attsvm_lab.figures.accuracy import within
from attsvm_lab.figures.figure import DERIVED, Arrays, Check
from attsvm_lab.figures.papers import SPARSE_SIGNALS
from attsvm_lab.figures.recorded import facts, recorded

COLORS = {8: GREY, 16: GREEN, 32: ORANGE, 64: BLUE}
MARKS = {2: "o", 4: "s", 16: "^"}
LAW = "n* = d · max_s (1 − s²)/D(s · strength)"


@SPARSE_SIGNALS.figure(
    "capacity",
    "In how many examples one prompt can select a planted token",
    shows=(
        "Gaussian tokens, T of them, d wide; one of each example carries strength · ξ. Left: the share of "
        "draws in which some prompt selects it everywhere, against n/n* stretched by √d: one curve for all "
        "T, strengths and d. Middle: where half of the draws are separable, as a part of n*. Right: the "
        "width of the window closes like 1/√d. The law for n* has no free constant."
    ),
    **facts("capacity"),
)
def experiment() -> Arrays:
    """The cells and the fits of the record."""
    record = recorded("capacity")
    cells, groups = record["cells"], record["groups"]
    capacities = {(g["T"], g["strength"], g["d"]): g["capacity"] * g["d"] for g in groups}
    load = [c["n"] / capacities[c["T"], c["strength"], c["d"]] for c in cells]
    return {
        "T": np.array([c["T"] for c in cells]),
        "d": np.array([c["d"] for c in cells]),
        "strength": np.array([c["strength"] for c in cells]),
        "n": np.array([c["n"] for c in cells]),
        "load": np.array(load),
        "draws": np.array([c["draws"] for c in cells]),
        "share": np.array([c["separable"] / c["draws"] for c in cells]),
        "undecided": record["undecided"],
        "exponent": np.array(record["exponent"]),
        "group_T": np.array([g["T"] for g in groups]),
        "group_d": np.array([g["d"] for g in groups]),
        "group_strength": np.array([g["strength"] for g in groups]),
        "place": np.array([g["place"] for g in groups]),
        "width": np.array([g["width"] for g in groups]),
    }


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """The collapse, the places and the widths."""
    figure, ((share_ax, middle, right),) = grid(1, 3, 3.0)
    unit = _constants(arrays)
    for d, color in COLORS.items():
        for T, mark in MARKS.items():
            members = (arrays["d"] == d) & (arrays["T"] == T)
            scale = np.array([unit[T, s] for s in arrays["strength"][members]])
            z = (arrays["load"][members] - 1) * np.sqrt(d) / scale
            share_ax.plot(z, arrays["share"][members], mark, color=color, ms=2.5, alpha=0.7, mew=0)
            members = (arrays["group_d"] == d) & (arrays["group_T"] == T)
            around = d * np.exp(0.25 * (list(MARKS).index(T) - 1))
            x = around * (1 + 0.04 * arrays["group_strength"][members])
            for ax, name in ((middle, "place"), (right, "width")):
                value, low, high = arrays[name][members].T
                ax.errorbar(x, value, [value - low, high - value], fmt=mark, color=color, ms=3, lw=0.8)
        label(share_ax, 1.2, 0.95 - 0.1 * list(COLORS).index(d), f"d = {d}", color)
    z = np.linspace(-4, 4, 100)
    share_ax.plot(z, norm.cdf(-z), color=PURPLE, lw=1)
    share_ax.set_xlim(-4, 4)
    middle.axhline(1, color=GREY, ls=":")
    widths = np.array([8, 64])
    right.plot(widths, 0.5 * widths**-0.5, ":", color=GREY)
    label(right, 8, 0.1, "∝ 1/√d", GREY)
    label(middle, 64, 1.1, "T = 2 ●  4 ■  16 ▲", GREY, ha="right")
    for ax in (middle, right):
        ax.set_xscale("log", base=2)
    right.set_yscale("log")
    describe(share_ax, "share separable", "$(n/n^*-1)\\,\\sqrt{d}\\,/\\,c$", "")
    describe(middle, "where it is one half", "d", "$n/n^*$")
    describe(right, "width of the window", "d", "$n/n^*$")
    return figure


def _constants(arrays: Arrays) -> dict[tuple[int, float], float]:
    """Width · √d of every T and strength, the mean over d."""
    pairs = zip(arrays["group_T"].tolist(), arrays["group_strength"].tolist(), strict=True)
    scaled = arrays["width"][:, 0] * np.sqrt(arrays["group_d"])
    constants: dict[tuple[int, float], list[float]] = {}
    for pair, value in zip(pairs, scaled, strict=True):
        constants.setdefault(pair, []).append(float(value))
    return {pair: float(np.mean(values)) for pair, values in constants.items()}


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The load at which half of the draws are separable, the exponent of the window, and Cover's count."""
    wide = arrays["group_d"] == arrays["group_d"].max()
    distance = float(np.abs(arrays["place"][wide, 0] - 1).max())
    two_tokens = (arrays["T"] == 2) & (arrays["strength"] == 0)
    n, d, draws = (arrays[name][two_tokens] for name in ("n", "d", "draws"))
    cover = binom.cdf(d - 1, n - 1, 0.5)
    error = np.sqrt(np.maximum(cover * (1 - cover), 1 / draws) / draws)
    worst = float((np.abs(arrays["share"][two_tokens] - cover) / error).max())
    slope, sums = arrays["exponent"][0], "a sum over examples"
    far = within(4.0, f"the largest of {len(n)} cells")
    near, window = within(0.03, "finite d"), within(0.05, "finite d: 8 to 64")
    count = "T = 2: largest distance from Cover's count, in standard errors"
    return [
        Check("largest |n/n* − 1| at one half, d = 64", DERIVED, LAW, 0.0, distance, near),
        Check("exponent of the window in d", DERIVED, sums, -0.5, slope, window),
        Check(count, DERIVED, "Cover 1965", 0.0, worst, far),
        Check("draws that no certificate decides", DERIVED, "certificates", 0.0, arrays["undecided"], NONE),
    ]


NONE = within(0, "none")
