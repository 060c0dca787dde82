"""Shared instances of the programs' tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from lab.benchmarks.instances import contradiction, planted, unit

from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, Schatten, frobenius, l1, linf, nuclear, spectral

SMOOTH = [Schatten(4 / 3), Schatten(4)]
ALL_NORMS = [l1, linf, frobenius, nuclear, spectral, Entrywise(1.5), Entrywise(3), *SMOOTH]
ROTATION_INVARIANT = [frobenius, nuclear, spectral, *SMOOTH]
STRICTLY_CONVEX = [frobenius, Entrywise(1.5), Entrywise(3), *SMOOTH]


@dataclass(frozen=True)
class Instance:
    """The arguments of a program."""

    tokens: Tokens
    selected: np.ndarray
    required: float | np.ndarray = 1.0


def prompt() -> Instance:
    return Instance(*planted(6, 5, 7, e=1, seed=1))


def matrix() -> Instance:
    return Instance(*planted(5, 5, 6, seed=2))


def tall() -> Instance:
    return Instance(*planted(6, 4, 7, e=3, seed=3))


def wide() -> Instance:
    return Instance(*planted(6, 4, 3, e=7, seed=4))


def few_queries() -> Instance:
    """Fewer examples than the queries are wide: the solution has a null space on both sides."""
    return Instance(*planted(3, 3, 8, e=8, seed=5))


def crowded() -> Instance:
    """Far more constraints than entries of W."""
    return Instance(*planted(30, 8, 3, e=2, seed=6))


def relaxed() -> Instance:
    """The relaxed joint program: some examples ask only for the right order."""
    tokens, best = planted(6, 5, 6, seed=7)
    return Instance(tokens, best, np.array([1.0, 0.0, 2.5, 0.0, 0.3, 1.0]))


def tied() -> Instance:
    """Several selected tokens in some examples."""
    tokens, best = planted(5, 5, 8, seed=8)
    chosen = best[:, None] == np.arange(tokens.T)
    chosen[[0, 1, 1], (best[[0, 1, 1]] + [1, 1, 2]) % tokens.T] = True
    return Instance(tokens, chosen)


def ragged() -> Instance:
    """Sequences of lengths 1 to 6."""
    tokens, best = planted(6, 6, 6, seed=9)
    keys = [np.roll(x, -a, axis=0)[:k] for x, a, k in zip(tokens.keys, best, range(1, 7), strict=True)]
    return Instance(Tokens.from_sequences(keys, tokens.queries), np.zeros(6, int))


def everything() -> Instance:
    """Ties, zeros in required and masks at once."""
    tokens, best = planted(6, 6, 9, e=7, seed=10)
    chosen = best[:, None] == np.arange(tokens.T)
    chosen[0, (best[0] + 1) % 6] = True
    mask = chosen | (np.random.default_rng(0).random(chosen.shape) < 0.7)
    masked = Tokens(tokens.keys, tokens.queries, mask=mask)
    return Instance(masked, chosen, np.array([1.0, 0.0, 1.0, 2.0, 0.0, 0.5]))


VARIANTS = [prompt, matrix, tall, wide, few_queries, crowded, relaxed, tied, ragged, everything]


def opposite() -> Instance:
    """Two examples that want opposite orders of the same tokens."""
    return Instance(*contradiction(5, 4, 8, seed=11))


def opposite_prompt() -> Instance:
    return Instance(*contradiction(5, 4, 16, e=1, seed=12))


def overfull() -> Instance:
    """Random selections of too many tokens: many rows contradict each other together."""
    rng = np.random.default_rng(13)
    keys, queries = unit(rng.standard_normal((20, 5, 3))), unit(rng.standard_normal((20, 3)))
    return Instance(Tokens(keys, queries), rng.integers(5, size=20))


def broken_tie() -> Instance:
    """Tying tokens that span the space leaves W = 0, which has no margin."""
    rng = np.random.default_rng(14)
    chosen = np.arange(6) < 5
    return Instance(Tokens(rng.standard_normal((1, 6, 3))), chosen[None])


CONFLICTS = [opposite, opposite_prompt, overfull, broken_tie]


def name(build: Callable[[], Instance]) -> str:
    return build.__name__


@pytest.fixture(params=VARIANTS, ids=name)
def instance(request: pytest.FixtureRequest) -> Instance:
    """Each separable variant of the program."""
    return request.param()


@pytest.fixture(params=CONFLICTS, ids=name)
def conflict(request: pytest.FixtureRequest) -> Instance:
    """Each kind of selection that no W can make."""
    return request.param()


@pytest.fixture(params=ALL_NORMS, ids=str)
def norm(request: pytest.FixtureRequest):
    """Each supported norm."""
    return request.param
