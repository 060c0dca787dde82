"""Key and query trained apart: diagonal ones, general ones, and general ones aligned with the data.

"Implicit Regularization of Gradient Flow on One-Layer Softmax Attention" (Sheen et al. 2024); its abstract is
known to us, its plots are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import band, describe, grid, label_end
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE
from attsvm_lab import programs
from attsvm_lab.claims.gradient_flow import (
    RATES,
    WIDE,
    aligned_run,
    balance_drifts,
    diagonal_program,
    flow,
)
from attsvm_lab.claims.instances import first_tokens
from attsvm_lab.figures.accuracy import exactly, within
from attsvm_lab.figures.figure import CONJECTURED, DERIVED, STATED, Arrays, Check, scales
from attsvm_lab.figures.papers import GRADIENT_FLOW

ABSTRACT = "Sheen et al. 2024, abstract"
RECALLED = "Sheen et al. 2024, aligned regime, recalled"
NGD = att.steepest(att.frobenius, 0.1)


@GRADIENT_FLOW.figure(
    "gradient-flow",
    "Key and query trained apart",
    shows=(
        "Trained factors take nearly all of the best margin of the nuclear norm, diagonal factors of the l1 "
        "norm; W itself, or the diagonal itself, does not. Factors aligned with the data's features stay so; "
        "a start that is turned out of them has the same margin with another W. Lines: medians; bands: the "
        "middle half."
    ),
    notes=(
        "Of the paper we know the abstract: data, starts and steps are ours, normalised descent in place of "
        "the flow. On aligned data the nuclear program has many solutions: all positive semidefinite "
        "matrices with the diagonal that margins ask for. The aligned start reaches the diagonal one."
    ),
    sizes=scales(seeds=(2, 10, 20), steps=(5_000, 30_000, 100_000)),
    long_runs=True,
    seconds=11,
)
def experiment(seeds: int, steps: int) -> Arrays:
    """Margin shares, cosines and off-diagonal shares (seeds, k), steps (k,), and drifts (seeds, rates)."""
    record = sorted({int(k) for k in np.geomspace(10, steps, 40).round()})
    curves: dict[str, list[Float]] = {}
    for seed in range(seeds):
        starts: dict[str, tuple[att.Weight, Any]] = {
            "diagonal_factors": (att.Diagonal(2), (np.ones(WIDE), np.zeros(WIDE))),
            "diagonal_itself": (att.Diagonal(), np.zeros(WIDE)),
        }
        for name, (weight, init) in starts.items():
            run = flow(seed, weight, NGD, steps, init, d=WIDE, record=record)
            curves.setdefault(name, []).append(run.ratio(att.l1, first_tokens(run.tokens)))
        general: dict[str, att.Weight] = {"factors": att.KeyQuery(), "whole": att.FullWeight()}
        for name, weight in general.items():
            run = flow(seed, weight, NGD, steps, att.uniform(seed), record=record)
            curves.setdefault(name, []).append(run.ratio(att.nuclear, first_tokens(run.tokens)))
        for name, aligned in (("aligned", True), ("turned", False)):
            run, (U, V) = aligned_run(seed, aligned, NGD, steps, record)
            path = run.path
            features = U.T @ path.W @ V
            off = np.linalg.norm(features * (1 - np.eye(len(U))), axis=(-2, -1)) / path.norm()
            curves.setdefault(f"{name}_off", []).append(off)
            curves.setdefault(f"{name}_cosine", []).append(att.cosine(path.W, diagonal_program(path, U, V)))
            margin = run.ratio(att.nuclear, first_tokens(run.tokens))
            curves.setdefault(f"{name}_margin", []).append(margin)
    arrays: Arrays = {name: np.stack(runs)[:, 1:] for name, runs in curves.items()}
    drifts = np.array([balance_drifts(seed)[0] for seed in range(seeds)])
    return arrays | {"steps": path.index[1:], "drift": drifts}


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Margins of diagonal and of general weights, and what two starts put off the features."""
    figure, ((diagonal, general, aligned),) = grid(1, 3, 2.9)
    steps = arrays["steps"]
    for ax, names in (
        (diagonal, {"diagonal_factors": ("k ⊙ q", BLUE), "diagonal_itself": ("diagonal", ORANGE)}),
        (general, {"factors": ("K, Q", BLUE), "whole": ("W", ORANGE)}),
        (aligned, {"aligned_off": ("aligned", GREEN), "turned_off": ("turned", GREY)}),
    ):
        for name, (word, color) in names.items():
            curve = np.maximum(arrays[name], 1e-17)
            label_end(ax, steps[-1], band(ax, steps, curve, color)[-1], word, color)
        ax.set_xscale("log")
    diagonal.set_ylim(0, 1.05)
    general.set_ylim(0, 1.05)
    aligned.set_yscale("log")
    describe(diagonal, "diagonal weights", "steps", "l1 margin / best")
    describe(general, "general weights", "steps", "nuclear margin / best")
    describe(aligned, "off the data's features", "steps", "off-diagonal share of $U^\\top W V$")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """What the abstract says, what we recall of the aligned regime, and what we derived."""
    end = {name: float(np.median(values[:, -1])) for name, values in arrays.items() if name not in OTHER}
    late = within(0.05, "of the best margin, still on its way")
    more = float(np.mean(arrays["whole"][:, -1] > arrays["factors"][:, -1] + 0.005))
    exponent = float(
        np.median([programs.fit_rate(RATES, drift, last=100).exponent for drift in arrays["drift"]])
    )
    direction, rounding = within(1e-3, "a direction, still on its way"), within(1e-10, "rounding")
    linear = within(0.03, "one common step adds lr² to the balance")
    cosine, off = end["aligned_cosine"], end["aligned_off"]
    return [
        Check("l1 margin of k ⊙ q / best, median", STATED, ABSTRACT, 1.0, end["diagonal_factors"], late),
        Check("nuclear margin of K Qᵀ / best, median", STATED, ABSTRACT, 1.0, end["factors"], late),
        Check("share of draws where W itself has more", STATED, ABSTRACT, 0.0, more, exactly("none")),
        Check("cosine of aligned factors to U diag(1/g) Vᵀ", CONJECTURED, RECALLED, 1.0, cosine, direction),
        Check("off-diagonal share of aligned factors", CONJECTURED, RECALLED, 0.0, off, rounding),
        Check(
            "nuclear margin of a turned start / best",
            DERIVED,
            "semidefinite completions",
            1.0,
            end["turned_margin"],
            within(0.01, "the same margin with another W"),
        ),
        Check("exponent of the balance's drift in lr", DERIVED, "one step", 1.0, exponent, linear),
    ]


OTHER = ("steps", "drift")
"""Arrays that are no curves."""
