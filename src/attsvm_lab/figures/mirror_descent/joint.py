"""Weight and head trained together: p decides the selected token, and both end on their programs' rays.

"Optimizing Attention with Mirror Descent", synthetic experiment B: two inputs in the plane.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.comparison.verdict import divergence
from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREEN, GREY, ORANGE
from attsvm_lab.claims.joint_mirror import PUBLISHED, joint_run
from attsvm_lab.figures.accuracy import axis, exactly, significant
from attsvm_lab.figures.figure import PLOT, PRINTED, RUN, Arrays, Check, scales
from attsvm_lab.figures.papers import MIRROR
from attsvm_lab.figures.textbook import MACHINE, joint_gradient

COLORS = {1.75: BLUE, 2.0: ORANGE, 3.0: GREEN}
MEASURED = {1.75: (0.0083, 0.00020), 2.0: (0.0038, 0.00032), 3.0: (0.0027, 0.0024)}
"""Divergence of W and of v at the end of an independent script, two digits."""
FIRST = 120
"""Steps over which the probabilities are drawn."""


@MIRROR.figure(
    "mirror-joint",
    "Weight and head trained together",
    shows=(
        "From zero, W and v settle on the rays of their programs together. The potential decides which "
        "token wins: p = 1.75 and 2 select tokens (1, 0), p = 3 selects (0, 0)."
    ),
    notes=(
        "The published recipe stops W at ‖W‖ ≈ 6.5 (crosses): with the usual softmax gradient and "
        "2.2e-16 in the normaliser we find the divergences of an independent script to both digits; "
        "relative to the winning token W goes on and comes 30 to 1,000 times nearer to its ray. The "
        "selected tokens are the same."
    ),
    sizes=scales(exponents=((2.0, 3.0), (1.75, 2.0, 3.0), (1.75, 2.0, 3.0))),
    seconds=8,
)
def experiment(exponents: tuple[float, ...]) -> Arrays:
    """Trajectories of W's first row and of v (k, 2), their rays (2,), probabilities and divergences (k,)."""
    tokens, v = att.datasets.joint_mirror()
    arrays: Arrays = {"exponents": np.array(exponents)}
    for p in exponents:
        steps, _ = PUBLISHED[p]
        record = np.unique([*range(FIRST + 1), *np.geomspace(FIRST, steps, 60).astype(int)])
        path = joint_run(tokens, v, p, record.tolist())
        v_path = np.asarray(path.v)
        norm = att.Entrywise(p)
        weight, head = att.max_margin(tokens, path.selected, norm), att.label_svm(tokens, path.selected, norm)
        arrays |= {
            f"steps_{p:g}": path.index,
            f"W_{p:g}": path.W[:, 0],
            f"v_{p:g}": v_path,
            f"W_ray_{p:g}": weight.W[0],
            f"v_ray_{p:g}": head.W[:, 0],
            f"W_away_{p:g}": divergence(path.W, weight.W, norm),
            f"selected_{p:g}": path.selected.argmax(-1),
        } | _probabilities(path, v_path, p)
        W, v_end = usual_descent(tokens, p, steps)
        arrays |= {
            f"usual_W_{p:g}": W[0],
            f"usual_W_away_{p:g}": divergence(W[None], weight.W, norm)[0],
            f"usual_v_away_{p:g}": divergence(v_end[None, :, None], head.W, norm)[0],
        }
    return arrays


def usual_descent(tokens: att.Tokens, p: float, steps: int) -> tuple[Float, Float]:
    """The same joint run with the textbook softmax gradient, as the published code takes it: (W, v).

    U ← U − 0.1 ∇L/(‖∇L‖_q + 2.2e-16) for W and v apart, W = sign(U) |U|^(1/(p−1)).
    """
    q = p / (p - 1)
    duals = [np.zeros((tokens.d, tokens.e)), np.zeros(tokens.d)]
    for _ in range(steps):
        W, v = (np.sign(U) * np.abs(U) ** (1 / (p - 1)) for U in duals)
        for U, slope in zip(duals, joint_gradient(tokens, W, v), strict=True):
            U -= 0.1 * slope / ((np.abs(slope) ** q).sum() ** (1 / q) + MACHINE)
    return W, v


def _probabilities(path: att.Path, v: Float, p: float) -> Arrays:
    """Mean attention on the top token, and mean logistic probability of the label there."""
    tokens, top = path.tokens, path.attention.argmax(-1)
    values = tokens.values[np.arange(tokens.n), top]
    odds = tokens.labels * (values * v[:, None]).sum(-1)
    return {
        f"softmax_{p:g}": path.attention.max(-1).mean(-1),
        f"logistic_{p:g}": (1 / (1 + np.exp(-odds))).mean(-1),
    }


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """One column per p: W and v against their rays, probabilities over the first steps."""
    exponents = [float(p) for p in arrays["exponents"]]
    figure, rows = grid(3, len(exponents), 6.0)
    for p, weight, head, chances in zip(exponents, *rows, strict=True):
        color = COLORS[p]
        _trajectory(weight, arrays[f"W_{p:g}"], arrays[f"W_ray_{p:g}"], color)
        _trajectory(head, arrays[f"v_{p:g}"], arrays[f"v_ray_{p:g}"], color)
        steps = arrays[f"steps_{p:g}"]
        early = steps <= FIRST
        chances.plot(steps[early], arrays[f"softmax_{p:g}"][early], color=color)
        chances.plot(steps[early], arrays[f"logistic_{p:g}"][early], color=color, ls="--", lw=1)
        chances.set_ylim(0.3, 1.03)
        selected = ", ".join(str(t) for t in arrays[f"selected_{p:g}"])
        end = arrays[f"usual_W_{p:g}"]
        weight.plot(*end, "x", color="black", ms=5)
        corner, side = (0.04, "left") if end[0] < 0 else (0.97, "right")
        weight.text(
            corner, 0.97, "× usual\nformula stops", transform=weight.transAxes, fontsize=8, ha=side, va="top"
        )
        describe(weight, f"p = {p:g} selects tokens ({selected})", "$W_{00}$", "$W_{01}$")
        describe(head, "", "$v_0$", "$v_1$")
        describe(chances, "", "iterations", "mean over inputs")
    remark = "wide: ray of\nthe program\nthin: training"
    rows[1][0].text(0.04, 0.97, remark, transform=rows[1][0].transAxes, fontsize=8, color=GREY, va="top")
    remark = "solid: attention on\nthe top token\ndashed: probability\nof the label there"
    rows[2][0].text(0.98, 0.06, remark, transform=rows[2][0].transAxes, fontsize=8, color=GREY, ha="right")
    return figure


def _trajectory(ax: Axes, path: Float, ray: Float, color: str) -> None:
    """The path above its ray."""
    reach = np.linalg.norm(path[-1]) / np.linalg.norm(ray)
    ax.plot(*np.outer([0, reach], ray).T, color=color, lw=5, alpha=0.25, solid_capstyle="butt")
    ax.plot(*path.T, color=color, lw=1.4)
    ax.margins(0.12)


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The saved selections, the earlier divergences, and both probabilities after 40 steps."""
    exponents = [float(p) for p in arrays["exponents"]]
    return [check for p in exponents for check in (*_published(arrays, p), *_measured(arrays, p))]


def _published(arrays: Arrays, p: float) -> list[Check]:
    both = np.minimum(arrays[f"softmax_{p:g}"], arrays[f"logistic_{p:g}"])
    rows = [
        Check(f"p = {p:g}: token of input {i + 1}", PRINTED, SAVED, token, int(ours), exactly("a token"))
        for i, (token, ours) in enumerate(zip(PUBLISHED[p][1], arrays[f"selected_{p:g}"], strict=True))
    ]
    smaller = float(both[arrays[f"steps_{p:g}"] == 40][0])
    quantity = f"p = {p:g}: smaller of both probabilities after 40 steps"
    return [*rows, Check(quantity, PLOT, SOURCE, 1.0, smaller, axis(0.3, 1.03))]


def _measured(arrays: Arrays, p: float) -> list[Check]:
    """Both divergences by the published recipe; for W also by the gradient that does not cancel."""
    rows, source = [], "independent sketch"
    for parameter, measured in zip("Wv", MEASURED[p], strict=True):
        quantity = f"p = {p:g}: divergence of {parameter} at the end, usual gradient"
        ours = float(arrays[f"usual_{parameter}_away_{p:g}"])
        rows.append(Check(quantity, RUN, source, measured, ours, significant(measured)))
    ours, of_weight = float(arrays[f"W_away_{p:g}"][-1]), MEASURED[p][0]
    quantity = f"p = {p:g}: divergence of W at the end"
    why = "the usual gradient cancels and W stops; ours goes on"
    exact = Check(quantity, RUN, source, of_weight, ours, significant(of_weight), why, recipe=rows[0])
    return [*rows, exact]


SOURCE = "Mirror Descent, joint run"
SAVED = f"{SOURCE}, saved selection"
