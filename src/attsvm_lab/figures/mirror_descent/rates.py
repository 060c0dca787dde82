"""How fast unnormalised mirror descent approaches its program: poly-logarithmically in the steps.

"Optimizing Attention with Mirror Descent", the rate theorem for p below, at and above two.
"""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import band, describe, grid, label_end
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE, label
from attsvm_lab.claims.mirror_descent import away, late_rate
from attsvm_lab.experiment import Experiment
from attsvm_lab.figures.accuracy import sampled, within
from attsvm_lab.figures.figure import CONJECTURED, DERIVED, RUN, Arrays, Check, scales
from attsvm_lab.figures.papers import MIRROR

RATES = {1.5: 0.3, 2.0: 1.0, 3.0: 3.0}
COLORS = {1.5: BLUE, 2.0: ORANGE, 3.0: GREEN}
MEASURED = {1.5: (0.088, 0.014), 2.0: (0.060, 0.009), 3.0: (0.023, 0.009)}
"""Divergence after 100,000 steps in an independent script, two instances."""


@MIRROR.figure(
    "mirror-rates",
    "The rate of mirror descent",
    shows=(
        "Without normalisation ‖W‖ grows like log k and the divergence to the program falls by powers "
        "of log k only: 100,000 steps buy about two digits. Every curve falls at least as fast as the "
        "theorem's order (dotted), and the three regimes of p look alike."
    ),
    notes=(
        "The paper states these orders and draws no such figure. The measured exponents in log k are "
        "steeper than the orders; a run of feasible length can refute the bound but not show its exact "
        "power."
    ),
    sizes=scales(runs=(6, 12, 50), steps=(10_000, 100_000, 1_000_000)),
    seconds=14,
)
def experiment(runs: int, steps: int) -> Arrays:
    """Divergence to the ℓp program and ‖W‖_p in units of its norm, (runs, k); fitted exponents (runs,)."""
    tokens, v = att.datasets.sphere(3, 4, 5, seed=range(runs))
    record = np.unique(np.geomspace(10, steps, 41).round().astype(int))
    arrays: Arrays = {"steps": record}
    for p, rate in RATES.items():
        rule = att.mirror(p, rate, normalised=False)
        trained = Experiment(tokens, v, rule, steps, record=record.tolist())
        norm, divergence, path = att.Entrywise(p), away(trained, p, p)[:, 1:], trained.path
        unit = norm.value(trained.solution(norm).W)
        arrays[f"away_{p:g}"] = divergence
        arrays[f"size_{p:g}"] = path.norm(norm)[:, 1:] / np.asarray(unit)[:, None]
        arrays[f"exponent_{p:g}"] = np.array([late_rate(record, run).exponent for run in divergence])
    return arrays


def bound(p: float, k: Float) -> Float:
    """The stated order of the divergence, up to a constant."""
    log = np.log(k)
    if p < 2:
        return np.asarray(log ** (1 - p))
    return np.asarray(np.log(log) ** (2 if p == 2 else 1) / log)


def steepness(p: float, steps: float) -> float:
    """The bound's own exponent in log k over the last decade of steps."""
    ends = np.array([steps / 10, steps])
    return float(np.diff(np.log(bound(p, ends)))[0] / np.diff(np.log(np.log(ends)))[0])


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Divergence with the bounds' shapes, and the norm against log k."""
    figure, ((divergences, norms),) = grid(1, 2, 3.2)
    steps = arrays["steps"]
    late = steps >= steps[-1] / 100
    for p, color in COLORS.items():
        middle = band(divergences, steps, arrays[f"away_{p:g}"], color)
        shape = bound(p, steps[late])
        divergences.plot(steps[late], 1.6 * middle[late][0] * shape / shape[0], color=color, ls=":", lw=1.2)
        size = band(norms, steps, arrays[f"size_{p:g}"], color)
        label_end(divergences, steps[-1], middle[-1], f"p = {p:g}", color, shift={2.0: -4, 3.0: 4}.get(p, 0))
        label_end(norms, steps[-1], size[-1], f"p = {p:g}", color, shift={1.5: 4, 2.0: -4}.get(p, 0))
    norms.plot(steps, np.log(steps), color=GREY, ls=":", lw=1.2)
    label(norms, steps[-1] / 30, np.log(steps[-1] / 30), "log k", GREY, ha="right", va="bottom")
    label(divergences, 12, np.median(arrays["away_3"][:, -1]), "dotted: the theorem's order", GREY)
    divergences.set(xscale="log", yscale="log")
    norms.set(xscale="log")
    describe(divergences, "divergence of W(k) to its own program", "iterations k", "$D_\\psi$, directional")
    describe(
        norms,
        "the norm grows like log k",
        "iterations k",
        "$\\Vert W(k)\\Vert_p\\,/\\,\\Vert W_{mm}\\Vert_p$",
    )
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The bound in every run; from 100,000 steps on, growth like log k and our earlier measurement."""
    steps = float(arrays["steps"][-1])
    rows = []
    late = within(0.1, "one run in ten may still be choosing its tokens")
    for p in RATES:
        share = float((arrays[f"exponent_{p:g}"] <= steepness(p, steps)).mean())
        quantity = f"p = {p:g}: share of runs that fall at least like the bound"
        rows.append(Check(quantity, CONJECTURED, "Mirror Descent, rate", 1.0, share, late))
        if steps >= 1e5:
            rows.append(_growth(p, arrays["steps"], np.median(arrays[f"size_{p:g}"], axis=0)))
            rows.append(_against_two_instances(p, arrays))
    return rows


def _growth(p: float, steps: Float, size: Float) -> Check:
    """Growth of ‖W‖ in units of the program's norm, over the last decade of steps."""
    last = steps >= steps[-1] / 10
    growth = float((size[-1] - size[last][0]) / np.log(steps[-1] / steps[last][0]))
    quantity = f"p = {p:g}: growth of ‖W‖/‖W_mm‖ per e-fold of steps"
    accuracy = within(0.25, "log k only in the limit")
    return Check(quantity, DERIVED, "asymptotics of the margin", 1.0, growth, accuracy)


def _against_two_instances(p: float, arrays: Arrays) -> Check:
    ours = np.log10(arrays[f"away_{p:g}"][:, np.searchsorted(arrays["steps"], 100_000)])
    quantity = f"p = {p:g}: log10 of the divergence after 100,000 steps"
    accuracy = sampled(ours, len(MEASURED[p]))
    reference = float(np.log10(MEASURED[p]).mean())
    return Check(quantity, RUN, "independent sketch, 2 seeds", reference, ours.mean(), accuracy)
