"""Three prompts built by hand: the signals, with little or much noise, or almost without any.

"Benign Overfitting in Token Selection of Attention Mechanism", the example before the theorems.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import softmax

import attsvm as att
from attsvm_lab import datasets
from attsvm_lab.figures.accuracy import counted, digits
from attsvm_lab.figures.figure import PRINTED, Arrays, Check, scales
from attsvm_lab.figures.papers import BENIGN as PAPER

N, T, D, SIGNAL, WEAK, WRONG = 100, 8, 10_000, 20.0, 0.2, 0.2
GIVEN = {1.0: (1.0, 0.62), 0.06: (1.0, 1.0), 0.001: (0.8, 1.0)}
"""Training and test accuracy, by the share c of noise."""


@PAPER.figure(
    "hand-built-prompt",
    "Prompts by hand",
    shows=(
        "p = μ₊ + μ₋ + c Σ_i (noise of the token that input i should select): with little noise wrong "
        "labels are ignored, with much of it fresh inputs are lost, and between the two everything is "
        "right."
    ),
    sizes=scales(runs=(2, 4, 20)),
    seconds=6,
)
def experiment(runs: int) -> Arrays:
    """Accuracies (runs, c, 2), training and test."""
    return {"accuracy": np.array([_accuracies(seed) for seed in range(runs)])}


def _accuracies(seed: int) -> list[list[float]]:
    sizes: dict[str, Any] = {"weak": WEAK, "flipped": WRONG, "in_span": True}
    tokens, v = datasets.signal_and_noise(N, T, D, SIGNAL, seed, **sizes)
    fresh, _ = datasets.signal_and_noise(N, T, D, SIGNAL, seed, **sizes, fresh=1000)
    wrong, classes = datasets.flipped_examples(N, WRONG), np.arange(N) % 2
    correct_keys = tokens.keys[np.arange(N), np.where(wrong, 2, 0)].copy()
    # Subtract their signals: x₁ has that of the class, x₃ a weak one of the other class.
    correct_keys[np.arange(N), np.where(wrong, 1 - classes, classes)] -= SIGNAL * np.where(wrong, WEAK, 1)
    signals = SIGNAL * np.eye(tokens.d)[:2].sum(0)
    prompts = [signals + c * correct_keys.sum(0) for c in GIVEN]
    return [[_accuracy(inputs, p, v) for inputs in (tokens, fresh)] for p in prompts]


def _accuracy(tokens: att.Tokens, p: np.ndarray, v: np.ndarray) -> float:
    s = softmax(tokens.keys @ p, axis=-1)
    return float((tokens.labels * (s * (tokens.keys @ v)).sum(-1) > 0).mean())


@experiment.checked_by
def checks(arrays: Arrays) -> list[Check]:
    """Each accuracy beside the published one, which is from one draw."""
    rows = []
    for k, (c, published) in enumerate(GIVEN.items()):
        for kind, split, count in ((0, "training", N), (1, "test", 1000)):
            accuracies = arrays["accuracy"][:, k, kind]
            mean = float(accuracies.mean())
            precision = digits(2) + counted(mean, count * len(accuracies), published[kind], count)
            quantity, source = f"c = {c:g}: {split} accuracy", "Sakamoto and Sato 2025, code"
            rows.append(Check(quantity, PRINTED, source, published[kind], mean, precision))
    return rows
