"""The finite part reproduces attention ratios with the smallest weight."""

import mpmath as mp
import numpy as np
import pytest

from attsvm import Tokens, datasets
from attsvm.program.constraints import Constraints
from attsvm.program.finite_part import finite_part
from tests.program.tied import softmax, tied_problem


@pytest.fixture
def problem():
    return tied_problem()


def test_the_finite_part_reproduces_the_attention_among_selected_tokens(problem):
    tokens, selected, attention = problem
    W = finite_part(tokens, attention, selected)
    logits = np.einsum("ntd,de,ne->nt", tokens.keys, W, tokens.queries)
    np.testing.assert_allclose(softmax(np.where(selected, logits, -np.inf)), attention, atol=1e-10)


def test_the_finite_part_lies_in_the_span_of_the_ties(problem):
    tokens, selected, attention = problem
    rows = Constraints.of(tokens, selected)
    i, t = np.nonzero(rows.tied)
    span = np.einsum("kd,ke->kde", rows.differences(i, t), rows.queries[i]).reshape(len(i), -1)
    W = finite_part(tokens, attention, selected).ravel()
    coefficients = np.linalg.lstsq(span.T, W, rcond=None)[0]
    np.testing.assert_allclose(span.T @ coefficients, W, atol=1e-10)


def test_one_selected_token_has_no_finite_part(problem):
    tokens, _, attention = problem
    assert (finite_part(tokens, attention, [1, 1, 1]) == 0).all()


def test_contradicting_ratios_are_refused():
    keys = np.array([[[1.0], [0.0]], [[1.0], [0.0]]])
    with pytest.raises(ValueError, match="contradict each other"):
        finite_part(Tokens(keys), [[0.9, 0.1], [0.1, 0.9]], np.ones((2, 2), bool))


@pytest.mark.parametrize("apart", [1e-3, 1e-9, 1e-12])
def test_a_contradiction_shows_beside_tokens_that_are_near_each_other(apart):
    near = [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0 + apart]]  # their ratio needs a large W
    keys = np.array([near, [[1, 0, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 0]]])
    attention, both = np.array([[0.75, 0.25], [0.9, 0.1], [0.1, 0.9]]), np.ones((3, 2), bool)
    with pytest.raises(ValueError, match=r"contradict each other, or nearly, .* example [12]"):
        finite_part(Tokens(keys), attention, both)
    W = finite_part(Tokens(keys[:2]), attention[:2], both[:2])[:, 0]
    found = (keys[:2, 0] - keys[:2, 1]) @ W
    np.testing.assert_allclose(found, np.log([3.0, 9.0]), rtol=1e-9)


def test_ratios_of_nearly_parallel_rows_contradict_each_other_only_where_they_do():
    random = np.random.default_rng(4)
    rows = random.standard_normal(8) + 3e-7 * random.standard_normal((6, 8))
    attention = random.uniform(0.1, 0.9, (6, 1)) * [1, -1] + [0, 1]
    tokens, both = Tokens(np.stack([rows, 0 * rows], 1)), np.ones((6, 2), bool)
    W = finite_part(tokens, attention, both)[:, 0]
    with mp.workdps(40):  # the smallest solution, Aᵀ(A Aᵀ)⁻¹ b
        A, b = (
            mp.matrix(rows.tolist()),
            mp.matrix([mp.log(mp.mpf(s) / mp.mpf(t)) for s, t in attention.tolist()]),
        )
        exact = np.array([float(x) for x in A.T * mp.lu_solve(A * A.T, b)])
    assert np.linalg.norm(W - exact) < 1e-6 * np.linalg.norm(exact)  # cond 1e7 times rounding: 1e-8
    with pytest.raises(ValueError, match="contradict each other"):
        finite_part(Tokens(np.stack([np.tile(rows[:1], (6, 1)), 0 * rows], 1)), attention, both)


def test_a_selected_token_needs_attention():
    with pytest.raises(ValueError, match="attention 0"):
        finite_part(Tokens([[[1.0], [0.0]]]), [[1.0, 0.0]], np.ones((1, 2), bool))


def test_runs_equal_one_by_one():
    tokens, _ = datasets.sphere(3, 5, 8, seed=range(2))
    attention = np.full((2, 3, 5), 0.1) + np.array([0.5, 0, 0, 0, 0])
    W = finite_part(tokens, attention, np.ones((3, 5), bool))
    np.testing.assert_allclose(W[1], finite_part(tokens.run(1), attention[1], np.ones((3, 5), bool)))


def test_attention_below_the_smallest_normal_number_still_has_a_logarithm():
    attention = np.array([[1.0, 1e-320, 0.0]])
    tokens = Tokens([[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]])
    W = finite_part(tokens, attention, [[True, True, False]])
    assert W[0, 0] - W[1, 0] == pytest.approx(-np.log(1e-320), rel=1e-12)


@pytest.mark.parametrize("size", [1e-200, 1e-9, 1e200])
def test_tokens_of_any_size_and_distance_are_divided(size):
    tokens = Tokens(size * np.array([[[1.0, 0.0], [1.0, 1e-6], [0.0, 0.0]]]))
    W = finite_part(tokens, [[0.75, 0.25, 0.0]], [[True, True, False]])
    assert (tokens.keys[0, 0] - tokens.keys[0, 1]) @ W[:, 0] == pytest.approx(np.log(3), rel=1e-9)


def test_identical_tokens_cannot_be_divided():
    tokens = Tokens([[[1.0, 2.0], [1.0, 2.0]]])
    with pytest.raises(ValueError, match="token 1 in example 0"):
        finite_part(tokens, [[0.75, 0.25]], [[True, True]])
    assert not finite_part(tokens, [[0.5, 0.5]], [[True, True]]).any()
