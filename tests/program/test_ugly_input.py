"""Ugly input: an answer with its certificate, a proof, or an error in words; never a silent NaN."""

import numpy as np
import pytest
from lab.benchmarks.instances import planted
from threadpoolctl import threadpool_info

from attsvm.data.selection import as_head, as_selected
from attsvm.data.tokens import Tokens
from attsvm.norms import Entrywise, frobenius, nuclear
from attsvm.program.max_margin import max_margin, separable, separate
from attsvm.program.solution import NotSeparable
from tests.program import conftest

SINGLE = 1e-5
"""Relative rounding of float32 input, enlarged by the program's conditioning."""

NEAR = 1e-5
"""Largest gap where two rows are opposite up to 1e-8, so that half the digits cancel."""

COARSE = 1e-4
"""The same in norms that are not Euclidean, and so have no extended precision."""


def certified(tokens, selected, norm, **options):
    """The solution, after checking that it is finite and certified."""
    solution = max_margin(tokens, selected, norm, **options)
    assert np.isfinite(solution.W).all() and np.isfinite(solution.multipliers).all()
    assert solution.certified, solution.certificate
    return solution


# ---------------------------------------------------------------------- smallest sizes


def test_one_example_with_two_tokens(norm):
    certified(Tokens([[[1.0, 2.0], [0.0, -1.0]]], [[1.0, -3.0]]), [0], norm)


def test_one_number_per_key_and_query(norm):
    solution = certified(Tokens([[[3.0], [1.0]]], [[-0.5]]), [0], norm)
    assert solution.W[0, 0] == pytest.approx(-1, rel=1e-8)


@pytest.mark.parametrize("d, e", [(1, 1), (1, 4), (4, 1)])
def test_weights_with_one_row_or_one_column(norm, d, e):
    certified(*planted(3, 4, d, e=e, seed=1), norm)


def test_examples_with_one_token_ask_for_nothing(norm):
    solution = certified(Tokens(np.ones((3, 1, 2)), np.ones((3, 2))), [0, 0, 0], norm)
    assert not solution.W.any()


def test_one_visible_token_asks_for_nothing(norm):
    tokens = Tokens(np.eye(3)[None], [[1.0, 1.0]], mask=[[True, False, False]])
    assert not certified(tokens, [0], norm).W.any()


def test_a_required_margin_of_zero_everywhere_is_met_by_zero(norm):
    instance = conftest.matrix()
    assert not certified(instance.tokens, instance.selected, norm, required=0.0).W.any()


def test_all_tokens_selected_is_met_by_zero(norm):
    instance = conftest.matrix()
    assert not certified(instance.tokens, instance.tokens.mask, norm).W.any()


# ---------------------------------------------------------------------- repeated and zero tokens


def test_a_token_equal_to_the_selected_one_is_named(norm):
    tokens, selected = planted(5, 4, 6, seed=3)
    keys = tokens.keys.copy()
    other = (selected[3] + 1) % 4
    keys[3, other] = keys[3, selected[3]]
    with pytest.raises(NotSeparable, match=rf"token {selected[3]} .*token {other} .*example 3") as caught:
        max_margin(Tokens(keys, tokens.queries), selected, norm)
    assert caught.value.conflict == [(3, other)]


def test_a_token_equal_to_the_selected_one_may_be_tied_to_it(norm):
    tokens, selected = planted(5, 4, 6, seed=3)
    keys, chosen = tokens.keys.copy(), selected[:, None] == np.arange(4)
    other = (selected[3] + 1) % 4
    keys[3, other], chosen[3, other] = keys[3, selected[3]], True
    certified(Tokens(keys, tokens.queries), chosen, norm)


def test_a_token_equal_to_the_selected_one_matters_not_where_no_margin_is_required(norm):
    tokens, selected = planted(5, 4, 6, seed=3)
    keys, required = tokens.keys.copy(), np.array([1.0, 1, 1, 0, 1])
    keys[3, (selected[3] + 1) % 4] = keys[3, selected[3]]
    certified(Tokens(keys, tokens.queries), selected, norm, required=required)


def test_zero_keys_cannot_be_told_apart(norm):
    with pytest.raises(NotSeparable):
        max_margin(Tokens(np.zeros((2, 3, 4)), np.ones((2, 2))), [0, 1], norm)


def test_a_zero_query_cannot_tell_tokens_apart(norm):
    tokens, selected = planted(4, 3, 5, seed=4)
    queries = tokens.queries.copy()
    queries[2] = 0
    with pytest.raises(NotSeparable, match="example 2") as caught:
        max_margin(Tokens(tokens.keys, queries), selected, norm)
    assert {i for i, _ in caught.value.conflict} == {2}


def test_a_zero_query_matters_not_where_no_margin_is_required(norm):
    tokens, selected = planted(4, 3, 5, seed=4)
    queries = tokens.queries.copy()
    queries[2] = 0
    certified(Tokens(tokens.keys, queries), selected, norm, required=[1.0, 1, 0, 1])


def test_three_copies_of_every_example_and_every_losing_token(norm):
    tokens, selected = planted(4, 3, 4, seed=5)
    keys = np.concatenate([tokens.keys, np.delete(tokens.keys[:1], selected[0], 1).repeat(4, 0)], axis=1)
    keys[1:, 3:] = tokens.keys[np.arange(1, 4), (selected[1:] + 1) % 3][:, None]
    certified(Tokens(np.tile(keys, (3, 1, 1)), np.tile(tokens.queries, (3, 1))), np.tile(selected, 3), norm)


def test_dependent_queries_and_keys_of_low_rank(norm):
    rng = np.random.default_rng(6)
    keys = rng.standard_normal((5, 4, 2)) @ rng.standard_normal((2, 6))
    queries = rng.standard_normal((5, 1)) @ rng.standard_normal((1, 4))
    selected = np.argmax(keys[..., 0] * queries[:, :1], axis=1)
    certified(Tokens(keys, queries), selected, norm)


# ---------------------------------------------------------------------- scales


@pytest.mark.parametrize("key, query", [(1e150, 1e150), (1e-150, 1e-150), (1e150, 1e-150), (1e-150, 1.0)])
def test_tokens_of_extreme_size(norm, key, query):
    tokens, selected = planted(4, 4, 5, e=3, seed=7)
    usual = max_margin(tokens, selected, norm)
    solution = certified(Tokens(key * tokens.keys, query * tokens.queries), selected, norm)
    assert solution.margin == pytest.approx(usual.margin * key * query, rel=1e-7)


def test_required_margins_of_extreme_size(norm):
    tokens, selected = planted(4, 4, 5, e=3, seed=7)
    usual = max_margin(tokens, selected, norm)
    for size in (1e-100, 1e100):
        solution = certified(tokens, selected, norm, required=size)
        assert norm.value(solution.W) == pytest.approx(size * norm.value(usual.W), rel=1e-7)


def test_required_margins_of_very_different_size(norm):
    tokens, selected = planted(4, 4, 6, e=4, seed=7)
    certified(tokens, selected, norm, required=[1e-6, 1.0, 1e3, 0.0])


def test_examples_of_very_different_size(norm):
    tokens, selected = planted(4, 4, 6, e=4, seed=7)
    queries = tokens.queries * np.array([1e-3, 1.0, 1e3, 1.0])[:, None]
    certified(Tokens(tokens.keys, queries), selected, norm)


@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-6])
def test_near_ties_are_separated_and_certified(norm, size):
    keys = [[[1.0, 0.0], [0.0, 0.0]], [[-1.0, size], [0.0, 0.0]]]
    solution = certified(Tokens(keys), [0, 0], norm)
    assert solution.W[:, 0] == pytest.approx([1, 2 / size], rel=1e-6)


@pytest.mark.filterwarnings("ignore::attsvm.program.solution.NotCertified")
def test_a_near_tie_of_1e_minus_8_is_solved_and_states_its_gap(norm):
    keys = [[[1.0, 0.0], [0.0, 0.0]], [[-1.0, 1e-8], [0.0, 0.0]]]
    solution = max_margin(Tokens(keys), [0, 0], norm)
    missing = solution.certificate.worst
    assert 0 <= missing <= (NEAR if norm == frobenius else COARSE)
    assert solution.W[:, 0] == pytest.approx([1, 2e8], rel=2 * max(missing, NEAR))  # p₂ = (1 + p₁)/1e-8


@pytest.mark.parametrize("size", [1e-2, 1e-4, 1e-6, 1e-8])
def test_near_ties_of_matrices_are_separated(norm, size):
    tokens, selected = planted(4, 4, 6, e=4, seed=8)
    keys = tokens.keys.copy()
    keys[1, (selected[1] + 1) % 4] = keys[1, selected[1]] * (1 - size)
    solution = max_margin(Tokens(keys, tokens.queries), selected, norm)
    assert solution.certificate.worst <= max(1e-8, 1e-14 / size), solution.certificate


def test_a_large_vector_common_to_all_tokens(norm):
    tokens, selected = planted(4, 4, 5, e=3, seed=9)
    usual = max_margin(tokens, selected, norm)
    solution = certified(Tokens(tokens.keys + 1e6, tokens.queries), selected, norm)
    assert solution.margin == pytest.approx(usual.margin, rel=1e-6)


# ---------------------------------------------------------------------- kinds of arrays


def test_float32_tokens_are_solved_in_double_precision(norm):
    tokens, selected = planted(4, 4, 5, e=3, seed=10)
    single = Tokens(tokens.keys.astype("f4"), tokens.queries.astype("f4"), dtype=np.float32)
    solution = certified(single, selected, norm)
    assert solution.W.dtype == np.float64
    assert solution.margin == pytest.approx(max_margin(tokens, selected, norm).margin, rel=SINGLE)


def test_integers_lists_and_strided_arrays_are_welcome(norm):
    keys = np.asfortranarray(np.arange(24).reshape(2, 3, 4) ** 2 % 11)
    selected = [0, 1]
    first = max_margin(Tokens(keys[:, ::-1]), selected, norm)
    again = max_margin(Tokens(keys[:, ::-1].astype(float).copy().tolist()), selected, norm)
    assert first.margin == pytest.approx(again.margin, rel=1e-9)


def test_the_input_is_left_as_it_was(norm):
    instance = conftest.everything()
    before = {name: array.copy() for name, array in instance.tokens.arrays().items()}
    max_margin(instance.tokens, instance.selected, norm, required=instance.required)
    assert all(np.array_equal(before[name], a) for name, a in instance.tokens.arrays().items())


def test_the_threads_of_the_user_are_left_as_they_were(norm):
    instance = conftest.matrix()
    before = [(pool["filepath"], pool["num_threads"]) for pool in threadpool_info()]
    max_margin(instance.tokens, instance.selected, norm)
    after = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
    assert all(after[path] == threads for path, threads in before)


def test_the_same_program_twice_gives_the_same_bits(norm):
    instance = conftest.matrix()
    first, second = (max_margin(instance.tokens, instance.selected, norm) for _ in range(2))
    assert np.array_equal(first.W, second.W)


# ---------------------------------------------------------------------- errors in words


@pytest.mark.parametrize(
    "change, words",
    [
        ({"selected": [0, 1]}, "selected has shape"),
        ({"selected": [9, 0, 0, 0, 0]}, "indices from 0 to 9"),
        ({"selected": [-1, 0, 0, 0, 0]}, "indices from -1"),
        ({"selected": np.zeros((5, 5), bool)}, "selected picks no token in example 0"),
        ({"required": -1.0}, "required must be finite"),
        ({"required": np.nan}, "required must be finite"),
        ({"required": np.inf}, "required must be finite"),
        ({"required": [1.0, 2.0]}, "required has shape"),
    ],
)
def test_bad_arguments_are_refused_in_words(change, words):
    instance = conftest.matrix()
    selected = change.get("selected", instance.selected)
    with pytest.raises(ValueError, match=words):
        max_margin(instance.tokens, selected, required=change.get("required", 1.0))


@pytest.mark.parametrize(
    ("tokens", "words"), [(np.ones((2, 3, 2)), "Pass Tokens"), ((Tokens(np.eye(3)[None]), 0), "apart")]
)
@pytest.mark.parametrize("verb", [max_margin, separable, as_selected, as_head])
def test_arrays_and_pairs_in_place_of_tokens_are_told_what_to_pass(verb, tokens, words):
    with pytest.raises(TypeError, match=words):
        verb(tokens, [0, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_tokens_that_are_not_finite_are_refused(bad):
    keys = np.ones((2, 3, 2))
    keys[1, 2, 0] = bad
    with pytest.raises(ValueError, match=r"keys\[1, 2, 0\]"):
        max_margin(Tokens(keys), [0, 0])


@pytest.mark.parametrize("rows", [np.ones(3), np.ones((2, 2, 2)), np.ones((0, 3))])
def test_separate_refuses_what_is_not_a_matrix(rows):
    with pytest.raises(ValueError, match="rows has shape"):
        separate(rows)


def test_separate_refuses_rows_that_are_not_finite():
    with pytest.raises(ValueError, match="row 1 of rows has a NaN"):
        separate([[1.0, 2.0], [1.0, np.nan]])


@pytest.mark.parametrize("wrong", ["nuclaer", "lp:0.5", 2, None, Entrywise], ids=repr)
def test_a_norm_that_is_no_norm_is_refused(wrong):
    instance = conftest.matrix()
    with pytest.raises((TypeError, ValueError), match=r"norm.*Pass"):
        max_margin(instance.tokens, instance.selected, wrong)
    assert max_margin(instance.tokens, instance.selected, "nuclear").norm == nuclear


def test_masked_nan_is_no_problem(norm):
    tokens = Tokens([[[1.0, 0.0], [0.0, 0.0], [np.nan, np.nan]]], mask=[[True, True, False]])
    assert certified(tokens, [0], norm).W[:, 0] == pytest.approx([1, 0], abs=1e-7)


@pytest.mark.parametrize("build", [conftest.opposite, conftest.overfull], ids=conftest.name)
def test_a_solution_is_never_returned_for_a_contradiction(build, norm):
    instance = build()
    with pytest.raises(NotSeparable):
        max_margin(instance.tokens, instance.selected, norm)
    assert separable(instance.tokens, instance.selected) is False


def test_nuclear_and_frobenius_agree_on_prompts():
    instance = conftest.prompt()
    one, other = (max_margin(instance.tokens, instance.selected, N) for N in (frobenius, nuclear))
    assert np.allclose(one.W, other.W, rtol=1e-9)
