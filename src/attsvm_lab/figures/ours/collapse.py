"""Shares of global runs and of separable draws over n, T and d, against one variable, as recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, PURPLE, label
from attsvm_lab.figures.accuracy import exactly, within
from attsvm_lab.figures.figure import CONJECTURED, DERIVED, Arrays, Check
from attsvm_lab.figures.papers import OURS
from attsvm_lab.figures.recorded import facts, recorded

MODELS, SHARES = ("prompt", "W"), ("global", "separable")
WORDS = {"prompt": "a prompt", "W": "W"}
TOKENS = {2: GREEN, 4: BLUE, 8: ORANGE, 16: PURPLE}

SHOWS = (
    "Top: the share of inputs that end at their best token (the n-th root of the share of global runs) "
    "against the variable whose exponents fit it best; open points were held out. A prompt's collapse, those "
    "of W less. Bottom: the share of draws whose best tokens can be separated, against what is counted "
    "without a fitted constant. Right: what each variable leaves of the shares, on the cells of the fit "
    "(bars) and held out."
)


@OURS.figure("collapse", "Where descent is global: one variable", shows=SHOWS, **facts("collapse"))
def experiment() -> Arrays:
    """Of both models: sizes and shares of the cells, the best fit, and the errors of all fits."""
    record = recorded("collapse")
    arrays: Arrays = {"variables": np.array([fit["variable"] for fit in record["fits"]["W"]["global"]])}
    arrays["held"] = np.array(record["held out"])
    for model in MODELS:
        arrays |= {f"{key} {model}": np.array(x) for key, x in record["cells"][model].items()}
        arrays[f"off {model}"] = np.array(record["fits"][model]["counted"])
        best = record["fits"][model]["global"][0]
        arrays[f"exponents {model}"] = np.array(best["exponents"])
        arrays[f"curve {model}"] = np.array([*best["cubic"], *best["at"]])
        for share in SHARES:
            fits = record["fits"][model][share]
            arrays[f"error {model} {share}"] = np.array([fit["error"] for fit in fits])
            arrays[f"ahead {model} {share}"] = np.array([fit["held out"] for fit in fits])
    return arrays


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Collapse above, counted shares below, errors of the other variables on the right."""
    figure, rows = grid(2, 3, 5.6)
    for ax, model in zip(rows[0], MODELS, strict=False):
        _collapsed(ax, arrays, model)
    for ax, model in zip(rows[1], MODELS, strict=False):
        ax.plot([0, 1], [0, 1], color=GREY, lw=1)
        _points(ax, arrays, model, arrays[f"counted {model}"], arrays[f"separable {model}"])
        describe(ax, f"{WORDS[model]}: separable", "counted share", "share of draws")
    for row, share in zip(rows, SHARES, strict=True):
        _errors(row[2], arrays, share)
    for k, (T, color) in enumerate(TOKENS.items()):
        label(rows[0][0], 0.6, 0.4 - 0.09 * k, f"T = {T}", color, xycoords="axes fraction", va="top")
    return figure


def _collapsed(ax: Axes, arrays: Arrays, model: str) -> None:
    n, T, d = (arrays[f"{key} {model}"] for key in "nTd")
    (a, *_), (b, *_) = arrays[f"exponents {model}"]
    x = d / (n - 1) ** a / (T - 1) ** b
    _points(ax, arrays, model, x, arrays[f"global {model}"] ** (1 / n))
    line = np.geomspace(x.min(), x.max(), 200)
    ax.plot(line, _curve(arrays[f"curve {model}"], np.log(line)), color=GREY, lw=1)
    ax.set(xscale="log", ylim=(0.35, 1.02))
    describe(ax, f"{WORDS[model]}: global", f"d / (n−1)$^{{{a:.2f}}}$ (T−1)$^{{{b:.2f}}}$", "share of inputs")


def _points(ax: Axes, arrays: Arrays, model: str, x: Float, y: Float) -> None:
    n, T = (arrays[f"{key} {model}"] for key in "nT")
    held_out = (n >= arrays["held"]) | (arrays["held"] <= T)
    for tokens, color in TOKENS.items():
        for members, face in ((~held_out, color), (held_out, "white")):
            at = (tokens == T) & members
            ax.plot(x[at], y[at], "o", color=color, mfc=face, ms=3.5)


def _curve(fit_values: Float, x: Float) -> Any:
    cubic, (middle, spread, low, high) = fit_values[:4], fit_values[4:]
    return 1 / (1 + np.exp(-np.polyval(cubic, (np.clip(x, low, high) - middle) / spread)))


def _errors(ax: Axes, arrays: Arrays, share: str) -> None:
    names = [str(name) for name in arrays["variables"]]
    for k, (model, color) in enumerate(zip(MODELS, (BLUE, ORANGE), strict=True)):
        at = np.arange(len(names)) + 0.36 * k - 0.18
        ax.barh(at, arrays[f"error {model} {share}"][:, 0], 0.34, color=color, alpha=0.6)
        ax.plot(arrays[f"ahead {model} {share}"], at, "o", color=color, ms=3.5, mfc="white")
        label(ax, 0.62, 0.97 - 0.09 * k, WORDS[model], color, xycoords="axes fraction", va="top")
    ax.set_yticks(range(len(names)), names, fontsize=6)
    ax.invert_yaxis()
    describe(ax, f"what is left: {share}", "rms, in shares")


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The fitted variable has the least error on held-out sizes; the share of separable draws is counted."""
    rows, place = [], exactly("a place in the list")
    for model in MODELS:
        ahead = arrays[f"ahead {model} global"]
        statement = f"{WORDS[model]}: the variable that leaves least on larger sizes"
        rows.append(Check(statement, CONJECTURED, "each: d / (n−1)^a (T−1)^b", 0, int(ahead.argmin()), place))
    near = within(0.03, "tokens on a sphere, chosen by a head, instead of Gaussian ones")
    for model in MODELS:
        statement = f"{WORDS[model]}: separable shares, root mean square to the counted ones"
        rows.append(
            Check(statement, DERIVED, "conic kinematic formula", 0.0, arrays[f"off {model}"][0], near)
        )
    return rows
