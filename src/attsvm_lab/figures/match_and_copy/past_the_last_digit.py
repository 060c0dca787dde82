"""Match and copy: margins, squared error and direction of plain and of normalised descent."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.plotting.layout import band, describe, grid, label_end
from attsvm.plotting.style import BLUE, GREY, ORANGE, label
from attsvm_lab import datasets
from attsvm_lab.figures.accuracy import within
from attsvm_lab.figures.figure import DERIVED, STATED, Arrays, Check, scales
from attsvm_lab.figures.papers import MATCH_AND_COPY

METHODS = {"plain": (att.gd(0.02), ORANGE), "normalised": (att.steepest(att.frobenius, 0.1), BLUE)}
SIZE = {"n": 8, "T": 5, "d": 16}
PAPER = "Gonon et al. 2026, direction"


@MATCH_AND_COPY.figure(
    "match-and-copy",
    "Copying under squared loss ends at the max-margin match",
    shows=(
        "Gradient descent on the squared error of the copy, n = 8, T = 5, d = 16, from zero: margins grow "
        "like half of log t, and the error falls like 1/t. Its direction approaches the max-margin "
        "separator of the match like 1/log t only, so that no run of it shows the limit; normalised steps "
        "do, past the smallest number of float64."
    ),
    notes="The paper's run, of a full two-layer model with AdamW, reached a cosine of .8 to .95.",
    sizes=scales(runs=(4, 10, 20), steps=(3_000, 30_000, 300_000)),
    seconds=12,
)
def experiment(runs: int, steps: int) -> Arrays:
    """Margin, log of the squared error, 1 − cosine and ‖W‖ (runs, k) of both methods, and steps (k,)."""
    tokens, place = datasets.match_and_copy(**SIZE, seed=range(runs))
    best = att.max_margin(tokens, place)
    record = np.unique(np.geomspace(10, steps, 40).astype(int))
    arrays: Arrays = {"steps": record}
    for name, (rule, _) in METHODS.items():
        head = att.SquaredError()
        path = att.train(tokens, head, optimizer=rule, steps=steps, record=record.tolist())
        drawn = path.index > 0
        ratio, length = att.margin_ratio(path, best)[:, drawn], path.norm()[:, drawn]
        arrays |= {
            f"margin_{name}": ratio * length * np.asarray(best.margin)[:, None],
            f"error_{name}": path.log_excess[:, drawn] + np.log(2),
            f"away_{name}": 1 - att.cosine(path.W[:, drawn], best.W),
            f"matched_{name}": (path.selected.argmax(-1) == place).mean(-1),
        }
    return arrays


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Margin and error of plain descent; the direction of both."""
    figure, ((margin, error, away),) = grid(1, 3, 2.9)
    steps = arrays["steps"]
    band(margin, steps, arrays["margin_plain"], ORANGE)
    start = float(np.median(arrays["margin_plain"][:, 0]))
    margin.plot(steps, start - 0.7 + 0.5 * np.log(steps / steps[0]), ":", color=GREY)
    place = {"textcoords": "offset points", "xytext": (8, -10), "ha": "left"}
    label(margin, steps[20], start - 0.7 + 0.5 * np.log(steps[20] / steps[0]), "½ log t", GREY, **place)
    band(error, steps, np.exp(arrays["error_plain"]) * steps, ORANGE)
    error.set_ylim(0, 2)
    label(error, steps[20], 0.6, "flat: 1/t", GREY, ha="center")
    for name, (_, color) in METHODS.items():
        end = band(away, steps, arrays[f"away_{name}"], color)[-1]
        label_end(away, steps[-1], end, name, color)
    for ax in (margin, error, away):
        ax.set_xscale("log")
    away.set_yscale("log")
    describe(margin, "least margin, plain descent", "steps t", "$\\min\\,(x_s-x_j)^\\top W z$")
    describe(error, "squared error · t, plain descent", "steps t", "$t\\;\\mathrm{mean}\\,\\Vert r\\Vert^2$")
    describe(away, "direction", "steps t", "$1-\\cos(W_t,\\,W_{mm})$")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Exponents, an independent script, and the direction."""
    middle = len(arrays["steps"]) // 2
    folds = np.log(arrays["steps"][-1] / arrays["steps"][middle])
    slopes = (arrays["margin_plain"][:, -1] - arrays["margin_plain"][:, middle]) / folds
    falls = (arrays["error_plain"][:, -1] - arrays["error_plain"][:, middle]) / folds
    source, near = "m' ~ e^(−2m)", within(0.05, "up to lower order, at these steps")
    normalised = float(arrays["away_normalised"][:, -1].max())
    matched = float(min(arrays[f"matched_{name}"].min() for name in METHODS))
    all_runs, falling = within(0, "all of them"), within(1e-5, "it falls like 1/steps²")
    return [
        Check("exponent of e^margin in t, plain descent", DERIVED, source, 0.5, slopes.mean(), near),
        Check("exponent of the squared error in t", DERIVED, source, -1.0, falls.mean(), near),
        Check("share of matches selected, both methods", STATED, PAPER, 1.0, matched, all_runs),
        Check("largest 1 − cosine of normalised descent", STATED, PAPER, 0.0, normalised, falling),
    ]
