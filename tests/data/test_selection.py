"""Scores, best and attended tokens."""

from contextlib import nullcontext

import numpy as np
import pytest

from attsvm import (
    Linear,
    Path,
    Tokens,
    attended_tokens,
    best_tokens,
    classify,
    correlation,
    datasets,
    gd,
    locally_optimal,
    max_margin,
    scores,
    soft_sparsity,
    train,
)
from attsvm.data.selection import TiedScores, as_attention, as_head, as_selected, equal_losing_scores

pytestmark = pytest.mark.quick

KEYS = np.arange(24.0).reshape(2, 3, 4)


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


@pytest.mark.parametrize(("of_copies", "best"), [((2.0, 1.0), [0, 1]), ((2.0, -1.0), [2])])
def test_tokens_of_one_key_score_as_attention_reads_them(of_copies, best):
    """The best loss of a program in closed form: attention on both copies, or on the third token."""
    keys = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]])
    gamma = np.array([[*of_copies, 0.9, 0.0]])
    tokens, v = Tokens(keys, values=gamma[..., None]), np.ones(1)
    path = train(tokens, Linear(v), optimizer=gd(5.0), loss=correlation, steps=2_000)
    assert path.loss[-1] == pytest.approx(-max(np.mean(of_copies), 0.9), rel=1e-2)
    with pytest.warns(TiedScores) if len(best) > 1 else nullcontext():
        chosen, kind = best_tokens(tokens, v), classify(path, v)
    assert np.flatnonzero(chosen[0]).tolist() == best
    assert locally_optimal(tokens, v, max_margin(tokens, chosen))
    assert np.array_equal(path.selected, chosen) and kind == "global"
    other = max_margin(tokens, ~chosen & (gamma >= 0.9) if len(best) > 1 else [[True, True, False, False]])
    assert not locally_optimal(tokens, v, other)


@pytest.mark.filterwarnings("ignore::attsvm.data.selection.TiedScores")
@pytest.mark.parametrize("runs", [None, 2])
def test_all_tokens_of_an_example_without_a_query_score_alike(runs):
    tokens, v = datasets.sphere(4, 5, 6, seed=0 if runs is None else range(runs))
    queries = tokens.queries.copy()
    queries[..., 2, :] = 0
    blind = Tokens(tokens.keys, queries, tokens.labels)
    best = best_tokens(blind, v)
    assert best[..., 2, :].all() and (best[..., [0, 1, 3], :].sum(-1) == 1).all()
    assert best_tokens(tokens, v)[..., 2, :].sum(-1).max() == 1
    solution = max_margin(blind, best)
    assert np.all(solution.certified) and np.all(locally_optimal(blind, v, solution))
    path = Path.of(blind, np.stack([0 * solution.W, solution.W], axis=-3))
    assert np.all(classify(path, v) == "global")


def test_a_selection_may_be_indices_or_booleans():
    tokens = Tokens(KEYS)
    np.testing.assert_array_equal(
        as_selected(tokens, [0, 2]), as_selected(tokens, np.eye(3, dtype=bool)[[0, 2]])
    )


@pytest.mark.parametrize(
    ("selected", "error", "message"),
    [
        (np.ones((4, 6), bool), ValueError, r"selected has shape \(4, 6\) but tokens has n=2, T=3"),
        ([0, 3], ValueError, "Pass indices from 0 to 2"),
        ([0], ValueError, "one token index per example"),
        ([0.0, 1.0], TypeError, "selected has dtype float64"),
        ([0, 2], ValueError, "token 2 of example 1, which is masked"),
        (np.zeros((2, 3), bool), ValueError, "selected picks no token in example 0"),
    ],
)
def test_bad_selections_are_named(selected, error, message):
    tokens = Tokens(KEYS, mask=[[1, 1, 1], [1, 1, 0]])
    with pytest.raises(error, match=message):
        as_selected(tokens, selected)


def test_a_head_must_be_as_wide_as_the_values():
    tokens = Tokens(KEYS, values=np.ones((2, 3, 2)))
    assert as_head(tokens, [1, 2]).shape == (2,)
    with pytest.raises(ValueError, match=r"shape \(4,\) but the values are 2 wide"):
        as_head(tokens, np.ones(4))
    with pytest.raises(ValueError, match="NaN"):
        as_head(tokens, [np.nan, 1])


def test_attention_rows_must_sum_to_one():
    assert as_attention([[0.5, 0.5]]).shape == (1, 2)
    with pytest.raises(ValueError, match="sum to 1"):
        as_attention([[0.5, 0.6]])


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("of_head", [1e-200, 1e200])
@pytest.mark.parametrize("of_values", [1e-30, 1e-200, 1e150])
def test_no_order_of_scores_depends_on_the_length_of_head_or_values(dtype, of_head, of_values):
    """At these lengths scores are 0 or infinite; float32 ends at 1e38, and keys of it stay within."""
    tokens, v = datasets.sphere(4, 5, 6, seed=0)
    size = of_values if dtype == np.float64 else 1e-30
    other = Tokens(tokens.keys * size, tokens.queries, tokens.labels, dtype=dtype)
    best = best_tokens(tokens, v)
    solution = max_margin(tokens, best)
    np.testing.assert_array_equal(best_tokens(other, of_head * v), best)
    assert locally_optimal(other, of_head * v, solution) and not locally_optimal(
        other, -of_head * v, solution
    )
    assert not equal_losing_scores(other, of_head * v)


def test_equal_losing_scores_are_seen_and_their_absence_too():
    assert equal_losing_scores(*datasets.orthogonal(4, 3, 20))
    assert equal_losing_scores(*datasets.several_inputs())
    assert not equal_losing_scores(*datasets.sphere(3, 4, 5))
    assert equal_losing_scores(*datasets.orthogonal(4, 3, 20, seed=range(3))).all()
