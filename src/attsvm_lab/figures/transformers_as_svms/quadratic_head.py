"""A quadratic penalty in the head keeps several tokens: how many, and along which direction W grows.

"Transformers as Support Vector Machines", head vᵀ r − λ‖r‖² on orthonormal tokens, n = 3, T = d = 4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import describe, grid
from attsvm.plotting.style import BLUE, GREY, ORANGE, label
from attsvm_lab.claims.gen_svm import decaying, on_simplex
from attsvm_lab.figures.accuracy import digits, sampled, within
from attsvm_lab.figures.figure import CONJECTURED, DERIVED, RUN, Arrays, Check, scales
from attsvm_lab.figures.papers import TRANSFORMERS

STRENGTHS = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
TRAINED = (1.14, 1.26, 1.57, 1.97, 2.51, 3.52, 4.00)
PROJECTED = (1.17, 1.30, 1.61, 1.98, 2.49, 3.42, 4.00)
"""Tokens per input of an independent computation on 100 other instances, for the strengths above."""
KEPT = 1e-3
"""Attention from which a token counts as selected."""
TARGETS = {"both": "$C·W^{mm}+W^{fin}$", "direction": "$W^{mm}$ (Gen-SVM)", "single": "$W^{1token}$"}
COLORS = {"both": BLUE, "direction": ORANGE, "single": GREY}


@TRANSFORMERS.figure(
    "quadratic-head",
    "A quadratic penalty: how many tokens, and which direction",
    shows=(
        "The penalty λ makes mixing pay: the number of tokens that training keeps grows with λ, and is "
        "the support of the closed-form projection of Xv/(2λ) on the simplex. W is nearest to C·W^mm + "
        "W^fin, then W^mm; the SVM of a single token is wrong once several are kept."
    ),
    notes=(
        "The released code cannot run this experiment (its λ is never set), and its grid of λ is not "
        "known; the numbers are compared with an independent computation. W^mm, W^fin and the kept "
        "tokens come from the closed form, not from the run; runs that end in another local optimum, a "
        "few for small λ, are included."
    ),
    sizes=scales(instances=(12, 60, 500), steps=(4_000, 10_000, 10_000)),
    seconds=12,
)
def experiment(instances: int, steps: int) -> Arrays:
    """Trained and predicted attention (λ, instances, n, T); 1 − cosine (λ, instances) to three predictions.

    The prediction is the closed form of the best attention, s* = Proj_Δ(X v/(2λ)). It determines the
    selected tokens, W^mm and W^fin; only C is fitted. NaN where no token is masked: then no W^mm exists.
    """
    drawn, v = att.datasets.sphere(3, 4, 4, seed=range(instances))
    left_vectors, _, right_vectors = np.linalg.svd(drawn.keys)
    shape = (len(STRENGTHS), instances)
    keys, queries, v = (
        np.broadcast_to(a, (len(STRENGTHS), *a.shape)).reshape(-1, *a.shape[1:])
        for a in (left_vectors @ right_vectors, drawn.queries, v)
    )
    tokens, strength = att.Tokens(keys, queries), np.repeat(STRENGTHS, instances)
    head, rule = att.QuadraticPenalty(v, strength), att.steepest(att.frobenius, decaying)
    path = att.train(tokens, head, optimizer=rule, steps=steps, record=2)
    best = on_simplex(np.einsum("rntd,rd->rnt", keys, v) / (2 * strength[:, None, None]))
    arrays = {"trained": path.attention[:, -1], "projected": best} | _distances(tokens, path.final, best)
    return {name: array.reshape(*shape, *array.shape[1:]) for name, array in arrays.items()}


def _distances(tokens: att.Tokens, W: Float, best: Float) -> Arrays:
    """1 − cosine of W to C·W^mm + W^fin, W^mm and W^1token, (runs,)."""
    runs = np.flatnonzero((best == 0).any((-2, -1)))
    masked_tokens, W, best = att.Tokens(tokens.keys[runs], tokens.queries[runs]), W[runs], best[runs]
    direction = att.max_margin(masked_tokens, best > 0).W
    finite = att.finite_part(masked_tokens, best, best > 0)
    scale = ((W - finite) * direction).sum((-2, -1)) / (direction**2).sum((-2, -1))
    targets = {
        "both": scale[:, None, None] * direction + finite,
        "direction": direction,
        "single": att.max_margin(masked_tokens, best.argmax(-1)).W,
    }
    distances = {}
    for name, target in targets.items():
        distances[name] = np.full(len(tokens.keys), np.nan)
        distances[name][runs] = 1 - att.cosine(W[:, None], target)[:, 0]
    return distances


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """Tokens per input against λ; 1 − correlation against λ, and against the number of tokens."""
    figure, ((counts_ax, middle, right),) = grid(1, 3, 3.0)
    trained, projected = (_tokens(arrays[name]) for name in ("trained", "projected"))
    error = trained.std(-1) / np.sqrt(trained.shape[-1])
    counts_ax.plot(STRENGTHS, projected.mean(-1), color=GREY, lw=3, alpha=0.5)
    counts_ax.errorbar(STRENGTHS, trained.mean(-1), error, fmt="o", color=BLUE, ms=4)
    label(counts_ax, 0.055, 2.6, "line: simplex\nprojection", GREY)
    label(counts_ax, 0.055, 2.25, "● trained", BLUE)
    counts_ax.set(xscale="log", ylim=(0.9, 4.2))
    describe(counts_ax, "selected tokens per input", "penalty λ", "tokens (of T = 4)")
    counts = np.round(projected * 3).astype(int)  # selected tokens of all three inputs
    for target, color in COLORS.items():
        errors = arrays[target]
        _quartiles(middle, STRENGTHS, list(errors), color)
        groups = [errors[(counts == k) & np.isfinite(errors)] for k in range(3, 12)]
        _quartiles(right, np.arange(3, 12) / 3, groups, color)
    middle.set(xscale="log", xlim=(0.045, 1.2))
    describe(middle, "W against the predictions", "penalty λ", "1 − correlation, median and quartiles")
    describe(right, "the same, by tokens kept", "selected tokens per input")
    for ax in (middle, right):
        ax.set(yscale="log", ylim=(1e-4, 12))
    for y, target in ((6, "single"), (3.2, "direction"), (1.7, "both")):
        label(middle, 0.05, y, TARGETS[target], COLORS[target])
    return figure


def _tokens(attention: Float) -> Float:
    """Selected tokens per input, mean over the inputs: (λ, instances)."""
    return np.asarray((attention >= KEPT).sum(-1).mean(-1))


def _quartiles(ax: Axes, x: Any, groups: list[Float], color: str) -> None:
    """Median and quartiles of each group with at least three members."""
    usable = [(at, group[np.isfinite(group)]) for at, group in zip(x, groups, strict=True)]
    usable = [(at, group) for at, group in usable if len(group) >= 3]
    low, median, high = np.array([np.quantile(group, [0.25, 0.5, 0.75]) for _, group in usable]).T
    places = [at for at, _ in usable]
    ax.fill_between(places, low, high, color=color, alpha=0.2, lw=0)
    ax.plot(places, median, ".-", color=color)


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Tokens per input against an independent computation, attention against the closed form, the order."""
    rows = []
    for name, published, method in (
        ("trained", TRAINED, "by training"),
        ("projected", PROJECTED, "by projection"),
    ):
        counts = _tokens(arrays[name])
        for k, strength in enumerate(STRENGTHS):
            accuracy = digits(2) + sampled(counts[k], 100)
            quantity = f"tokens per input {method}, λ = {strength:g}"
            rows.append(Check(quantity, RUN, TWIN, published[k], counts[k].mean(), accuracy))
    away = np.abs(arrays["trained"] - arrays["projected"]).max((-2, -1))
    near = within(0.003, "a last step of length 0.001 moves an attention by at most about that much")
    rows.append(Check("median of max |s − s*|", DERIVED, "closed form", 0.0, np.median(away), near))
    return rows + [_order(arrays, strength) for strength in (0.2, 0.3, 0.5)]


def _order(arrays: Arrays, strength: float) -> Check:
    """Whether the medians are in the published order: 1 if C·W^mm + W^fin ≤ W^mm ≤ W^1token, else 0."""
    medians = [np.nanmedian(arrays[target][STRENGTHS.index(strength)]) for target in TARGETS]
    statement = f"order C·W^mm + W^fin, W^mm, W^1token, λ = {strength:g}"
    accuracy = within(0.0, "1 when the three medians are in the published order")
    return Check(statement, CONJECTURED, PAPER, 1.0, medians == sorted(medians), accuracy)


TWIN = "independent NumPy run"
PAPER = "Transformers as SVMs, quadratic head"
