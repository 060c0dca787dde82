"""Pictures of results: a path, a solution, a KKT point, a verdict, a probe's curves and its AUC by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

import attsvm as att
from attsvm.norms import capabilities_of
from attsvm.numbers import Float
from attsvm.plotting.layout import band, describe, grid
from attsvm.plotting.style import BLUE, GREY, ORANGE, TITLE_SIZE, label, plain_powers

FEW = 20
"""Most points that are drawn as points."""

RATE = 0.01
"""The false positive rate that a ROC curve marks."""


def draw_path(path: Any, solution: Any = None) -> Canvas:
    """Loss above its limit, norm and direction of W, attention on the selected tokens, against the index.

    solution: the program of these tokens: its W is the reference direction, its margin the best one.
    """
    figure = Canvas(figsize=(9.0, 6.0), layout="constrained")
    axes = figure.subplot_mosaic("AABBCC;DDDEEE" if solution is not None else "AB;CD")
    for ax in axes.values():
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(which="both", labelsize=8)
    excess = path.log_excess / np.log(10)
    has_limit = np.isfinite(excess).any()
    _curve(axes["A"], path.index, excess if has_limit else path.loss)
    _log_curve(axes["B"], path.index, path.norm())
    _curve(axes["C"], path.index, path.least_attention())
    x = _index_name(path.kind, path.loss)
    describe(
        axes["A"], "loss above its limit" if has_limit else "loss", x, "log10(L − L*)" if has_limit else "L"
    )
    describe(axes["B"], "length of the weight", x, "Frobenius norm of W")
    describe(axes["C"], "attention on the selected tokens", x, "least over the examples")
    if solution is not None and capabilities_of(solution.norm).strictly_convex:  # W is the only solution
        _log_curve(axes["D"], path.index, _one_minus_cosine(path.W, solution.W))
        describe(axes["D"], "direction", x, f"1 − cosine with the {solution.norm} program")
    else:
        _log_curve(axes["D"], path.index[:-1], _one_minus_cosine(path.W, path.final)[..., :-1])
        describe(axes["D"], "direction", x, "1 − cosine with the last W")
    if solution is None:
        return figure
    _log_curve(axes["E"], path.index, 1 - att.compare(path, solution).numbers["margin ratio"])
    describe(axes["E"], "margin", x, f"1 − margin / best {solution.norm} margin")
    return figure


def draw_solution(solution: Any) -> Canvas:
    """Margins of all constraints over the required ones, and the singular values of W."""
    runs = solution.tokens.runs
    prefix = "" if runs is None else f"run 0 of {runs}: "
    solution = solution if runs is None else solution.run(0)
    figure, ((margin_ax, spectrum_ax),) = grid(1, 2, 3.4)
    figure.suptitle(f"{prefix}{str(solution).splitlines()[0]}", fontsize=TITLE_SIZE)
    rows = solution.constraints
    counted = rows.separating & (rows.bound > 0)
    required = np.where(counted, solution.required[:, None], 1.0)
    margins = np.sort((rows.token_margins(solution.W) / required)[counted])
    size = 6 if margins.size <= FEW else 3
    margin_ax.plot(np.arange(1, margins.size + 1), margins, ".", ms=size, color=BLUE)
    _required_line(margin_ax, margins.size, "required", above=solution.slack is not None)
    title, x = "margins of all constraints", "constraints, in the order of margins"
    describe(margin_ax, title, x, "margin / required margin")
    sigma = np.linalg.svd(solution.W / max(np.abs(solution.W).max(), 1e-300), compute_uv=False)
    spectrum_ax.bar(np.arange(1, sigma.size + 1), sigma / max(sigma[0], 1e-300), color=ORANGE)
    spectrum_ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    spectrum_ax.set_xlim(0.2, sigma.size + 0.8)
    describe(spectrum_ax, "singular values of W", "number", "relative to the largest")
    return figure


def draw_kkt_point(point: Any) -> Canvas:
    """Singular values relative to the largest; those that are spare at the end in another colour."""
    figure, ((ax,),) = grid(1, 1, 3.6, width=5.4)
    positive = point.index > 0
    steps, sizes = point.index[positive], point.singular_values[positive]
    shares = sizes / sizes[:, :1]
    for k in range(shares.shape[1]):
        ax.loglog(steps, np.maximum(shares[:, k], 1e-300), color=BLUE if k < point.rank else ORANGE, lw=1.2)
    visible = shares[shares > 1e-40]
    ax.set_ylim(max(visible.min() / 3, 1e-40), 3)
    figure.suptitle(str(point).splitlines()[0], fontsize=TITLE_SIZE)
    describe(ax, "singular values of W", "steps", "relative to the largest")
    plain_powers(ax)
    return figure


def draw_verdict(verdict: Any) -> Canvas:
    """Every curve of the verdict against the first of its arrays, with the bound it must reach."""
    (kind, index), *arrays = [*verdict.numbers.items()] or [("index", np.zeros(0))]
    curves = {name: curve for name, curve in arrays if np.shape(curve)[-1:] == index.shape}
    if not curves:
        raise ValueError("this verdict carries no curves to plot.")
    figure, (axes,) = grid(1, len(curves), 3.4, width=max(3.2 * len(curves), 5.0))
    figure.suptitle(f"{verdict.claim}: {verdict.status}", fontsize=TITLE_SIZE)
    bounds = {e.what: e for e in verdict.evidence if e.sense}
    for ax, (name, curve) in zip(axes, curves.items(), strict=True):
        _curve(ax, index, curve)
        describe(ax, "", _index_name(kind, curve), name)
        if name in bounds:
            sense, bound = bounds[name].sense, bounds[name].bound
            ax.axhline(bound, color=GREY, lw=0.8)
            offset = {"xytext": (2, 3), "textcoords": "offset points"}
            label(ax, float(index[0]), bound, f"wanted {sense} {bound:g}", GREY, **offset)
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


def draw_curves(curves: Any) -> Canvas:
    """The ROC curve with its rate at 1 % false positives, and observed against predicted probability."""
    figure, ((roc, calibration),) = grid(1, 2, 3.9, width=8.4)
    roc.plot([0, 1], [0, 1], color=GREY, lw=0.8, ls=":")
    roc.step(curves.fpr, curves.tpr, where="post", color=BLUE, lw=1.5)
    marked = curves.tpr_at(RATE)
    roc.plot(RATE, marked, "o", color=ORANGE, ms=5)
    offset = {"xytext": (8, -10), "textcoords": "offset points"}
    label(roc, RATE, marked, f"{marked:.0%} at {RATE:.0%} FPR", ORANGE, **offset)
    low, high = curves.auc_interval
    describe(
        roc, f"AUC {curves.auc:.3f} [{low:.3f}, {high:.3f}]", "false positive rate", "true positive rate"
    )
    calibration.plot([0, 1], [0, 1], color=GREY, lw=0.8, ls=":")
    errors = np.stack([curves.observed - curves.low, curves.high - curves.observed])
    calibration.errorbar(
        curves.predicted, curves.observed, np.maximum(errors, 0), fmt="o", ms=4, lw=1, color=BLUE
    )
    title = f"calibration error {curves.calibration_error:.3f}, log loss {curves.log_loss:.3f}"
    describe(calibration, title, "predicted probability", "observed share")
    for ax in (roc, calibration):
        ax.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02), aspect="equal")
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


def _log_curve(ax: Axes, x: Any, y: Float) -> None:
    """A curve on a logarithmic axis, without the points that have no logarithm."""
    positive = np.where(y > 0, y, np.nan)
    if not np.isfinite(positive).any():
        ax.text(0.5, 0.5, "zero throughout", ha="center", color=GREY, transform=ax.transAxes)
        return
    _curve(ax, x, positive)
    ax.set_yscale("log")
    plain_powers(ax)


def _one_minus_cosine(path: Float, W: Float) -> Float:
    """1 − cosine of weights (…, k, d, e) with one (…, d, e); NaN where a weight is zero.

    It is computed from the distance of unit vectors: 1 minus their product would lose half of the digits.
    """
    with np.errstate(invalid="ignore"):
        scaled = [x / np.abs(x).max((-2, -1), keepdims=True) for x in (path, np.asarray(W)[..., None, :, :])]
        units = [x / np.linalg.norm(x, axis=(-2, -1), keepdims=True) for x in scaled]
    return np.asarray(((units[0] - units[1]) ** 2).sum((-2, -1)) / 2)


def _index_name(kind: str, curve: Float) -> str:
    """The name of the x axis: the index and, with runs, what the line and the band are."""
    return kind if np.ndim(curve) == 1 else f"{kind}\nmedian, middle half of {len(curve)} runs"


def _required_line(ax: Axes, right: int, text: str, above: bool) -> None:
    """The line that margins must reach; above: its name stands above the line, where no point lies."""
    ax.axhline(1, color=GREY, lw=0.8)
    if above:
        label(ax, 1, 1, text, GREY, xytext=(0, 3), textcoords="offset points")
    else:
        label(ax, right, 1, text, GREY, ha="right", va="top", xytext=(0, -3), textcoords="offset points")
        ax.margins(y=0.1)
