"""How long K and Q take to the nuclear direction, by the scale of their start and their width."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import colours, label
from attsvm_lab.figures.accuracy import exactly, within
from attsvm_lab.figures.figure import CONJECTURED, Arrays, Check
from attsvm_lab.figures.papers import OURS
from attsvm_lab.figures.recorded import facts, recorded

PANELS = (("steepest", "0.95"), ("steepest", "0.99"), ("gd", "0.5"))
NAMES = {"steepest": "normalised GD", "gd": "GD"}

SHOWS = (
    "Median steps of K and Q (d = 8, width m) until W = K Qᵀ has, and keeps, a share of the best nuclear "
    "margin, by the scale α of their start. Normalised descent is quickest from a start of middle size. "
    "Plain descent, whose norm grows like a logarithm, comes to 0.5 of the margin and not to 0.95 in "
    "10,000 steps. Triangles: more than half of the runs have not arrived."
)


@OURS.figure("factor-times", "How long K and Q take, by their start", shows=SHOWS, **facts("factor_times"))
def experiment() -> Arrays:
    """starts (s,), widths (m,), and of every panel median steps (m, s, 3) with interval, NaN for never.

    arrived (m, s, 3): share of the runs of plain descent that reach 0.95.
    """
    cells = recorded("factor_times")["cells"]
    widths, starts = (sorted({cell[key] for cell in cells}) for key in ("m", "start"))
    arrays: Arrays = {"starts": np.array(starts), "widths": np.array(widths)}
    levels = {(c["optimizer"], c["m"], c["start"]): c["levels"] for c in cells}
    for rule, level in PANELS:
        steps = [[levels[rule, m, start][level]["steps"] for start in starts] for m in widths]
        arrays[f"{rule} {level}"] = np.array(steps, float)
    arrived = [[levels["gd", m, start]["0.95"]["arrived"] for start in starts] for m in widths]
    return arrays | {"arrived": np.array(arrived, float)}


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Median steps against α, a line for every width."""
    figure, (axes,) = grid(1, len(PANELS), 3.1)
    for ax, (rule, level) in zip(axes, PANELS, strict=True):
        for k, (m, color) in enumerate(zip(arrays["widths"], colours(len(arrays["widths"])), strict=True)):
            starts, steps = arrays["starts"], arrays[f"{rule} {level}"][k]
            never = np.isnan(steps[:, 0])
            ax.fill_between(starts, steps[:, 1], steps[:, 2], color=color, alpha=0.2, lw=0)
            ax.plot(starts, steps[:, 0], "o-", color=color, ms=3, lw=1.3)
            ax.plot(starts[never], np.full(never.sum(), 12_000), "^", color=color, ms=4, mfc="white")
            if ax is axes[0]:
                label(ax, 0.02, 0.98 - 0.07 * k, f"m = {m}", color, xycoords="axes fraction", va="top")
        ax.set(xscale="log", yscale="log", ylim=(90, 14_000))
        describe(ax, f"{NAMES[rule]}, to {level}", "scale α of the start")
    axes[0].set_ylabel("median steps", fontsize=9)
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The quickest start lies inside the range at full width; plain descent does not arrive."""
    at = list(arrays["widths"]).index(8)
    steps = np.where(np.isnan(arrays["steepest 0.95"][at, :, 0]), np.inf, arrays["steepest 0.95"][at, :, 0])
    inside = bool(0 < steps.argmin() < len(steps) - 1)
    exact, nearly_none = exactly("yes or no"), within(0.005, "a few runs in a thousand")
    quantity = "plain GD: largest share that arrives at 0.95 in 10,000 steps"
    most = arrays["arrived"][..., 0].max()
    return [
        Check("m = 8: the quickest start is neither end of the range", CONJECTURED, OWN, 1.0, inside, exact),
        Check(quantity, CONJECTURED, GROWS, 0.0, most, nearly_none),
    ]


GROWS = "‖W‖ grows like log t, so that the direction closes like 1/log t"
OWN = "small starts must grow their second direction, large ones must be outgrown"
