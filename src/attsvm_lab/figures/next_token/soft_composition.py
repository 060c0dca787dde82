"""Hard retrieval, then soft composition: a growing direction and finite odds inside a component.

"Mechanics of Next Token Prediction with Self-Attention" (Li et al. 2024), on the toy whose odds are 2.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.plotting.layout import describe, grid, label_end
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, label
from attsvm_lab.claims.next_token import QUERY, composition
from attsvm_lab.figures.accuracy import digits, within
from attsvm_lab.figures.figure import DERIVED, RUN, Arrays, Check, scales
from attsvm_lab.figures.papers import NEXT_TOKEN

RECORD = (100, 1_000, 10_000, 100_000)
ODDS = (0.76637, 0.69957, 0.69377, 0.69321)
COSINES = (0.981, 0.993, 0.9965, 0.9979)
"""w_0 − w_1 and cosine to Graph-SVM at RECORD, from an independent script (GD, step 0.5)."""


@NEXT_TOKEN.figure(
    "soft-composition",
    "Hard retrieval, soft composition",
    shows=(
        "Query 3 sees 0 1 3 → 0 twice, 0 1 3 → 1 once, 0 2 3 → 0 twice. Tokens 0 and 1 form a "
        "component: their logits leave the others without bound, along Graph-SVM, while the odds "
        "between them settle at log 2."
    ),
    sizes=scales(steps=(10_000, 100_000, 1_000_000)),
    seconds=3,
)
def experiment(steps: int) -> Arrays:
    """Logits (k, 4) of the query, cosine to Graph-SVM (k,), and the finite odds of the program."""
    toy = att.next_token.log2_toy()
    inner = {*RECORD, *np.unique(np.geomspace(1, steps, 60).astype(int)).tolist()}
    record = sorted(k for k in inner if k <= steps)
    run = composition(toy, 0.5, steps, record)
    finite = run.finite[:, QUERY]
    return {
        "steps": run.path.index,
        "logits": run.path.W[:, :, QUERY],
        "cosine": att.cosine(run.path.W, run.program.W),
        "finite_odds": np.array(finite[0] - finite[1]),
    }


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """All logits of the query, the odds inside the component, the direction."""
    figure, ((logits, odds, direction),) = grid(1, 3, 2.8)
    steps, w = arrays["steps"][1:], arrays["logits"][1:]
    for token, color in enumerate((BLUE, GREEN, ORANGE, GREY)):
        logits.plot(steps, w[:, token], color=color)
        shift = {0: 3, 1: -3, 2: 3, 3: -3}[token]
        label_end(logits, steps[-1], w[-1, token], f"token {token}", color, shift)
    odds.plot(steps, w[:, 0] - w[:, 1], color=BLUE)
    odds.axhline(np.log(2), color=GREY, ls=":", lw=1.2)
    below = {"ha": "right", "va": "top", "xytext": (0, -4), "textcoords": "offset points"}
    label(odds, steps[-1], np.log(2), "log 2", GREY, **below)
    direction.plot(steps, 1 - arrays["cosine"][1:], color=BLUE)
    direction.set_yscale("log")
    for ax in (logits, odds, direction):
        ax.set_xscale("log")
    describe(logits, "retrieval: logits part", "iterations", "$w_x = x^\\top W q$")
    describe(odds, "composition: odds stay finite", "iterations", "$w_0 - w_1$")
    describe(direction, "direction: Graph-SVM", "iterations", "$1-\\cos(W, W_{svm})$")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """log 2 of the program, and the run at four steps against an independent script."""
    near, odds_of = within(1e-12, "a closed form"), float(arrays["finite_odds"])
    rows = [Check("finite odds of the toy", DERIVED, "closed form", np.log(2), odds_of, near)]
    source = "independent sketch, GD step 0.5"
    for step, odds, cosine in zip(RECORD, ODDS, COSINES, strict=True):
        at = arrays["steps"] == step
        if at.any():
            w, ours = arrays["logits"][at][0], float(arrays["cosine"][at][0])
            accuracy = digits(3 if step < 10_000 else 4)
            rows += [
                Check(f"w_0 − w_1 after {step:,} steps", RUN, source, odds, w[0] - w[1], digits(5)),
                Check(f"cosine after {step:,} steps", RUN, source, cosine, ours, accuracy),
            ]
    return rows
