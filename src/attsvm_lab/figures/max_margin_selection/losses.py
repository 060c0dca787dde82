"""The transient bias of training depends on the loss: measured offsets and their closed form.

"Max-Margin Token Selection in Attention Mechanism", experiment on the loss function.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, label
from attsvm_lab.figures.accuracy import within
from attsvm_lab.figures.figure import DERIVED, Arrays, Check, scales
from attsvm_lab.figures.max_margin_selection.protocol import (
    descend,
    published_loop,
    stack,
    with_and_without_constants,
)
from attsvm_lab.figures.papers import MAX_MARGIN

HIGH = np.array([*range(1, 11), 100.0])
LOSSES: dict[str, att.Loss] = {
    "linear": att.correlation,
    "logistic": att.logistic,
    "exponential": att.exponential,
}
LOG_SLOPES: dict[str, Callable[[Float], Float]] = {  # log |ℓ'(x)|
    "linear": lambda x: 0 * x,
    "logistic": lambda x: -np.logaddexp(0, x),
    "exponential": lambda x: -x,
}
COLORS = {"linear": ORANGE, "logistic": BLUE, "exponential": GREEN}
NAMES = {"linear": "ℓ(x) = −x", "logistic": "logistic", "exponential": "exponential"}
ADDED = 1e-9
TRANSIENT = within(1e-3, "what is left of the transient after 1,000 steps")


def offset(loss: str, high: Float) -> Float:
    """The limit of p₂:  ½ ln(C |ℓ'(C)| / |ℓ'(1)|),  for C = high."""
    log_slope = LOG_SLOPES[loss]
    return np.asarray(0.5 * (np.log(high) + log_slope(high) - log_slope(np.ones(()))))


@MAX_MARGIN.figure(
    "losses",
    "The loss decides how training leans",
    shows=(
        "All directions tend to p^mm = (1, 0), but on the way the linear loss leans to the input with "
        "the high score C and the logistic and exponential losses to the one with score 1. The offset "
        "tends to ½ ln(C|ℓ'(C)|/|ℓ'(1)|): lines are this closed form, points are runs."
    ),
    notes=(
        "For C = 100 the published loop stops at (11.9, −11.9) because it adds 1e-9 to the length of "
        "the gradient; it looks like a slow transient. Without the constant p₂ reaches its limit −47.0 "
        "within 1,000 steps."
    ),
    sizes=scales(
        steps=(1_000, 1_000, 100_000), losses=(("linear", "logistic"), tuple(LOSSES), tuple(LOSSES))
    ),
    seconds=7,
)
def experiment(steps: int, losses: tuple[str, ...]) -> Arrays:
    """Prompts (11, k, 2) from zero for each score C and each loss; the published loop for C = 100."""
    tokens = stack([att.datasets.two_scores(high)[0] for high in HIGH])
    arrays: Arrays = {}
    record = sorted({*range(0, 1_001, 5), *range(1_000, steps + 1, 100)})
    for name in losses:
        path = descend(tokens, np.ones(1), record, loss=LOSSES[name])
        arrays |= {"steps": path.index, f"prompts_{name}": path.W[..., 0]}
    slowest = tokens.run(len(HIGH) - 1)
    prompts, _ = published_loop(slowest, np.ones(1), np.zeros(2), 1_000, (ADDED, None))
    return arrays | {"published": prompts}


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Paths that lean; offsets against C; the slowest of them against steps."""
    figure, ((plane, offsets, slow),) = grid(1, 3, 3.1)
    for name in (name for name in LOSSES if f"prompts_{name}" in arrays):
        _paths(plane, arrays[f"prompts_{name}"], name)
        _offsets(offsets, arrays, name)
    plane.axhline(0, color=GREY, lw=5, alpha=0.25)
    label(plane, 40, -0.8, "$p^{mm}$ = (1, 0)", GREY, ha="right")
    plane.set(title="p for C = 2, 5, 10", xlabel="p₁", ylabel="p₂", xlim=(0, 41), ylim=(-4.4, 2.4))
    offsets.set(title="p₂ after 1,000 steps", xlabel="score C of input 1; input 2 has 1", ylim=(-4.4, 2.4))
    _slow(slow, arrays)
    return figure


def _paths(ax: Axes, prompts: Float, name: str) -> None:
    for C in (2, 5, 10):
        path = prompts[C - 1]
        ax.plot(*path.T, color=COLORS[name], lw=1.2)
        if name != "exponential":
            label(ax, 42, path[-1, 1], f"{C}", COLORS[name], va="center", annotation_clip=False)


def _offsets(ax: Axes, arrays: Arrays, name: str) -> None:
    ours = _at(arrays, name, 1_000)[:10, 1]
    C = np.linspace(1, 10, 100)
    ax.plot(C, offset(name, C), color=COLORS[name], lw=1)
    ax.plot(HIGH[:10], ours, "o", ms=3.5, color=COLORS[name])
    place = {"linear": (3.0, 1.25), "logistic": (6.6, -1.3), "exponential": (1.4, -3.2)}[name]
    label(ax, *place, NAMES[name], COLORS[name])


def _slow(ax: Axes, arrays: Arrays) -> None:
    limit, ours = float(offset("logistic", HIGH[-1])), arrays["prompts_logistic"][-1, :, 1]
    ax.plot(arrays["steps"], ours, color=BLUE)
    ax.plot(arrays["published"][:, 1], color="black", lw=1)
    ax.axhline(limit, color=GREY, ls="--", lw=1)
    below = {"ha": "right", "va": "top", "xytext": (0, -3), "textcoords": "offset points"}
    label(ax, 1_000, limit, f"limit {limit:.1f}", GREY, **below)
    label(ax, 1_000, -11, "the published loop\nfreezes", "black", ha="right", va="bottom")
    label(ax, 440, -27, "no constant in\nthe normaliser", BLUE)
    ax.set(title="p₂ for C = 100, logistic", xlabel="steps", xlim=(0, 1_000), ylim=(-54, 2))


def _at(arrays: Arrays, name: str, step: int) -> Float:
    return arrays[f"prompts_{name}"][:, int(np.searchsorted(arrays["steps"], step))]


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The closed forms, and the slow transient."""
    rows = []
    for name in (name for name in LOSSES if f"prompts_{name}" in arrays):
        p = _at(arrays, name, 1_000)
        for C in (2, 5, 10) + ((100,) if name == "linear" else ()):
            run = int(np.flatnonzero(HIGH == C)[0])
            limit = float(offset(name, HIGH[run]))
            rows.append(
                Check(f"offset p₂, {name} loss, C = {C}", DERIVED, "closed form", limit, p[run, 1], TRANSIENT)
            )
    slow, limit = _at(arrays, "logistic", 1_000)[-1, 1], float(offset("logistic", HIGH[-1]))
    rows.append(Check("offset p₂, logistic loss, C = 100", DERIVED, "closed form", limit, slow, TRANSIENT))
    for coordinate, published in ((0, 11.9), (1, -11.9)):
        pair = arrays["published"][-1, coordinate], _at(arrays, "logistic", 1_000)[-1, coordinate]
        rows += with_and_without_constants(
            f"logistic, C = 100: p{'₁₂'[coordinate]} after 1,000 steps", published, pair, 1
        )
    return rows
