"""Sequences whose class one token tells, or all of them a little; an objective on some, and its probes."""

from dataclasses import replace

import numpy as np

from attsvm.probe import TokenStore
from attsvm.probe.data.backends import Host
from attsvm.probe.fitting.objective import Objective, Probes
from attsvm.probe.fitting.tolerances import TOLERANCES


def needle(n, seed, T=16, d=6, mark=4):
    """One of T tokens carries a mark and, in another direction, the class."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, T, d)), np.arange(n) % 2
    place = np.arange(n), rng.integers(0, T, n)
    X[(*place, 0)] += mark
    X[(*place, 1)] += 3 * (2 * y - 1)
    return X, y


def everywhere(n, seed, T=6, d=20):
    """A faint class in the mean of all tokens, and little else to be learned."""
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 2
    return rng.standard_normal((n, T, d)) + 0.15 * (2 * y - 1)[:, None, None] * (np.arange(d) < 3), y


def problem(dtype, k=1, n=30, d=5):
    """An objective of two folds on sequences that do not lie one after the other, four probes and points."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 9, 2 * n)
    store = TokenStore.from_flat(
        rng.standard_normal((lengths.sum(), d)).astype(dtype), np.cumsum([0, *lengths])
    )[rng.permutation(2 * n)[:n]]
    targets = np.eye(k)[rng.integers(0, k, n)].T[None] if k > 1 else rng.random((2, 1, n))
    parts = np.where(rng.random((2, n)) < 0.6, 1, -1)
    goal = Objective.of(store, targets, rng.random(n), parts)
    probes = Probes(np.arange(4) % len(targets), np.array([0, 1, 2, 1]), rng.random(4), rng.random(4))
    return goal, Host(store.rows), rng.standard_normal((4, goal.size)), probes


def ring(n, seed):
    """The marked token lies near the origin in one class, and on a ring around it in the other."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n, 5, 3)), np.arange(n) % 2
    angle = rng.uniform(0, 2 * np.pi, n)
    X[:, 0, :2] = np.where(y, 3.0, 0.3)[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    X[:, 0, 2] = 4
    return X, y


def with_tolerances(monkeypatch, module, **changes):
    """Other numbers in one module of attsvm.probe.fitting."""
    monkeypatch.setattr(f"attsvm.probe.fitting.{module}.TOLERANCES", replace(TOLERANCES, **changes))
