"""A text drawn from itself collapses: the count of the weak token grows with the exponent q/p only.

"From Self-Attention to Markov Models" (Ildiz et al. 2024), distribution collapse.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

from attsvm.plotting.layout import band, describe, grid, label_end
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE
from attsvm_lab.claims.markov import fading, weak_exponent
from attsvm_lab.figures.accuracy import sampled
from attsvm_lab.figures.figure import DERIVED, Arrays, Check, scales
from attsvm_lab.figures.papers import NEXT_TOKEN

STRONG = {0.6: GREEN, 0.7: BLUE, 0.8: ORANGE}
"""Weight p of the strong token; the weak one has q = 1 − p."""


@NEXT_TOKEN.figure(
    "text-collapse",
    "A text that feeds on itself collapses",
    shows=(
        "One attention layer that draws each next token from its own text, with weights p > q: the weak "
        "token's count grows like the strong one's to the power q/p, so its share tends to zero. Drawn "
        "without feedback it would stay at q (dashed)."
    ),
    sizes=scales(steps=(5_000, 20_000, 100_000), chains=(500, 500, 1_000)),
    seconds=4,
)
def experiment(steps: int, chains: int) -> Arrays:
    """Counts (chains, k, 2) of strong and weak token, text lengths (k,), and fitted exponents."""
    arrays: Arrays = {}
    for p in STRONG:
        arrays["length"], counts = fading(p, steps, chains)
        arrays[f"counts_{p:g}"] = counts
        arrays[f"exponent_{p:g}"] = np.array(weak_exponent(counts))
        arrays[f"groups_{p:g}"] = np.array([weak_exponent(counts[k::10]) for k in range(10)])
    return arrays


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Counts against each other with the predicted slope, and the share of the weak token."""
    figure, ((counts_ax, share_ax),) = grid(1, 2, 3.2)
    length = arrays["length"]
    for p, color in STRONG.items():
        counts = arrays[f"counts_{p:g}"]
        strong, weak = np.exp(np.log(counts).mean(0)).T
        counts_ax.loglog(strong, weak, color=color)
        counts_ax.loglog(
            strong, weak[-1] * (strong / strong[-1]) ** ((1 - p) / p), color=color, ls=":", lw=1.2
        )
        label_end(counts_ax, strong[-1], weak[-1], f"p = {p:g}", color)
        middle = band(share_ax, length, counts[..., 1] / counts.sum(-1), color)
        label_end(share_ax, length[-1], middle[-1], f"p = {p:g}", color)
        share_ax.axhline(1 - p, color=color, ls="--", lw=0.8)
    share_ax.set(xscale="log", yscale="log")
    share_ax.text(
        0.04, 0.04, "dashed: q, without\nfeedback", transform=share_ax.transAxes, fontsize=8, color=GREY
    )
    counts_ax.text(0.04, 0.92, "dotted: slope q/p", transform=counts_ax.transAxes, fontsize=8, color=GREY)
    describe(
        counts_ax,
        "the weak token's count lags behind",
        "count of the strong token",
        "count of the weak token",
    )
    describe(share_ax, "its share of the text fades", "length of the text", "share of the weak token")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The predicted exponents q/p."""
    rows = []
    for p in STRONG:
        ours, accuracy = arrays[f"exponent_{p:g}"], sampled(arrays[f"groups_{p:g}"], np.inf)
        rows.append(
            Check(f"collapse exponent, p = {p:g}", DERIVED, "closed form", (1 - p) / p, ours, accuracy)
        )
    return rows
