"""Pictures of results: a path, a solution, a verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

import attsvm as att
from attsvm.figures.panels import band, describe, grid
from attsvm.figures.style import BLUE, GREY, ORANGE, TITLE_SIZE, label, plain_powers
from attsvm.numbers import Float

FEW = 20
"""So many points are drawn as points."""


def draw_path(path: Any, solution: Any = None) -> Canvas:
    """Loss above its limit, length and direction of W, attention on the selected tokens, against the index.

    solution: the program of these tokens, whose W is the direction and whose margin is the best.
    """
    figure = Canvas(figsize=(9.0, 6.0), layout="constrained")
    axes = figure.subplot_mosaic("AABBCC;DDDEEE" if solution is not None else "AB;CD")
    for ax in axes.values():
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(which="both", labelsize=8)
    excess = path.log_excess / np.log(10)
    known = np.isfinite(excess).any()
    mass = np.where(path.selected[..., None, :, :], path.attention, 0).sum(-1).min(-1)
    _curve(axes["A"], path.index, excess if known else path.loss)
    _powers(axes["B"], path.index, path.norm())
    _curve(axes["C"], path.index, mass)
    x = _index_name(path.kind, path.loss)
    describe(axes["A"], "loss above its limit" if known else "loss", x, "log10(L − L*)" if known else "L")
    describe(axes["B"], "length of the weight", x, "Frobenius norm of W")
    describe(axes["C"], "attention on the selected tokens", x, "least over the examples")
    if solution is not None and 1 < solution.norm.p < np.inf:  # else its W is one of many
        _powers(axes["D"], path.index, _turn(path.W, solution.W))
        describe(axes["D"], "direction", x, f"1 − cosine with the {solution.norm} program")
    else:
        _powers(axes["D"], path.index[:-1], _turn(path.W, path.final)[..., :-1])
        describe(axes["D"], "direction", x, "1 − cosine with the last W")
    if solution is None:
        return figure
    _powers(axes["E"], path.index, 1 - att.compare(path, solution).numbers["margin ratio"])
    describe(axes["E"], "margin", x, f"1 − margin / best {solution.norm} margin")
    return figure


def draw_solution(solution: Any) -> Canvas:
    """Margins of all constraints over the required ones, and the singular values of W."""
    runs = solution.tokens.runs
    one = solution if runs is None else solution.run(0)
    figure, ((left, right),) = grid(1, 2, 3.4)
    which = "" if runs is None else f"run 0 of {runs}: "
    figure.suptitle(f"{which}{str(one).splitlines()[0]}", fontsize=TITLE_SIZE)
    rows = one.constraints
    counted = rows.separating & (rows.bound > 0)
    margins = np.sort((rows.token_margins(one.W) / np.where(counted, one.required[:, None], 1.0))[counted])
    left.plot(np.arange(1, margins.size + 1), margins, ".", ms=6 if margins.size <= FEW else 3, color=BLUE)
    _wanted(left, margins.size, "required", above=one.slack is not None)
    describe(
        left, "margins of all constraints", "constraints, in the order of margins", "margin / required margin"
    )
    sigma = np.linalg.svd(one.W / max(np.abs(one.W).max(), 1e-300), compute_uv=False)
    right.bar(np.arange(1, sigma.size + 1), sigma / max(sigma[0], 1e-300), color=ORANGE)
    right.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    right.set_xlim(0.2, sigma.size + 0.8)
    describe(right, "singular values of W", "number", "relative to the largest")
    return figure


def draw_verdict(verdict: Any) -> Canvas:
    """Every curve the verdict carries against the first of its arrays, with the bound it must reach."""
    (kind, index), *others = [*verdict.numbers.items()] or [("index", np.zeros(0))]
    curves = {name: curve for name, curve in others if np.shape(curve)[-1:] == index.shape}
    if not curves:
        raise ValueError("this verdict carries no curves to plot.")
    figure, (axes,) = grid(1, len(curves), 3.4, width=max(3.2 * len(curves), 5.0))
    figure.suptitle(f"{verdict.claim}: {verdict.status}", fontsize=TITLE_SIZE)
    bounds = {e.what: e for e in verdict.evidence if e.sense}
    for ax, (name, curve) in zip(axes, curves.items(), strict=True):
        _curve(ax, index, curve)
        describe(ax, "", _index_name(kind, curve), name)
        if name in bounds:
            bound = bounds[name]
            ax.axhline(bound.bound, color=GREY, lw=0.8)
            place = {"xytext": (2, 3), "textcoords": "offset points"}
            label(ax, float(index[0]), bound.bound, f"wanted {bound.sense} {bound.bound:g}", GREY, **place)
    return figure


def draw_auc(table: Any) -> Canvas:
    """AUC by layer and concept as a shaded table."""
    layers, concepts = table.auc.shape
    figure, ((ax,),) = grid(1, 1, 3.4, width=2.0 + 0.7 * concepts)
    ax.imshow(table.auc, vmin=0.5, vmax=1.0, cmap="Blues", aspect="auto")
    ax.set_xticks(range(concepts), [str(name) for name in table.concepts])
    ax.set_yticks(range(layers), [str(layer) for layer in table.layers])
    for (i, j), value in np.ndenumerate(table.auc):
        ax.text(j, i, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.8 else "black")
    describe(ax, "AUC on sequences that were not learned from", "concept", "layer")
    return figure


def _curve(ax: Axes, x: Any, y: Float) -> None:
    """One curve; with runs the median and the middle half of the runs."""
    marker = "." if len(x) <= FEW else ""
    if y.ndim == 1:
        ax.plot(x, y, color=BLUE, marker=marker)
    else:
        band(ax, x, y, BLUE, marker=marker)
    if x[-1] > 100:
        ax.set_xscale("symlog", linthresh=1)


def _powers(ax: Axes, x: Any, y: Float) -> None:
    """A curve on a logarithmic axis, without what has no logarithm."""
    positive = np.where(y > 0, y, np.nan)
    if not np.isfinite(positive).any():
        ax.text(0.5, 0.5, "zero throughout", ha="center", color=GREY, transform=ax.transAxes)
        return
    _curve(ax, x, positive)
    ax.set_yscale("log")
    plain_powers(ax)


def _turn(path: Float, W: Float) -> Float:
    """1 − cosine of weights (…, k, d, e) with one (…, d, e); NaN where a weight is zero.

    By the distance of unit vectors: 1 minus their product would lose half of the digits.
    """
    with np.errstate(invalid="ignore"):
        sized = [x / np.abs(x).max((-2, -1), keepdims=True) for x in (path, np.asarray(W)[..., None, :, :])]
        units = [x / np.linalg.norm(x, axis=(-2, -1), keepdims=True) for x in sized]
    return np.asarray(((units[0] - units[1]) ** 2).sum((-2, -1)) / 2)


def _index_name(kind: str, curve: Float) -> str:
    """What the curve is drawn against and, with runs, what is drawn of them."""
    return kind if np.ndim(curve) == 1 else f"{kind}\nmedian, middle half of {len(curve)} runs"


def _wanted(ax: Axes, right: int, text: str, above: bool) -> None:
    """The line that margins must reach, named where no point lies: hard margins are not below it."""
    ax.axhline(1, color=GREY, lw=0.8)
    if above:
        label(ax, 1, 1, text, GREY, xytext=(0, 3), textcoords="offset points")
    else:
        label(ax, right, 1, text, GREY, ha="right", va="top", xytext=(0, -3), textcoords="offset points")
        ax.margins(y=0.1)
