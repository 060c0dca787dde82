"""Which selections can be made at all: verdicts against a linear program, and the theorems' thresholds."""

import math

import numpy as np
import pytest

from attsvm import datasets
from attsvm.data.selection import best_tokens
from attsvm.data.tokens import Tokens
from attsvm.program.max_margin import max_margin, separable
from tests.program.oracles import farkas_residual, feasible, rows_of

PROOF = 1e-9
"""Largest residual of a proof that no weight exists."""

SAMPLING = 0.15
"""Two fractions near 1/2 over 200 and 100 draws differ by less: 2.5 standard deviations."""

RUNS = 200


def draw(n: int, T: int, d: int, kind: str, runs: int = RUNS) -> tuple[Tokens, np.ndarray]:
    """Gaussian tokens and random selections: queries apart, from the sequence, or constant."""
    rng = np.random.default_rng([n, T, d])
    keys = rng.standard_normal((runs, n, T, d))
    selected = rng.integers(T, size=(runs, n))
    if kind == "prompt":
        return Tokens(keys), selected
    queries = keys[:, :, 0] if kind == "self" else rng.standard_normal((runs, n, d))
    return Tokens(keys, queries), selected


NEAR_THE_THRESHOLD = [
    (5, 6, 3, "cross"),
    (8, 4, 3, "cross"),
    (8, 4, 3, "self"),
    (3, 5, 4, "prompt"),
    (6, 3, 5, "prompt"),
]


@pytest.mark.parametrize("size", NEAR_THE_THRESHOLD, ids=str)
def test_the_verdict_is_that_of_a_linear_program(size):
    tokens, selected = draw(*size)
    lp = [feasible(*rows_of(tokens.run(k), selected[k])) for k in range(RUNS)]
    assert 0.1 < np.mean(lp) < 0.9, "these sizes are not near the threshold"
    assert np.array_equal(separable(tokens, selected), lp)


@pytest.mark.parametrize("size", NEAR_THE_THRESHOLD, ids=str)
def test_one_by_one_the_verdict_is_that_of_the_batch(size):
    tokens, selected = draw(*size, runs=40)
    alone = [separable(tokens.run(k), selected[k]) for k in range(40)]
    assert np.array_equal(separable(tokens, selected), alone)


@pytest.mark.parametrize("size", NEAR_THE_THRESHOLD, ids=str)
def test_every_verdict_of_a_batch_comes_with_its_proof(size):
    tokens, selected = draw(*size)
    solution = max_margin(tokens, selected)
    assert solution.certified[solution.separable].all()
    for k in np.flatnonzero(~solution.separable):
        assert farkas_residual(rows_of(tokens.run(k), selected[k]), solution.multipliers[k]) <= PROOF


def test_every_norm_gives_the_same_verdict(norm):
    tokens, selected = draw(5, 6, 3, "cross", runs=12)
    solution = max_margin(tokens, selected, norm)
    assert np.array_equal(solution.separable, separable(tokens, selected))
    assert np.array_equal(solution.certified, solution.separable)


@pytest.mark.parametrize("kind", ["cross", "self"])
@pytest.mark.parametrize("size", [(5, 6, 5), (3, 6, 5), (8, 4, 8), (10, 11, 10)], ids=str)
def test_any_selection_can_be_made_once_d_reaches_T_minus_1_and_n(size, kind):
    assert separable(*draw(*size, kind, runs=50)).all()


@pytest.mark.parametrize("size, fraction", [((5, 6, 3), 0.58), ((8, 4, 3), 0.54), ((10, 11, 6), 0.96)])
def test_below_that_width_a_known_fraction_of_selections_can_be_made(size, fraction):
    assert separable(*draw(*size, "cross")).mean() == pytest.approx(fraction, abs=SAMPLING)


@pytest.mark.parametrize(
    "n, d, fraction", [(5, 2, 0.31), (5, 3, 0.99), (10, 4, 0.89), (15, 4, 0.20), (15, 5, 1.0)]
)
def test_a_known_fraction_of_best_selections_can_be_made(n, d, fraction):
    tokens, v = datasets.sphere(n=n, T=5, d=d, seed=range(RUNS))
    assert separable(tokens, best_tokens(tokens, v)).mean() == pytest.approx(fraction, abs=SAMPLING)


@pytest.mark.parametrize("n, T", [(2, 3), (3, 4), (5, 5)])
def test_a_prompt_makes_any_selection_once_d_reaches_the_number_of_rows(n, T):
    assert separable(*draw(n, T, n * (T - 1), "prompt", runs=50)).all()


def test_a_prompt_half_as_wide_fails_at_times():
    assert not separable(*draw(2, 3, 2, "prompt", runs=50)).all()


@pytest.mark.parametrize(
    ("model", "n", "d"), [("prompt_sphere", 8, 4), ("prompt_sphere", 6, 3), ("sphere", 8, 2)]
)
def test_two_tokens_are_separable_as_often_as_cover_counts(model, n, d):
    """Signs of n points in general position that a plane through zero of N dimensions can realise."""
    runs, N = 2_000, d if model == "prompt_sphere" else d * d
    tokens, v = getattr(datasets, model)(n, 2, d, seed=range(runs))
    share = np.mean(separable(tokens, best_tokens(tokens, v)))
    expected = [sum(math.comb(n - 1, k) for k in range(m)) / 2 ** (n - 1) for m in (N, N - 1)]
    error = 5 * np.sqrt(0.25 / runs)
    assert abs(share - expected[0]) < error
    assert abs(share - expected[1]) > error  # one dimension fewer
