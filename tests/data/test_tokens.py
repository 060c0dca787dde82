"""Tokens accept what the papers use and refuse the rest with a message that helps."""

import numpy as np
import pytest

from attsvm import Tokens

pytestmark = pytest.mark.quick

KEYS = np.arange(24.0).reshape(2, 3, 4)


def test_the_prompt_model_has_the_constant_query_one():
    tokens = Tokens(KEYS)
    assert tokens.e == 1
    assert (tokens.queries == 1).all()


def test_values_default_to_the_keys_themselves():
    tokens = Tokens(KEYS)
    assert tokens.values is tokens.keys


def test_values_may_have_their_own_width():
    tokens = Tokens(KEYS, values=np.ones((2, 3, 1)))
    assert tokens.values.shape == (2, 3, 1)
    assert tokens.values is not tokens.keys


def test_sizes_are_named_by_their_letters():
    tokens = Tokens(KEYS, queries=np.ones((2, 5)))
    assert (tokens.n, tokens.T, tokens.d, tokens.e, tokens.runs) == (2, 3, 4, 5, None)


def test_arrays_without_a_runs_axis_are_shared_by_all_runs():
    tokens = Tokens(np.stack([KEYS, KEYS + 1]), queries=np.ones((2, 5)))
    assert tokens.runs == 2
    assert tokens.queries.shape == (2, 2, 5)
    assert tokens.labels.shape == (2, 2)
    np.testing.assert_array_equal(tokens.run(1).keys, KEYS + 1)


def test_arrays_cannot_be_written():
    tokens = Tokens(KEYS)
    with pytest.raises(ValueError, match="read-only"):
        tokens.keys[0, 0, 0] = 1
    with pytest.raises(AttributeError):
        tokens.keys = KEYS


def test_float64_input_is_not_copied():
    assert np.shares_memory(Tokens(KEYS).keys, KEYS)


def test_single_precision_is_kept_only_when_asked():
    single = KEYS.astype(np.float32)
    assert Tokens(single).keys.dtype == np.float64
    assert Tokens(single, dtype=np.float32).keys.dtype == np.float32


def test_masked_tokens_are_zeroed_even_when_they_hold_nan():
    keys = KEYS.copy()
    keys[1, 2] = np.nan
    mask = np.array([[1, 1, 1], [1, 1, 0]], bool)
    tokens = Tokens(keys, mask=mask)
    assert (tokens.keys[1, 2] == 0).all()
    assert tokens.lengths.tolist() == [3, 2]


def test_sequences_of_different_lengths_are_padded_and_masked():
    tokens = Tokens.from_sequences([np.ones((2, 4)), np.ones((5, 4))], labels=[1, -1])
    assert tokens.keys.shape == (2, 5, 4)
    assert tokens.mask.sum(1).tolist() == [2, 5]
    assert (tokens.keys[0, 2:] == 0).all()


def test_a_query_that_is_masked_is_refused():
    """Its key is set to zero, so that every weight would give every token the same logit."""
    padded_left = [[False, True, True], [True, True, True]]
    with pytest.raises(ValueError, match="token 0 of example 0, which is masked"):
        Tokens.self_attention(KEYS, at=0, mask=padded_left)
    assert Tokens.self_attention(KEYS, at=[1, 0], mask=padded_left).query_size.all()


def test_self_attention_takes_the_query_from_the_sequence():
    np.testing.assert_array_equal(Tokens.self_attention(KEYS, at=1).queries, KEYS[:, 1])
    mask = np.array([[1, 1, 0], [1, 1, 1]], bool)
    last = Tokens.self_attention(KEYS, at=-1, mask=mask)
    np.testing.assert_array_equal(last.queries, KEYS[[0, 1], [1, 2]])


def test_causal_attention_is_one_example_per_query_that_sees_no_later_token():
    tokens = Tokens.every_query(KEYS, visible=np.tri(3, dtype=bool))
    assert tokens.n == 6
    np.testing.assert_array_equal(tokens.lengths, [1, 2, 3, 1, 2, 3])
    np.testing.assert_array_equal(tokens.queries, KEYS.reshape(6, 4))


def test_many_queries_drop_padded_ones():
    mask = np.array([[1, 1, 0], [1, 0, 0]], bool)
    assert Tokens.every_query(KEYS, mask=mask, labels=np.ones((2, 3))).n == 3


def test_tokens_print_their_sizes():
    text = repr(Tokens(KEYS, labels=[1, -1], mask=[[1, 1, 1], [1, 1, 0]]))
    assert text == "Tokens(n=2, T=3, d=4, e=1; lengths 2–3; labels 1+ 1−)"


@pytest.mark.parametrize("values", [None, np.ones((2, 3, 2))], ids=["own values", "keys as values"])
def test_saved_tokens_come_back(tmp_path, values):
    tokens = Tokens(KEYS, np.ones((2, 2)), [1, -1], [[1, 1, 1], [1, 0, 1]], values)
    tokens.save(tmp_path / "tokens.npz")
    back = Tokens.load(tmp_path / "tokens.npz")
    for name in ("keys", "queries", "labels", "mask", "values"):
        np.testing.assert_array_equal(getattr(back, name), getattr(tokens, name))


NAN = KEYS.copy()
NAN[1, 2, 0] = np.nan


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"keys": np.ones(3)}, r"keys has shape \(3,\). Pass \(n, T, d\)"),
        ({"keys": [[[1.0], [2.0]], [[1.0]]]}, "use Tokens.from_sequences"),
        ({"keys": [[["a"]]]}, "not an array of real numbers|Pass real numbers"),
        ({"keys": KEYS + 1j}, "not an array of real numbers|Pass real numbers"),
        ({"keys": np.ones((0, 3, 4))}, "keys is empty"),
        ({"keys": NAN}, r"keys\[1, 2, 0\] is nan. Remove or mask the token"),
        ({"keys": np.full((1, 2, 2), np.inf)}, r"keys\[0, 0, 0\] is inf"),
        ({"keys": KEYS, "queries": np.ones((3, 2))}, r"queries has shape \(3, 2\) but keys has n=2"),
        ({"keys": KEYS, "queries": np.ones((2, 4, 5))}, r"repeat\(4, axis=0\) and queries.reshape\(8, 5\)"),
        ({"keys": KEYS, "queries": np.ones((2, 4, 5))}, r"Tokens.every_query\(keys\) does so"),
        ({"keys": KEYS, "queries": np.full((2, 2), np.inf)}, r"queries\[0, 0\] is inf"),
        ({"keys": KEYS, "labels": [0, 1]}, "labels must be −1 or .1, got 0.0, 1.0. Pass 2.labels − 1"),
        ({"keys": KEYS, "labels": [1, 2]}, r"labels must be −1 or .* np.where\(labels == 2, 1, -1\)"),
        ({"keys": KEYS, "labels": [1]}, "Pass one per example"),
        ({"keys": KEYS, "mask": np.ones((2, 4), bool)}, "Pass one per token"),
        ({"keys": KEYS, "mask": [[1, 1, 1], [0, 0, 0]]}, "example 1 has no token"),
        ({"keys": KEYS, "mask": np.full((2, 3), 0.5)}, "mask must be boolean"),
        ({"keys": KEYS, "values": np.ones((2, 2, 1))}, "values has shape"),
        ({"keys": KEYS[None], "queries": np.ones((2, 2, 5))}, "runs axes differ"),
        ({"keys": KEYS, "dtype": np.int64}, "Pass np.float64 or np.float32"),
        ({"keys": KEYS + 1e39, "dtype": np.float32}, r"keys\[0, 0, 0\] is inf. float32 ends at 3.4e38"),
        ({"keys": NAN, "dtype": np.float32}, "is nan. Remove or mask the token"),
        (
            {"keys": 1e-60 * (KEYS + 1), "dtype": np.float32},
            "-59, less than float32 holds. Pass dtype=np.float64",
        ),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        Tokens(**arguments)


def test_several_positions_per_sequence_are_pointed_to_every_query():
    with pytest.raises(ValueError, match=r"at has shape \(2, 3\) but keys has n=2.*Tokens.every_query"):
        Tokens.self_attention(KEYS, np.zeros((2, 3), int))
    assert Tokens.self_attention(KEYS, [1, 2]).n == 2


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([], "sequences is empty"),
        ([np.ones((2, 3)), np.ones((0, 3))], r"sequences\[1\] has shape \(0, 3\)"),
        ([np.ones((2, 3)), np.ones((2, 4))], r"sequences\[1\] is 4 wide but sequences\[0\] is 3 wide"),
        ([np.ones(3)], r"sequences\[0\] has shape \(3,\)"),
    ],
)
def test_bad_sequences_are_named(sequences, message):
    with pytest.raises(ValueError, match=message):
        Tokens.from_sequences(sequences)


def test_sequences_that_would_vanish_in_single_precision_are_named():
    small = [np.ones((2, 3)), np.full((1, 3), 1e-60)]
    with pytest.raises(ValueError, match=r"sequences\[1\] reaches 1e-60, less than float32 holds"):
        Tokens.from_sequences(small, dtype=np.float32)
    assert Tokens.from_sequences(small).keys[1, 0, 0] == 1e-60
