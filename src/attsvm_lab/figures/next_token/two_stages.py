"""Two-stage training on a realisable corpus: loss, direction and norm of both layers.

"Non-asymptotic Convergence of Training Transformers for Next-token Prediction", Figure 2, six panels.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import band, describe, grid
from attsvm.plotting.style import BLUE, GREY, ORANGE
from attsvm_lab import programs
from attsvm_lab.claims.next_token import VOCABULARY, corpus_of, layers
from attsvm_lab.figures.accuracy import Accuracy, within
from attsvm_lab.figures.figure import CONJECTURED, DERIVED, STATED, Arrays, Check, Provenance, scales
from attsvm_lab.figures.papers import NEXT_TOKEN

LENGTHS = {"ov": 0.2 / np.sqrt(VOCABULARY), "kq": 0.05 / np.sqrt(VOCABULARY)}
"""The paper's step lengths."""
PAPER = "Huang et al. 2024, Fig. 2 and its text"
EXPONENTIAL: dict[str, Provenance] = {"ov": CONJECTURED, "kq": STATED}
"""The kind of reference of the loss's exponential decay: the text states it for the second stage only."""


KINDS = {"orthonormal": BLUE, "random": ORANGE}
"""Embeddings of the tokens: V unit vectors of width V."""
EXACT = ("ov", "orthonormal")
"""By symmetry this direction is exact from the first step; its error is rounding and is not drawn."""


@NEXT_TOKEN.figure(
    "two-stage-training",
    "Both stages of next-token training",
    shows=(
        "In both stages of normalised GD the loss gap falls exponentially, the direction tends to the "
        "max-margin program of the corpus, and the norm grows by the step length. Lines: medians over "
        "random corpora of 120 sentences; bands: the middle half."
    ),
    notes=(
        "The published dataset is not known beyond |V| = d = 20: ours has 120 sentences of five tokens. "
        "Behind the frozen feed-forward layer the loss tends to L* > 0, so the gap is drawn. For "
        "orthonormal tokens the first stage has the right direction from its first step, by symmetry, "
        "so no curve is drawn there."
    ),
    sizes=scales(corpora=(1, 2, 20), steps=((2_000, 10_000), (2_000, 10_000), (2_000, 200_000))),
    long_runs=True,
    seconds=12,
)
def experiment(corpora: int, steps: tuple[int, int]) -> Arrays:
    """log10 of the loss gap, 1 − cosine to the program and norm, (corpora, k), of W_ov and W_kq."""
    curves: dict[str, list[Float]] = {}
    for seed in range(corpora):
        corpus = corpus_of(seed)
        for kind, E in embeddings(seed).items():
            stages = att.next_token.train_two_stages(corpus, E, steps=steps, record=120)
            for name, layer in zip(LENGTHS, layers(corpus, stages), strict=True):
                values_of = (layer.log_gap / np.log(10), layer.away, layer.path.norm())
                for quantity, values in zip(("gap", "away", "norm"), values_of, strict=True):
                    curves.setdefault(f"{quantity}_{name}_{kind}", []).append(values)
    arrays: Arrays = {quantity: np.stack(runs) for quantity, runs in curves.items()}
    return arrays | {"steps_ov": stages.feed_forward.index, "steps_kq": stages.attention.index}


def embeddings(seed: int) -> dict[str, Float]:
    """Both kinds of embeddings (V, V)."""
    return {
        "orthonormal": np.eye(VOCABULARY),
        "random": att.next_token.random_embeddings(VOCABULARY, VOCABULARY, seed),
    }


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Stage one above stage two: loss, direction, norm."""
    figure, rows = grid(2, 3, 4.6)
    for (gap, away, norm), layer in zip(rows, LENGTHS, strict=True):
        steps = arrays[f"steps_{layer}"]
        for kind, color in KINDS.items():
            band(gap, steps, arrays[f"gap_{layer}_{kind}"], color)
            if (layer, kind) != EXACT:
                band(away, steps[1:], arrays[f"away_{layer}_{kind}"][:, 1:], color)
            band(norm, steps, arrays[f"norm_{layer}_{kind}"], color)
        away.set(xscale="log", yscale="log")
        norm.plot(steps, LENGTHS[layer] * steps, color=GREY, ls=":", lw=1.2)
        weight = f"W_{{{layer}}}"
        stage, loss = ("stage 1", "L_0") if layer == "ov" else ("stage 2", "(L-L^*)")
        describe(gap, f"{stage}: loss falls exponentially", "iterations t", f"$\\log_{{10}}{loss}$")
        describe(away, "direction tends to the program", "iterations t", f"$1-\\cos({weight},\\,{weight}^*)$")
        describe(norm, "norm grows linearly", "iterations t", f"$\\Vert {weight}\\Vert$")
    _explain(*rows[0])
    return figure


def _explain(gap: Axes, away: Axes, norm: Axes) -> None:
    for (kind, color), height in zip(KINDS.items(), (0.88, 0.76), strict=True):
        gap.text(0.97, height, f"{kind} tokens", transform=gap.transAxes, fontsize=8, color=color, ha="right")
    text, color = "orthonormal: exact\nfrom the first step", KINDS["orthonormal"]
    away.text(0.05, 0.06, text, transform=away.transAxes, fontsize=8, color=color)
    norm.text(
        0.97, 0.06, "dotted:\nstep length × t", transform=norm.transAxes, fontsize=8, color=GREY, ha="right"
    )


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """For orthonormal tokens: linear norms, linear log losses, and directions that tend to the program."""
    rate = programs.fit_rate(arrays["steps_ov"], np.median(arrays["away_ov_random"], axis=0), last=3.0)
    statement = "1 − cosine of W_ov, random tokens: exponent in t above −1"
    slow = within(0.1, "1 − cosine is O(log t/t)")
    source = "Huang et al. 2024, Proposition 1"
    return [
        *_stage(arrays, "ov", within(1e-12, "exact by symmetry")),
        *_stage(arrays, "kq", within(0.02, "O(log t/t): still on its way")),
        Check(statement, CONJECTURED, source, 0.0, max(rate.exponent + 1, 0.0), slow),
    ]


def _stage(arrays: Arrays, layer: str, near: Accuracy) -> list[Check]:
    steps, weight = arrays[f"steps_{layer}"], f"W_{layer}"
    late = steps >= steps[-1] / 2
    norms, gaps = arrays[f"norm_{layer}_orthonormal"], arrays[f"gap_{layer}_orthonormal"]
    straight = min(_r2(steps, norm) for norm in norms)
    falling = min(_r2(steps[late], gap[late]) for gap in gaps)
    size = float(np.median(norms[:, -1]) / (LENGTHS[layer] * steps[-1]))
    away = float(np.median(arrays[f"away_{layer}_orthonormal"][:, -1]))
    line, soon = within(1e-3, "a line"), within(2e-3, "exponential once the loss is small: second half")
    turn, equal = within(0.03, "only the first steps turn"), "steps of equal length"
    return [
        Check(f"R² of linear growth of ‖{weight}‖, worst corpus", STATED, PAPER, 1.0, straight, line),
        Check(
            f"R² of log loss against t, {weight}, worst corpus", EXPONENTIAL[layer], PAPER, 1.0, falling, soon
        ),
        Check(f"‖{weight}‖/(step length · t)", DERIVED, equal, 1.0, size, turn),
        Check(f"1 − cosine of {weight} at the end", STATED, PAPER, 0.0, away, near),
    ]


def _r2(x: Float, y: Float) -> float:
    return float(np.corrcoef(x, y)[0, 1] ** 2)
