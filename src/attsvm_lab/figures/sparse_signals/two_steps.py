"""Sparse signals: the prompt after two gradient steps, and a classifier on what that prompt attends to."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure as Canvas
from scipy.special import softmax

import attsvm as att
from attsvm.numbers import Float
from attsvm.plotting.layout import band, describe, grid, label_end
from attsvm.plotting.style import BLUE, GREY, ORANGE, label
from attsvm_lab import datasets, programs
from attsvm_lab.figures.accuracy import within
from attsvm_lab.figures.figure import STATED, Arrays, Check, scales
from attsvm_lab.figures.papers import SPARSE_SIGNALS

TOKENS, STRENGTH, RIDGE, FRESH = 10, 5.0, 1e-5, 1_000
RATIOS = (2, 4, 8, 16, 32)
PAPER = "Barnfield et al. 2026"


@SPARSE_SIGNALS.figure(
    "sparse-signals",
    "Two gradient steps find the signal",
    shows=(
        "L = 10, one row, strength 5, as in the paper, with d = 60 instead of 1,000. Left: 1 − cosine of "
        "prompt and signal after one step of the head and one of the prompt, against α = n/d, with C/α. "
        "Right: the error on fresh inputs of a ridge classifier on what that prompt attends to, and on "
        "the mean token."
    ),
    notes="The ridge classifier is least squares with the paper's λ = 1e-5; its loss and d are not ours.",
    sizes=scales(runs=(3, 8, 8), d=(40, 60, 200)),
    seconds=12,
)
def experiment(runs: int, d: int) -> Arrays:
    """1 − cosine, and errors of attention and pooling on fresh inputs, (runs, k) at the ratios (k,)."""
    measurements = np.array([[_measured(seed, ratio, d) for ratio in RATIOS] for seed in range(runs)])
    return {
        "ratios": np.array(RATIOS),
        "away": measurements[..., 0],
        "attention": measurements[..., 1],
        "pooled": measurements[..., 2],
    }


def _measured(seed: int, ratio: int, d: int) -> tuple[float, float, float]:
    size = (ratio * d, TOKENS, d, STRENGTH)
    first, xi = datasets.sparse_signals(*size, seed=2 * seed)
    q = two_steps(first)
    # The second training set and the fresh inputs get the signal of the first.
    sets = [
        _turned(*datasets.sparse_signals(*size, seed=2 * seed + 1, fresh=fresh), xi) for fresh in (0, FRESH)
    ]
    attended = [(_attended(keys, q * STRENGTH), labels) for keys, labels in sets]
    pooled = [(keys.mean(1), labels) for keys, labels in sets]
    return 1 - float(xi @ q), _error(*attended), _error(*pooled)


def two_steps(tokens: att.Tokens) -> Float:
    """The direction of q = Σ_i h_i X_iᵀ (I − 11ᵀ/L) X_i w, the second step of joint descent.

    w = Σ_i y_i X_iᵀ1/(2nL) is the first step; h_i = y_i σ(−y_i f_i) is minus the slope of the loss there.
    """
    keys, y = tokens.keys, tokens.labels
    pooled = keys.mean(1)
    w = y @ pooled / (2 * len(y))
    h = y / (1 + np.exp(y * (pooled @ w)))
    score = keys @ w
    q = np.einsum("n,nt,ntd->d", h, score - score.mean(1, keepdims=True), keys)
    return np.asarray(q / np.linalg.norm(q))


def _turned(tokens: att.Tokens, signal: Float, target: Float) -> tuple[Float, Float]:
    """The keys, reflected so that their signal becomes the target; the law of the noise does not change."""
    axis = signal - target
    axis = axis / np.linalg.norm(axis)
    keys = tokens.keys - 2 * (tokens.keys @ axis)[..., None] * axis
    return keys, tokens.labels


def _attended(keys: Float, q: Float) -> Float:
    return np.asarray(np.einsum("nt,ntd->nd", softmax(keys @ q, axis=-1), keys))


def _error(train: tuple[Float, Float], test: tuple[Float, Float]) -> float:
    """The error on fresh inputs of least squares with a constant and a small ridge."""
    inputs = [np.append(x, np.ones((len(x), 1)), axis=1) for x, _ in (train, test)]
    gram = inputs[0].T @ inputs[0] + RIDGE * len(inputs[0]) * np.eye(inputs[0].shape[1])
    fit = np.linalg.solve(gram, inputs[0].T @ train[1])
    return float((np.sign(inputs[1] @ fit) != test[1]).mean())


@experiment.draws
def draw(arrays: Arrays) -> Canvas:
    """The cosine and the errors, against α."""
    figure, ((cosine_ax, error_ax),) = grid(1, 2, 3.0)
    ratios = arrays["ratios"]
    middle = band(cosine_ax, ratios, arrays["away"], BLUE)
    cosine_ax.plot(ratios, middle[-1] * ratios[-1] / ratios / 2, ":", color=GREY)
    label(cosine_ax, ratios[1], middle[-1] * ratios[-1] / ratios[1] / 4, "∝ 1/α", GREY)
    for name, color in (("attention", BLUE), ("pooled", ORANGE)):
        end = band(error_ax, ratios, arrays[name], color)[-1]
        label_end(error_ax, ratios[-1], end, name, color)
    cosine_ax.set_yscale("log")
    for ax in (cosine_ax, error_ax):
        ax.set_xscale("log", base=2)
    error_ax.set_ylim(bottom=0)
    describe(cosine_ax, "the prompt after two steps", "α = n/d", "$1-\\cos(q,\\,\\xi)$")
    describe(error_ax, "error on fresh inputs", "α = n/d", "")
    return figure


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """The rate of the cosine, and the share of runs in which attention has the smaller error."""
    rate = programs.fit_rate(arrays["ratios"], arrays["away"].mean(0), last=1000).exponent
    lead = float((arrays["attention"][:, -1] < arrays["pooled"][:, -1]).mean())
    near = within(0.35, "C/α for large d and α: from α = 2 on it falls a little faster")
    statement = "share of runs in which attention errs less than pooling at α = 32"
    return [
        Check("exponent of 1 − cosine in α", STATED, f"{PAPER}, two gradient steps", -1.0, rate, near),
        Check(statement, STATED, f"{PAPER}, comparison", 1.0, lead, within(0, "all of them")),
    ]
