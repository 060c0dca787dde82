"""Hypotheses of the law of halves that no statement may leave out: without each, a run that refutes it."""

import numpy as np
import pytest

import attsvm as att
from attsvm.training.weights import Diagonal

START = 0.3
"""Length of the used column of K and of Q."""
LEAK = 1e-3
"""Length of their second column at the start."""
WAITED = 10_000
"""Steps of 0.003: 30 times the length of the start."""


def outer_rows(vectors):
    return np.einsum("ia,ib->iab", vectors, vectors)


def descent(rows, K, Q, lr, steps):
    """Factors at all steps of normalised gradient descent in the joint Frobenius norm, and multipliers."""
    stacks, multipliers = [], []
    for _ in range(steps + 1):
        margins = np.einsum("iab,ab->i", rows, K @ Q.T)
        M = np.einsum("i,iab->ab", np.exp(margins.min() - margins), rows)
        of_K, of_Q = M @ Q, M.T @ K
        length, slope = np.hypot(*map(np.linalg.norm, (K, Q))), np.hypot(*map(np.linalg.norm, (of_K, of_Q)))
        stacks.append(np.concatenate([K, Q]))
        multipliers.append(M * length / slope)
        K, Q = K + lr * of_K / slope, Q + lr * of_Q / slope
    return np.array(stacks), np.array(multipliers)


# ---------------------------------------------------------------------- steps of three factors


def share_of_three_diagonals(decay, steps):
    """Share of the best l2 margin of k₁ ⊙ k₂ ⊙ k₃ under steps 0.5 (t + 1)^−decay in l6, by the law r = 2."""
    rows = np.array([[1.0, 0.02, 0.6], [0.02, 1.0, 0.1]])
    mixed = np.linspace(0, 1, 10_001)
    best = np.linalg.norm(np.outer(mixed, rows[0]) + np.outer(1 - mixed, rows[1]), axis=1).min()
    factors = np.ones((3, 3))
    for t in range(steps):
        margins = rows @ factors.prod(0)
        gradient = np.exp(margins.min() - margins) @ rows * factors.prod(0) / factors
        steepest = np.abs(gradient) ** 0.2
        factors += 0.5 * (t + 1) ** -decay * steepest / np.linalg.norm(steepest, 6, axis=1, keepdims=True)
    w = factors.prod(0)
    return (rows @ w).min() / np.linalg.norm(w) / best


def test_steps_of_three_factors_fall_behind_where_their_squares_alone_are_summable():
    early, late = (share_of_three_diagonals(0.55, steps) for steps in (1_000, 10_000))
    assert late < early - 0.003  # Σ η² is finite, and η ρ² grows
    early, late = (share_of_three_diagonals(0.7, steps) for steps in (1_000, 10_000))
    assert 0.999 < early < late  # η ρ² falls, and Σ η² ρ is finite


def test_no_theorem_is_claimed_for_the_steps_of_three_diagonals():
    falling = att.steepest(att.Entrywise(6), lambda k: 0.5 * (k + 1.0) ** -0.55)
    assert att.limit_norm(Diagonal(3), falling).standing == "theorem for flows"
    falling = att.steepest(att.Entrywise(4), lambda k: 0.5 * (k + 1.0) ** -0.55)
    separate = att.Diagonal(2, separate=True)
    assert att.limit_norm(separate, falling).standing == "theorem"


# ---------------------------------------------------------------------- far stops are left fast


@pytest.mark.parametrize(("column", "along_the_pull"), [(1, True), (2, False)])
def test_a_waiting_run_has_the_stated_share_if_its_spare_column_is_along_the_pull(column, along_the_pull):
    signs = [(a, b) for a in (1, -1) for b in (1, -1)]
    rows = outer_rows(np.array([[1.0, a * np.sqrt(3), b * np.sqrt(0.5)] for a, b in signs]))  # σ/s = 3
    K = np.zeros((3, 2))
    K[0, 0], K[column, 1] = START, LEAK
    path, _ = descent(rows, K, K, 0.003, WAITED)
    length = np.linalg.norm(path, axis=(1, 2))
    left = np.linalg.norm(path[:, :, 1], axis=1) > 0.05 * length
    end = int(left.argmax()) if left.any() else WAITED
    W = path[end, :3] @ path[end, 3:].T
    share = np.einsum("iab,ab->i", rows, W).min() / np.linalg.norm(W, "nuc") / 3  # best: e₂e₂ᵀ, margin 3
    bound = 1 / (1 + np.log(START / LEAK) / np.log(length[end] / length[0]))
    assert bool(left.any()) is along_the_pull
    assert bool(share > bound) is along_the_pull


# ---------------------------------------------------------------------- narrow factors


@pytest.mark.parametrize(("width", "least", "most"), [(1, 0.948, 0.9488), (2, 0.998, 1.0)])
def test_every_limit_of_factors_narrower_than_the_optimum_is_a_stop(width, least, most):
    φ = np.radians(60)
    x = np.array([[np.cos(φ), np.sin(φ)], [np.cos(φ), -np.sin(φ)]])
    tokens = att.Tokens(np.stack([x, np.zeros((2, 2))], axis=1), x, labels=np.ones(2))
    rule, v = att.steepest(att.Schatten(4), 0.003), np.array([1.0, 0.0])
    for seed in range(3):
        rng = np.random.default_rng(seed)
        start = {name: START * rng.standard_normal((2, width)) for name in "KQ"}
        weight = att.KeyQuery(rank=width)
        run = att.train(tokens, att.Linear(v), weight=weight, optimizer=rule, steps=8_000, init=start)
        point = att.kkt_point(run, v, steps=att.Schatten(4))
        assert point.alignment > 0.999
        assert least < point.share < most  # rank one: 3/√10 of the Frobenius margin of diag(1, 3)


# ---------------------------------------------------------------------- multipliers beside a stop


@pytest.mark.parametrize(("symmetric", "near"), [(True, True), (False, False)])
def test_beside_a_stop_the_multipliers_of_a_run_need_not_be_near_those_of_the_stop(symmetric, near):
    σ = 3.0
    rows = outer_rows(np.array([[1, np.sqrt(σ)], [1, -np.sqrt(σ)]]))
    if not symmetric:
        rows = np.array([np.outer([1, -0.5], [1, -σ / 2]), np.outer([1, 2], [1, 2 * σ])])
    path, M = descent(rows, np.diag([5.0, 1e-4]), np.diag([5.0, 1e-4]), 0.05, 800)
    used = path[:, [0, 2], 0] / np.linalg.norm(path, axis=(1, 2))[:, None]
    assert np.abs(used - np.sqrt(0.5)).max() < 0.01  # θ/ρ stays within 0.01 of the stop
    distances = np.linalg.norm(M - np.diag([1, σ]), 2, axis=(1, 2))
    assert bool(np.median(distances) < 0.01) is near
    assert bool(distances.max() < 1) is near
