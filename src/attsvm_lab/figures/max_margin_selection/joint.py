"""Head and prompt trained together: inputs with excess label margin drop out of the prompt's program.

"Max-Margin Token Selection in Attention Mechanism", Figure 3.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from scipy.special import expit

import attsvm as att
from attsvm.plotting.layout import grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, label
from attsvm_lab.claims.joint_selection import CHOSEN, joint_descent, relaxed
from attsvm_lab.figures.accuracy import along, axis, digits, within
from attsvm_lab.figures.figure import DERIVED, PLOT, PRINTED, Arrays, Check, scales
from attsvm_lab.figures.max_margin_selection.protocol import (
    COST,
    PAPER,
    published_loop,
    stack,
    with_and_without_constants,
)
from attsvm_lab.figures.papers import MAX_MARGIN

THIRD = {"tight": (0.5, 1.0), "loose": (0.5, 1.5)}
START = np.array(att.datasets.published.JOINT_TRAINING_START)
ADDED = (1e-19, 1e-9)
"""Constants that the published loop adds to the lengths of the gradients of p and v."""
LATE, END = 199, 1_000
"""The "200 steps" of the published loop are its 200th prompt, after 199 updates."""
READINGS = {
    "mass": {0: 0.42, 7: 0.38, 28: 0.68, 50: 0.93, 90: 1.0},
    "probability": {0: 0.525, 10: 0.63, 31: 0.90, 50: 0.99},
}
"""Read off Figure 3c: mean attention on the non-zero token, mean probability of the right label."""
AXES = (-10, 209, 0.35, 1.03)
"""Its axes: left, right, bottom, top."""


@MAX_MARGIN.figure(
    "joint",
    "Head and prompt trained together",
    shows=(
        "Prompt p and head v trained together, 200 steps. When every input supports the head, p follows "
        "p^mm; when the third input has label margin to spare, p follows p^relax, which asks of it only "
        "the right order."
    ),
    notes=(
        "The published loop adds 1e-19 and 1e-9 to the lengths of the gradients of p and v. That slows "
        "v from step 150 on and freezes both: with the constants we find p = (34.5, 8.3) and (27.9, "
        "1.1) after 1,000 steps, to every digit of an independent script; without them ‖p‖ and ‖v‖ go "
        "on growing by 0.1 a step."
    ),
    sizes=scales(steps=(1_000, 1_000, 1_000)),
    seconds=3,
)
def experiment(steps: int) -> Arrays:
    """Prompts and heads (k, 2) of both problems, ours and of the published loop, and the exact programs."""
    problems = {name: att.datasets.joint_training(third)[0] for name, third in THIRD.items()}
    tokens, head = stack(list(problems.values())), np.array([-1.0, 0.0])
    path = joint_descent(tokens, head, steps, range(END + 1), START[:, None])
    loop = published_loop(tokens, np.tile(head, (2, 1)), np.tile(START, (2, 1)), END, ADDED)
    assert path.v is not None
    arrays: Arrays = {"steps": path.index}
    for k, (name, problem) in enumerate(problems.items()):
        arrays |= {f"p_{name}": path.W[k, ..., 0], f"v_{name}": path.v[k]}
        arrays |= {f"loop_p_{name}": loop[0][:, k], f"loop_v_{name}": loop[1][:, k]}
        svm = att.label_svm(problem, CHOSEN)
        arrays |= {f"mm_{name}": att.max_margin(problem, CHOSEN).W[:, 0], f"svm_{name}": svm.W[:, 0]}
        arrays[f"relaxed_{name}"] = relaxed(problem).W[:, 0]
    attention = path.attention[0, ..., 1]
    pooled = np.einsum("kn,nc->knc", attention, problems["tight"].keys[:, 1])
    margin = problems["tight"].labels * np.einsum("knc,kc->kn", pooled, arrays["v_tight"])
    return arrays | {"mass": attention.mean(-1), "probability": expit(margin).mean(-1)}


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Prompt and head in the plane, tight and not; probabilities by step."""
    figure, ((tight, loose, chances),) = grid(1, 3, 3.0)
    _plane(tight, arrays, "tight", ("mm",))
    _plane(loose, arrays, "loose", ("mm", "relaxed"))
    tight.set(title="all label margins tight", ylabel="second coordinate")
    loose.set(title="input 3 has spare margin")
    for quantity, color, name, place in (
        ("mass", BLUE, "attention on $x_i$", (38, 0.66)),
        ("probability", ORANGE, "P(right\nlabel)", (0, 0.86)),
    ):
        chances.plot(arrays[quantity][:101], color=color)
        readings = READINGS[quantity]
        chances.plot(list(readings), list(readings.values()), "o", ms=4.5, mfc="white", mec=color)
        label(chances, *place, name, color)
    label(chances, 45, 0.5, "○ as published", GREY)
    chances.set(title="tight: means over inputs", xlabel="steps", ylim=(0.3, 1.03))
    return figure


def _plane(ax: Axes, arrays: Arrays, name: str, rays: tuple[str, ...]) -> None:
    colors, texts = {"mm": BLUE, "relaxed": GREEN}, {"mm": "$p^{mm}$", "relaxed": "$p^{relax}$"}
    for ray in rays:
        end = arrays[f"{ray}_{name}"] * 21 / np.linalg.norm(arrays[f"{ray}_{name}"])
        ax.plot([0, end[0]], [0, end[1]], color=colors[ray], lw=5, alpha=0.25)
        label(ax, end[0], end[1] + 0.8, texts[ray], colors[ray], ha="right")
    ax.plot([0, 0], [0, 21], color=ORANGE, lw=5, alpha=0.25)
    label(ax, 0.9, 19.5, "$v^{mm}$", ORANGE)
    for parameter, color in (("v", ORANGE), ("p", "black")):
        path = arrays[f"{parameter}_{name}"][:201]
        ax.plot(*path.T, color=color, lw=1.4)
        ax.plot(*path[0], "o", ms=4, mfc="white", mec=color)
    label(ax, 6, -1.6, "p(t)", "black")
    label(ax, 0.9, 9, "v(t)", ORANGE)
    ax.set(xlabel="first coordinate", xlim=(-3, 22), ylim=(-3, 22), aspect="equal")


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Every number of the experiment: programs, ends of the runs, readings of Figure 3c."""
    return [*_programs(arrays), *_ends(arrays), *_readings(arrays)]


def _programs(arrays: Arrays) -> list[Check]:
    rows = []
    for key, published in (("mm_tight", 0.94444), ("relaxed_loose", 0.5)):
        cost = 0.5 * float((arrays[key] ** 2).sum())
        name = "tight: ½‖p^mm‖²" if key == "mm_tight" else "loose: ½‖p^relax‖²"
        rows.append(Check(name, PRINTED, COST, published, cost, digits(5)))
    exact = {"mm_tight": (4 / 3, 1 / 3), "mm_loose": (1.25, 0.25), "relaxed_loose": (1.0, 0.0)}
    exact |= {"svm_tight": (0.0, 1.0), "svm_loose": (0.0, 1.0)}
    for key, vector in exact.items():
        error = float(np.abs(arrays[key] - vector).max())
        kind, name = key.split("_")
        title = {"mm": "p^mm", "relaxed": "p^relax", "svm": "v^mm"}[kind]
        closed_form = within(1e-9, "a closed form")
        rows.append(Check(f"{name}: {title}, largest error", DERIVED, "closed form", 0.0, error, closed_form))
    return rows


ENDS = (
    ("tight: p₁", "p_tight", 0, LATE, 17.583, 3),
    ("tight: p₂", "p_tight", 1, LATE, 4.060, 3),
    ("tight: v₁", "v_tight", 0, LATE, 0.222, 3),
    ("tight: v₂", "v_tight", 1, LATE, 19.417, 3),
    ("tight: cosine of p to p^mm", "p_tight", "mm_tight", LATE, 0.9998, 4),
    ("tight: cosine of v to v^mm", "v_tight", "svm_tight", LATE, 0.9999, 4),
    ("tight: p₁", "p_tight", 0, END, 34.51, 2),
    ("tight: p₂", "p_tight", 1, END, 8.29, 2),
    ("loose: p₁", "p_loose", 0, LATE, 18.012, 3),
    ("loose: p₂", "p_loose", 1, LATE, 0.325, 3),
    ("loose: cosine of p to p^relax", "p_loose", "relaxed_loose", LATE, 0.9998, 4),
    ("loose: cosine of p to p^mm", "p_loose", "mm_loose", LATE, 0.984, 3),
    ("loose: p₁", "p_loose", 0, END, 27.90, 2),
    ("loose: p₂", "p_loose", 1, END, 1.10, 2),
    ("loose: cosine of p to p^relax", "p_loose", "relaxed_loose", END, 0.9992, 4),
    ("loose: cosine of p to p^mm", "p_loose", "mm_loose", END, 0.9875, 4),
)
"""Name, path, coordinate or program, step, published value and its decimals."""


def _ends(arrays: Arrays) -> list[Check]:
    rows = []
    for name, path, target, step, published, decimals in ENDS:
        points = arrays[f"loop_{path}"][step], arrays[path][step]
        if isinstance(target, int):
            pair = np.array([point[target] for point in points])
        else:
            pair = att.cosine(np.array(points)[..., None], arrays[target][:, None])
        rows += with_and_without_constants(
            f"{name}, {200 if step == LATE else step} steps", published, (pair[0], pair[1]), decimals
        )
    return rows


def _readings(arrays: Arrays) -> list[Check]:
    source, steps = f"{PAPER}, Fig. 3c", arrays["steps"]
    names = {"mass": "mean attention on x_i", "probability": "mean probability of the right label"}
    rows = []
    for quantity, readings in READINGS.items():
        for step, published in readings.items():
            accuracy = axis(*AXES[2:]) + along(steps, arrays[quantity], step, *AXES[:2])
            ours, title = float(arrays[quantity][step]), f"tight: {names[quantity]}, step {step}"
            rows.append(Check(title, PLOT, source, published, ours, accuracy))
    return rows
