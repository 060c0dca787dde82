"""Pictures of results: a path, a solution, a verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from attsvm.figures.panels import band
from attsvm.figures.style import BLUE, GREY, ORANGE, canvas, label
from attsvm.tokens import Float


def draw_path(path: Any) -> Canvas:
    """Loss above its limit, norm of W and attention on the selected tokens, against the index."""
    figure, (left, middle, right) = canvas(3, width=9.0)
    excess = path.log_excess / np.log(10)
    known = np.isfinite(excess).any()
    _band(left, path.index, excess if known else path.loss, BLUE)
    left.set_title("log10(L − L*)" if known else "loss L")
    _band(middle, path.index, path.norm(), BLUE)
    middle.set_title("‖W‖")
    mass = np.where(path.selected[..., None, :, :], path.attention, 0).sum(-1).min(-1)
    _band(right, path.index, mass, BLUE)
    right.set_title("least attention on the selected tokens")
    for ax in (left, middle, right):
        ax.set_xlabel(path.kind)
        if path.index[-1] > 100:
            ax.set_xscale("symlog", linthresh=1)
    return figure


def draw_solution(solution: Any) -> Canvas:
    """Margins of all constraints, and the singular values of W."""
    one = solution if solution.tokens.runs is None else solution.run(0)
    figure, (left, right) = canvas(2)
    rows = one.constraints
    margins = np.sort(rows.token_margins(one.W)[rows.separating])
    left.plot(margins, ".", ms=3, color=BLUE)
    left.axhline(1, color=GREY, lw=0.8)
    label(left, 0, 1, "required", GREY, xytext=(2, 3), textcoords="offset points")
    left.set(title="margins, sorted", xlabel="constraint")
    sigma = np.linalg.svd(one.W / max(np.abs(one.W).max(), 1e-300), compute_uv=False)
    right.bar(np.arange(1, sigma.size + 1), sigma / max(sigma[0], 1e-300), color=ORANGE)
    right.set(title=f"singular values of W, {one.norm} norm", xlabel="index")
    return figure


def draw_verdict(verdict: Any) -> Canvas:
    """Every curve the verdict carries against its index."""
    numbers = dict(verdict.numbers)
    index = numbers.pop("index", None)
    curves = {n: a for n, a in numbers.items() if index is not None and np.shape(a)[-1:] == index.shape}
    if not curves:
        raise ValueError("this verdict carries no curves to plot.")
    figure, axes = canvas(len(curves), width=3.2 * len(curves))
    for ax, (name, curve) in zip(axes, curves.items(), strict=True):
        _band(ax, index, curve, BLUE)
        ax.set(title=name, xlabel="index")
        ax.set_xscale("symlog", linthresh=1)
    return figure


def _band(ax: Axes, x: Any, y: Float, color: str) -> None:
    """One curve; with runs the median and the middle half of the runs."""
    if y.ndim == 1:
        ax.plot(x, y, color=color)
        return
    band(ax, x, y, color)
