"""How long training of K and Q stays at a stop of rank one, against what its multipliers predict."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid, label_end
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, PURPLE, colours, label
from attsvm_lab.figures.accuracy import Accuracy, exactly, within
from attsvm_lab.figures.figure import DERIVED, Arrays, Check
from attsvm_lab.figures.papers import OURS
from attsvm_lab.figures.recorded import facts, recorded

DESCENT = "2, 2"
START_FREE = ("3, 3", "4, 4", "8, 8", "inf, inf", "8/3, 8", "inf, 2")
"""Exponents of K and Q with r above one, which leave in a log time."""
POWER, NEVER = "4, 4/3", "3/2, 3/2"
APPROACH = 30.0
"""Length of K and Q at the stop: 3,000 steps of 0.01."""
TURNED = "turned "

SHOWS = (
    "K and Q stand at a stop of rank one; a second column of relative length ε is added, and training goes "
    "on until the second singular value of W is a hundredth of the first. Circles: single draws, or medians "
    "of 14 to 16 with intervals; dashed: computed from the multipliers at the stop, not fitted. Gradient "
    "descent waits for a power of 1/ε, with decay for its logarithm, steps with r above 1 for a time that "
    "does not depend on ε. Noise on the steps sets a floor. Triangles: some have not left by then."
)


def _name(cell: dict[str, Any]) -> str:
    """What is special about a cell: its exponents or its decay, and what is added to these."""
    special = [f"{key} {cell[key]}" for key in ("momentum", "batch", "noise") if cell.get(key)]
    if cell.get("weights"):
        special.append((TURNED if cell.get("turned") else "") + str(cell["weights"]))
    base = [f"decay {cell['decay']}"] if cell.get("decay") else [] if special else [cell.get("p", DESCENT)]
    return ", ".join(base + special)


@OURS.figure(
    "waiting",
    "How long training waits at rank one",
    shows=SHOWS,
    **facts("waiting"),
)
def experiment() -> Arrays:
    """Of every setting its starts (s,), measured and predicted median steps (s, 3) with intervals, NaN for
    never, measured over predicted in the runs that have both (s, 3), the share of runs that left (s,), and
    that are as predicted (s,); and of every run pull, predicted and measured steps (s, runs, 3).
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in recorded("waiting")["cells"]:
        groups.setdefault(_name(cell), []).append(cell)
    arrays: Arrays = {"names": np.array(list(groups))}
    for name, cells in groups.items():
        arrays |= {
            f"{name}: starts": np.array([cell["start"] for cell in cells]),
            f"{name}: lr": np.array([cell["lr"] for cell in cells]),
            f"{name}: steps": np.array([cell["steps"] for cell in cells]),
            f"{name}: measured": np.array([cell["all"]["measured"] for cell in cells], float),
            f"{name}: predicted": np.array([cell["all"]["predicted"] for cell in cells], float),
            f"{name}: ratio": np.array([cell["ratio"] for cell in cells], float),
            f"{name}: share left": np.array([cell["left"] / cell["stops"] for cell in cells]),
            f"{name}: share as predicted": np.array([cell["agree"] / cell["stops"] for cell in cells]),
            f"{name}: runs": np.array([cell["runs"] for cell in cells], float),
        }
    return arrays


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Waits against ε: gradient descent, exponents, decay and noise; and every run against its prediction."""
    figure, ((power, exponents), (decay, runs)) = grid(2, 2, 6.0)
    _each_draw(power, arrays)
    shifts = {"4, 4": 8, "inf, 2": -8}
    for name, color in zip(START_FREE, colours(6), strict=True):
        _waits(exponents, arrays, name, color, APPROACH / arrays[f"{name}: lr"][0])
        last = arrays[f"{name}: measured"][0, 0] * arrays[f"{name}: lr"][0] / APPROACH
        label_end(exponents, 1.3e-2, last, _exponents(name), color, shifts.get(name, 0))
    exponents.set(xscale="log", yscale="log", ylim=(0.06, 1.5))
    describe(exponents, "exponents of the steps on K and Q", "ε", "growth of ‖(K, Q)‖, less 1")
    for k, (name, color, text) in enumerate(
        (
            ("decay 0.05", BLUE, "decay 0.05"),
            ("decay 0.05, noise 1e-05", PURPLE, "with noise of 10⁻⁵"),
            ("decay 0.05, noise 0.001", GREY, "with noise of 10⁻³"),
            ("decay 0.1", GREEN, "decay 0.1"),
        )
    ):
        _waits(decay, arrays, name, color, 1.0, 1.12 ** (k - 1.5))
        label(decay, 0.55, 0.97 - 0.07 * k, text, color, xycoords="axes fraction", va="top")
    decay.set(xscale="log", ylim=(0, None))
    describe(decay, "with decay a logarithm, with noise a floor", "ε", "steps to leave")
    _every_run(runs, arrays)
    return figure


def _exponents(name: str) -> str:
    K, Q = name.replace("inf", "∞").split(", ")
    return f"p = {K}" if K == Q else f"{K} and {Q}"


def _each_draw(ax: Axes, arrays: Arrays) -> None:
    """Gradient descent: a line for every draw of which a run has left, with its pull."""
    starts, runs = arrays[f"{DESCENT}: starts"], arrays[f"{DESCENT}: runs"]
    shown = [k for k in range(runs.shape[1]) if np.isfinite(runs[:, k, 2]).any()]
    top = 2e7
    for k, color in zip(shown, colours(len(shown)), strict=True):
        predicted, measured = runs[:, k, 1], runs[:, k, 2]
        ax.plot(starts, predicted, "--", color=color, lw=1)
        ax.plot(starts, measured, "o", color=color, ms=3.5)
        end = min(predicted[-1], top)
        at = np.exp(np.interp(np.log(end), np.log(predicted), np.log(starts)))
        label(ax, at, end, f"{runs[0, k, 0]:.1f}", color, xytext=(2, 3), textcoords="offset points")
    never = np.isnan(runs[:, shown, 2]).any(1)
    ax.plot(starts[never], arrays[f"{DESCENT}: steps"][never], "^", color=GREY, ms=4, mfc="white")
    ax.set(xscale="log", yscale="log", ylim=(6e3, 4e7))
    describe(ax, "gradient descent, draws by their pull σ/s", "ε", "steps to leave")


def _waits(ax: Axes, arrays: Arrays, name: str, color: Any, unit: float, beside: float = 1.0) -> None:
    """Median steps over a unit, with intervals, and the predicted ones dashed."""
    starts = arrays[f"{name}: starts"]
    middle, low, high = arrays[f"{name}: measured"].T / unit
    ax.plot(starts, arrays[f"{name}: predicted"][:, 0] / unit, "--", color=color, lw=1.2)
    high = np.where(np.isfinite(high), high, middle)
    ax.errorbar(starts * beside, middle, [middle - low, high - middle], fmt="o", ms=3.5, color=color, lw=1)


def _every_run(ax: Axes, arrays: Arrays) -> None:
    groups = (
        ("gradient descent", ORANGE, (DESCENT,)),
        ("other exponents", GREEN, (POWER, *START_FREE)),
        ("decay", BLUE, STILL),
        ("with batches, noise, momentum", PURPLE, SWAYED),
    )
    for k, (text, color, names) in enumerate(groups):
        found = np.concatenate([arrays[f"{name}: runs"].reshape(-1, 3) for name in names])
        ax.loglog(found[:, 1], found[:, 2], "o", ms=2.5, color=color, alpha=0.5, mew=0)
        label(ax, 0.03, 0.97 - 0.07 * k, text, color, xycoords="axes fraction", va="top")
    ends = [80, 300_000]
    ax.plot(ends, ends, color=GREY, lw=0.8)
    ax.set(xlim=ends, ylim=ends)
    describe(ax, "every run that left", "steps predicted", "steps measured")


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Waits against their predictions, what must not depend on ε, and what must never leave."""
    rows = []

    def add(what: str, source: str, reference: float, ours: float, accuracy: Accuracy) -> None:
        rows.append(Check(what, DERIVED, source, reference, float(ours), accuracy))

    for name in (*START_FREE, DESCENT, POWER):
        source = THEOREM_5 if name == DESCENT else LEMMA_7
        ratio = _farthest(arrays[f"{name}: ratio"][:, 0])
        add(f"p = {name}: {RATIO}", source, 1, ratio, within(0.15, "multipliers move by a few percent"))
    for name in START_FREE:
        waits = arrays[f"{name}: measured"][arrays[f"{name}: starts"] < 1e-3, 0]
        left_over = within(0.1, "what is left of the start at 10⁻⁴")
        add(f"p = {name}: {SPREAD} below 10⁻³", LEMMA_7, 1, waits.max() / waits.min(), left_over)
    for name in (NEVER, *HELD):
        share = arrays[f"{name}: share left"][arrays[f"{name}: starts"].argmin()]
        source = LEMMA_7 if name == NEVER else ROUNDED
        add(f"{name}: share of runs that left from the smallest ε", source, 0, share, exactly("none"))
    for name in STATIONARY:
        ratio = _farthest(arrays[f"{name}: ratio"][:, 0])
        source = FLOOR if "noise" in name else DECAY
        still = within(0.03, "the run stands still")
        swayed = within(0.1, "noise, batches and averages sway single runs")
        add(f"{name}: {RATIO}", source, 1, ratio, still if name in STILL else swayed)
    return rows


def _farthest(ratios: Float) -> float:
    """The ratio farthest from one, among the finite ones."""
    finite = ratios[np.isfinite(ratios)]
    return float(finite[np.abs(np.log(finite)).argmax()]) if len(finite) else np.inf


RATIO = "median of measured over predicted, farthest from 1 over ε"
SPREAD = "longest over shortest median wait, ε"
HELD = ("decay 0.05, turned float32", "decay 0.05, turned bfloat16")
"""Weights rounded to the nearest number, whose columns share their entries."""
STILL = ("decay 0.05", "decay 0.1", "decay 0.05, float32", "decay 0.05, bfloat16 at random")
SWAYED = (
    *("decay 0.05, momentum 0.9", "decay 0.05, momentum 0.99", "decay 0.05, batch 1", "decay 0.05, batch 2"),
    *("decay 0.05, noise 1e-05", "decay 0.05, noise 0.001"),
)
STATIONARY = (*STILL, *SWAYED)
THEOREM_5 = "Theorem 5: the power 2(σ/s − 1), from the multipliers at the stop"
LEMMA_7 = "Lemma 7 and its two exponents, docs/law_of_halves_proofs.md, section 7"
DECAY = "log(1/ε)/(lr λ (σ/s − 1)), docs/law_of_halves_proofs.md, section 6"
FLOOR = "the same with the variance that noise adds to the growing mode"
ROUNDED = "steps below half a place of the numbers that hold K and Q are lost"
