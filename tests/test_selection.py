"""Scores, best and attended tokens."""

import numpy as np
import pytest

from attsvm import TiedScores, Tokens, attended_tokens, best_tokens, datasets, scores, soft_sparsity

pytestmark = pytest.mark.quick


def test_a_score_is_label_times_head_times_value():
    tokens, v = datasets.sphere(3, 4, 5, seed=0)
    expected = [[tokens.labels[i] * (tokens.values[i, t] @ v) for t in range(4)] for i in range(3)]
    np.testing.assert_allclose(scores(tokens, v), expected, rtol=1e-14)


def test_scores_are_taken_from_the_values_not_the_keys():
    tokens = Tokens(np.zeros((1, 2, 3)), values=np.array([[[1.0], [2.0]]]))
    assert scores(tokens, [3.0]).tolist() == [[3.0, 6.0]]


def test_masked_tokens_cannot_be_best():
    tokens = Tokens([[[1.0], [5.0]]], mask=[[1, 0]])
    assert scores(tokens, [1.0]).tolist() == [[1.0, -np.inf]]
    assert best_tokens(tokens, [1.0]).tolist() == [[True, False]]


def test_runs_are_scored_as_one_by_one():
    tokens, v = datasets.sphere(3, 4, 5, seed=range(3))
    for k in range(3):
        np.testing.assert_array_equal(best_tokens(tokens, v)[k], best_tokens(tokens.run(k), v[k]))


def test_tied_best_tokens_are_all_selected_and_reported():
    tokens = Tokens([[[1.0], [0.0], [1.0]], [[0.0], [1.0], [0.5]]])
    with pytest.warns(TiedScores, match="1 of 2 examples .* example 0, tokens 0, 2"):
        best = best_tokens(tokens, [1.0])
    assert best.tolist() == [[True, False, True], [False, True, False]]


def test_unequal_scores_raise_no_warning(recwarn):
    best_tokens(Tokens([[[1.0], [1.0 - 1e-9]]]), [1.0])
    assert not recwarn.list


def test_attended_tokens_are_the_largest_or_all_above_a_threshold():
    attention = [[0.6, 0.39, 0.01], [0.0, 0.0, 1.0]]
    assert attended_tokens(attention).tolist() == [[True, False, False], [False, False, True]]
    assert attended_tokens(attention, above=0.1).tolist() == [[True, True, False], [False, False, True]]


@pytest.mark.parametrize("above", [0, -1, 1.5, 0.9])
def test_a_threshold_that_selects_nothing_is_refused(above):
    with pytest.raises(ValueError, match=r"above is|no attention"):
        attended_tokens([[0.5, 0.5]], above=above)


def test_soft_sparsity_runs_from_one_to_the_number_of_tokens():
    assert soft_sparsity([[1.0, 0, 0, 0], [0.25] * 4, [0.5, 0.5, 0, 0]]).tolist() == [1, 4, 2]
