"""Even pairs, parity and triggers; and what all data of neighbouring papers do with seeds and sizes."""

import inspect

import numpy as np
import pytest

from attsvm_lab import datasets

pytestmark = pytest.mark.quick

SIZES = (3, 4, 5)
SEEDED = [datasets.trigger_means, datasets.match_and_copy, datasets.sparse_signals, datasets.one_location]


@pytest.mark.parametrize("draw", SEEDED)
def test_a_range_of_seeds_stacks_single_draws_and_another_seed_is_another(draw):
    many, one = draw(*SIZES, seed=range(3))[0], draw(*SIZES, seed=2)[0]
    np.testing.assert_array_equal(many.keys[2], one.keys)
    assert not np.array_equal(many.keys[1], one.keys)


# ---------------------------------------------------------------------- even pairs and parity


def spelled(tokens):
    """The strings, read off the keys."""
    symbols = tokens.keys.argmax(-1) % 2
    return ["".join(map(str, row[:length])) for row, length in zip(symbols, tokens.lengths, strict=True)]


def test_every_string_occurs_and_every_length_equally_often():
    strings = spelled(datasets.even_pairs(4)[0])
    assert set(strings) == {f"{k:0{n}b}" for n in range(1, 5) for k in range(2**n)}
    assert {strings.count(string) for string in strings if len(string) == 2} == {4}
    assert {sum(len(s) == n for s in strings) for n in range(1, 5)} == {16}


def test_labels_of_even_pairs_compare_the_ends_and_those_of_parity_count():
    pairs, parity = datasets.even_pairs(4)[0], datasets.parity(4)[0]
    strings = spelled(pairs)
    assert strings == spelled(parity)
    changes = [s.count("01") + s.count("10") for s in strings]
    np.testing.assert_array_equal(pairs.labels > 0, [c % 2 == 0 for c in changes])
    np.testing.assert_array_equal(parity.labels > 0, [s.count("1") % 2 == 0 for s in strings])
    assert not np.array_equal(pairs.labels, parity.labels)


def test_the_query_of_a_string_is_its_last_token_and_tokens_are_orthonormal():
    tokens, _ = datasets.even_pairs(3)
    last = tokens.keys[np.arange(tokens.n), tokens.lengths - 1]
    np.testing.assert_array_equal(tokens.queries, last)
    seen = np.unique(tokens.keys[tokens.mask], axis=0)
    np.testing.assert_array_equal(np.sort(seen @ seen.T), np.sort(np.eye(6)))


def test_too_long_strings_are_refused():
    with pytest.raises(ValueError, match="L is 13"):
        datasets.even_pairs(13)


# ---------------------------------------------------------------------- triggers


def test_selected_tokens_alone_answer_the_task():
    tokens, selected = datasets.trigger_means(4, 6, 6, seed=0)
    uniform = selected / selected.sum(-1, keepdims=True)
    np.testing.assert_allclose(np.einsum("nt,ntc->nc", uniform, tokens.values), 0, atol=1e-15)
    everywhere = tokens.mask / tokens.lengths[:, None]
    assert (np.abs(np.einsum("nt,ntc->nc", everywhere, tokens.values)).max(-1) > 1e-3).all()


def test_the_trigger_is_where_all_tokens_but_the_first_are_selected():
    tokens, selected = datasets.trigger_means(50, 6, 6, seed=0)
    triggers = tokens.queries[:, 1] == 1
    np.testing.assert_array_equal(~selected[:, 0], triggers)
    assert triggers.sum() == 50
    assert set(tokens.lengths[triggers]) == {3, 4, 5, 6}
    np.testing.assert_array_equal(selected[triggers], (tokens.mask & (np.arange(6) > 0))[triggers])


def test_fresh_sequences_share_no_draw_with_those_of_training():
    train, test = (datasets.trigger_means(9, 6, 6, seed=0, fresh=fresh)[0] for fresh in (0, 9))
    drawn = (set(tokens.queries[:, 2:-1].ravel()) for tokens in (train, test))
    assert not set.intersection(*drawn)
    assert set(train.queries[:, 2:-1].ravel()) == set(
        datasets.trigger_means(9, 6, 6)[0].queries[:, 2:-1].ravel()
    )


@pytest.mark.parametrize("draw", [datasets.sparse_signals, datasets.one_location])
def test_an_iterator_gives_its_seeds_to_every_draw(draw):
    once, again = draw(*SIZES, seed=iter(np.arange(2)))[0], draw(*SIZES, seed=range(2))[0]
    np.testing.assert_array_equal(once.keys, again.keys)


# ---------------------------------------------------------------------- sizes at the door


NAMED = {"n": 3, "T": 4, "d": 5, "L": 2, "rows": 1, "fresh": 0}


def sizes_of(function):
    """The sizes that a function takes; none where it needs more than sizes, as a topic or a share."""
    parameters = inspect.signature(function).parameters if inspect.isfunction(function) else {}
    required = {name for name, p in parameters.items() if p.default is p.empty}
    return [name for name in parameters if name in NAMED] if required <= NAMED.keys() else []


DRAWN = [(f, name) for f in (vars(datasets)[each] for each in datasets.__all__) for name in sizes_of(f)]


@pytest.mark.parametrize(("function", "name"), DRAWN, ids=lambda part: getattr(part, "__name__", part))
def test_every_data_set_names_a_size_that_is_none(function, name):
    given = {other: NAMED[other] for other in inspect.signature(function).parameters if other in NAMED}
    function(**given)
    for wrong in (-1, 1.5, np.nan, "3", None, True, *([] if name == "fresh" else [0])):
        with pytest.raises(ValueError, match=rf"^{name} is {wrong!r}. Pass {name} ≥ \d, a whole number.$"):
            function(**given | {name: wrong})


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (datasets.sparse_signals, {"share": 1.5}),
        (datasets.sparse_signals, {"share": np.nan}),
        (datasets.signal_beside_noise, {"flipped": -0.1, "d": 9}),
        (datasets.signal_and_noise, {"signal": 0.0, "d": 9}),
        (datasets.one_location, {"variance": -1.0}),
    ],
)
def test_a_number_that_means_nothing_is_named(function, given):
    name, value = next(iter(given.items()))
    with pytest.raises(ValueError, match=rf"^{name} is {value}. Pass a number"):
        function(**given)
